"""Statistics of sessions, and handles of those that run in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ostinato.backends.common.context import Context

__all__ = ["Pending", "SessionStats"]


@dataclass(frozen=True)
class SessionStats:
    """Statistics of a session.

    Attributes:
        dispatches: number of ops that do work; a view is none, an op of several kernels is one.
        barriers: number of barriers between ops.
        submissions: number of submissions to the device.
        waits: number of synchronisations with the device.
        fused: number of ops that were fused into others.
        reordered: number of ops that were moved.
        encode_ns: time spent encoding, in nanoseconds.
        device_ns: time spent running, in nanoseconds; 0 before it has run, and in a recording.
    """

    dispatches: int = 0
    barriers: int = 0
    submissions: int = 0
    waits: int = 0
    fused: int = 0
    reordered: int = 0
    encode_ns: int = 0
    device_ns: int = 0


class Pending:
    """The handle of a committed session, which may still be running.

    Args:
        context: the command queue.
        stats: of the session, so far.
        future: of the nanoseconds that it takes; ``None``: the session is empty.
    """

    def __init__(self, context: Context, stats: SessionStats, future: Future[int] | None) -> None:
        self._context = context
        self._stats = stats
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the session has run or failed."""
        return self._future is None or self._future.done()

    @property
    def stats(self) -> SessionStats:
        """The statistics so far."""
        return self._stats

    def wait(self) -> SessionStats:
        """Wait until it has run; may be called again.

        Raises:
            CaptureError: inside a recording, in which nothing runs.
            Exception: the error of the run, at each call.
        """
        self._context.refuse_while_capturing("wait is a synchronisation")
        if self._future is not None:
            elapsed = self._future.result()
            if not self._stats.waits:
                self._stats = replace(self._stats, waits=1, device_ns=elapsed)
        return self._stats
