"""Recordings of a device's command queue: the rules, which are the same for all devices."""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ostinato.backends.common.encoded import KeptRecording
from ostinato.backends.common.mutex import Mutex
from ostinato.errors import CaptureError
from ostinato.plan import _order
from ostinato.plan.order import ORDER, Submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.common.encoded import Recording
    from ostinato.backends.device import Device

__all__ = ["Recorder"]


class Recorder(ABC):
    """The recordings of a command queue.

    A recording is made by one thread, and holds the submissions of that thread.

    Args:
        device: the device.

    Attributes:
        device: the device.
        label: its name in messages.
        supports_capture: whether it can record; else :meth:`begin_graph_capture` raises.
    """

    supports_capture = True

    def __init__(self, device: Device) -> None:
        self.device = device
        self.label = f"context {id(self):#x} of {device}"
        self._recordings_mutex = Mutex()
        self._recordings: dict[int, KeptRecording] = {}
        self._serials = itertools.count(1)
        self._after: list[Callable[[], object]] = []  # of the recording in progress
        ORDER.join(self)

    # -- what a device hands in --------------------------------------------------------------------

    @property
    @abstractmethod
    def capturing(self) -> bool:
        """Whether submissions of the calling thread are recorded, not run."""

    @property
    @abstractmethod
    def capturing_number(self) -> int:
        """The number of the recording in progress, on any thread, or 0."""

    @property
    @abstractmethod
    def captured_calls(self) -> int:
        """The number of submissions in the recording in progress."""

    @abstractmethod
    def _begin(self, exclusive: bool) -> None:
        """Start recording the calling thread; see :meth:`begin_graph_capture`."""

    @abstractmethod
    def _end(self) -> Recording:
        """Stop recording, and return the recording.

        Raises:
            CaptureError: the recording has failed.
        """

    @abstractmethod
    def _cancel(self) -> None:
        """Stop recording, and drop the recording."""

    @abstractmethod
    def _capture_uses(self, memory: object) -> bool:
        """Whether the recording in progress touches this memory, or runs this program."""

    @abstractmethod
    def _wait_for_queues(self) -> None:
        """Wait for all calls that are queued."""

    # -- recording ---------------------------------------------------------------------------------

    def begin_graph_capture(self, *, exclusive: bool = False) -> None:
        """Record this thread's submissions until :meth:`end_graph_capture`; they do not run.

        Earlier queued calls are waited for. Submissions of other threads run as ever, and so do
        this thread's to other contexts, unless ``exclusive``.

        Args:
            exclusive: refuse this thread's submissions to other contexts with
                :class:`CaptureError`, and fail the recording: a replay would lack them.

        Raises:
            CaptureError: this thread records already, and continues; or another thread records
                here; or the device has no capture.
        """
        if not self.supports_capture:
            raise CaptureError(f"{self.device} cannot record; submit without begin_graph_capture")
        if self.capturing:
            raise CaptureError(
                "begin_graph_capture inside a recording: recordings do not nest; end this one "
                "with end_graph_capture(key), or drop it with cancel_graph_capture()"
            )
        self.refuse_while_capturing("begin_graph_capture starts a recording")
        if self.capturing_number:
            raise CaptureError(
                f"another thread records for {self.label}: wait until it has called "
                "end_graph_capture, or record on a context of your own"
            )
        self._wait_for_queues()
        self._begin(exclusive)
        self._after = []

    def end_graph_capture(self, key: int) -> None:
        """Store the recording under ``key``, replacing an older one.

        Raises:
            CaptureError: this thread does not record here; or ``key`` is no int, and recording
                continues; or the recording has failed, and is dropped: this thread submitted to
                another context, or memory that it uses was exchanged or given back.
        """
        if not self.capturing:
            raise CaptureError(
                "end_graph_capture without a begin_graph_capture"
                + (" of this thread: another one records" if self.capturing_number else "")
            )
        number = _checked_key(key)
        after, self._after = self._after, []
        kept = KeptRecording(next(self._serials), self._end(), after)
        with self._recordings_mutex:
            self._recordings[number] = kept

    def cancel_graph_capture(self) -> None:
        """Drop the recording in progress, on any thread. Stored recordings are kept."""
        if self.capturing_number:
            self._after = []
            self._cancel()

    def replay_graph(self, key: int) -> bool:
        """Run the recording under ``key``, behind all earlier submissions, and wait.

        Returns:
            ``False`` if there is no such recording, or no longer: nothing has run.

        Raises:
            CaptureError: inside a recording, or ``key`` is no int.
            VariableError: a value of the variable block is out of bounds. Nothing has run.
        """
        kept = self._recordings.get(_checked_key(key))
        if kept is None:
            return False
        self.refuse_while_capturing("replay_graph waits")
        with Submission(kept.recording.accesses):
            if kept.dropped:  # by an earlier submission, while this one waited
                return False
            kept.replay()
        return True

    def recording_serial(self, key: int) -> int:
        """The serial number of the recording under ``key``, unique in this context; 0 if none."""
        kept = self._recordings.get(key)
        return 0 if kept is None else kept.serial

    def reset_graph(self, key: int) -> None:
        """Drop the recording under ``key``, if there is one.

        Raises:
            CaptureError: ``key`` is no int.
        """
        with self._recordings_mutex:
            self._recordings.pop(_checked_key(key), None)

    def reset_all_graphs(self) -> None:
        """Drop all stored recordings. A recording in progress continues."""
        with self._recordings_mutex:
            self._recordings.clear()

    def refuse_while_capturing(self, what: str) -> None:
        """Refuse an operation that a recording can not hold.

        Args:
            what: the call, and the reason: ``"run reads its results back"``.

        Raises:
            CaptureError: the calling thread records, and continues; or it makes an exclusive
                recording of another context, which has failed.
        """
        number = self.capturing_number
        if number and self.capturing:
            raise CaptureError(
                f"{what}, which a recording can not hold; call it before begin_graph_capture or "
                "after end_graph_capture"
            )
        _order.refuse_elsewhere(number, self.label, CaptureError)

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        """Drop every recording that uses this memory; see :meth:`MemoryOrder.memory_changes`."""
        if (number := self.capturing_number) and self._capture_uses(memory):
            message = "memory that the recording uses was exchanged or given back while it was made"
            _order.fail_recording(number, message)
        if not self._recordings:
            return
        with self._recordings_mutex:
            users = [(k, r) for k, r in self._recordings.items() if r.recording.uses(memory)]
            for key, kept in users:
                kept.dropped = True
                self._recordings.pop(key, None)  # its destructor may reset the key itself

    def after_replay(self, call: Callable[[], object]) -> None:
        """Make ``call`` part of every replay of the recording in progress."""
        if self.capturing:
            self._after.append(call)


def _checked_key(key: object) -> int:
    try:
        if not isinstance(key, bool):
            return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise CaptureError(f"recordings are kept under ints, got {key!r:.80}")
