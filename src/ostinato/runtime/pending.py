"""What a session did, and how to wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ostinato.backends.context import Context

__all__ = ["Pending", "SessionStats"]


@dataclass(frozen=True)
class SessionStats:
    """What a session did.

    Attributes:
        dispatches: ops that do work; a view is none, what several kernels compute is one.
        barriers: how often ops wait for all before them.
        submissions: how often something was handed to the device.
        waits: how often the device was waited for.
        fused: ops that went into others.
        reordered: ops that moved to another place.
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
    """A session that was committed, and perhaps still runs.

    Args:
        context: what it was submitted to.
        stats: of the session, so far.
        future: gives the nanoseconds that it takes; ``None``: there was nothing to do.
    """

    def __init__(self, context: Context, stats: SessionStats, future: Future[int] | None) -> None:
        self._context = context
        self._stats = stats
        self._future = future

    @property
    def done(self) -> bool:
        """Whether it has run, or failed."""
        return self._future is None or self._future.done()

    @property
    def stats(self) -> SessionStats:
        """What is known by now."""
        return self._stats

    def wait(self) -> SessionStats:
        """Wait until it has run; may be called again.

        Raises:
            CaptureError: inside a recording, where nothing runs that could be waited for.
            Exception: what running it raised, each time.
        """
        self._context.refuse_while_capturing("wait is a synchronisation")
        if self._future is not None:
            elapsed = self._future.result()
            if not self._stats.waits:
                self._stats = replace(self._stats, waits=1, device_ns=elapsed)
        return self._stats
