"""A device's command queue: what is submitted to it runs in order, or is recorded to be replayed.

Whatever is not one device's own lives here, above all the rules of recording (SPEC section 6).
"""

from __future__ import annotations

import itertools
import operator
import time
import weakref
from abc import ABC, abstractmethod
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ostinato.backends.queue import Queue
from ostinato.backends.routines import RoutineShelf
from ostinato.backends.turns import Turn
from ostinato.dtypes import DType
from ostinato.errors import CaptureError, GraphError, InputError, VariableError
from ostinato.ir.leaves import as_numpy
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import Array, Buffer, Storage, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent import futures

    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.plan.region import Region, ResultStorage
    from ostinato.variables import Symbol
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["DECODE_VARIABLES", "Context", "Encoded", "Recording"]

#: Variables of these names can live on the device; see :meth:`Context.set_dev_state_mode`.
DECODE_VARIABLES = ("token", "position", "kv_len")

#: So that ``step + 1`` still is an int64.
_MAX_STATE = (1 << 63) - 2

_NO_VALUES: Mapping[str, int] = MappingProxyType({})


class Recording(Protocol):
    """What was submitted between begin and end, frozen by a device."""

    def replay(self) -> None:
        """Run all of it, in order, as one launch."""

    def uses(self, memory: object) -> bool:
        """Whether it touches this memory, or runs this program."""


class _Kept(NamedTuple):
    """A recording, and who wants to know that it was replayed."""

    serial: int  #: no two recordings of a context have the same
    recording: Recording
    after: tuple[Callable[[], object], ...]


class Encoded(ABC):
    """Prepared ops made ready to run by a context, any number of times, as one submission.

    It is what a plan runs through as well (:class:`~ostinato.plan.execution_plan.Runner`).
    """

    @abstractmethod
    def launch(self) -> None:
        """Run all ops on the calling thread; while the context records, be recorded instead."""

    @abstractmethod
    def run(self, variables: Sequence[int]) -> None:
        """Run all ops with these values of the Variables."""

    @abstractmethod
    def run_profiled(self, variables: Sequence[int]) -> Sequence[float]:
        """Run; the seconds that each op but views took."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held for running; from now on running raises :class:`PlanError`."""

    @abstractmethod
    def check(self) -> None:
        """Raises what keeps the ops from running."""

    @abstractmethod
    def discard(self) -> None:
        """Give back the memory of what lives within a run and is not the caller's."""


class Context(RoutineShelf):
    """The command queue of a device, and what it recorded. A session has one.

    It may be used from many threads. While one of them records, what the others submit to the same
    context is recorded too.

    Args:
        device: whose queue it is.

    Attributes:
        device: whose queue it is.
        supports_capture: whether it can record; else :meth:`begin_graph_capture` raises.
    """

    supports_capture = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self._submitting = Turn()  # held while something is queued, and while recording is toggled
        self._running = Turn()  # held by what runs: replays, and whatever was encoded
        self._shelf = Turn()  # guards what is kept to be run again
        self._recordings: dict[int, _Kept] = {}
        self._serials = itertools.count(1)
        self._after: list[Callable[[], object]] = []  # of the recording that is being made
        self._queues: tuple[weakref.ref[Queue], ...] = ()  # those that were ever used
        self._queue = Queue()

    def __repr__(self) -> str:
        doing = "recording" if self.capturing else f"recordings: {sorted(self._recordings)}"
        return f"<{type(self).__name__} of {self.device}, {doing}>"

    # -- recording ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def capturing(self) -> bool:
        """Whether what is submitted now is recorded, not run."""

    @abstractmethod
    def _begin(self) -> None:
        """Record from now on."""

    @abstractmethod
    def _end(self) -> Recording:
        """Record no longer; what was recorded."""

    @abstractmethod
    def _cancel(self) -> None:
        """Record no longer, and forget what was."""

    def begin_graph_capture(self) -> None:
        """Record from now on: what is submitted is not run, until :meth:`end_graph_capture`.

        What was queued before still runs: this waits for it.

        Raises:
            CaptureError: it records already, and goes on doing so; or the device has no capture.
        """
        if not self.supports_capture:
            raise CaptureError(f"{self.device} cannot record; submit without begin_graph_capture")
        with self._submitting:
            if self.capturing:
                raise CaptureError(
                    "begin_graph_capture inside a recording: recordings do not nest; end this one "
                    "with end_graph_capture(key), or drop it with cancel_graph_capture()"
                )
            self._settle()
            self._after.clear()
            self._begin()

    def end_graph_capture(self, key: int) -> None:
        """Keep what was recorded under ``key``, in the place of an older recording.

        Raises:
            CaptureError: nothing is being recorded; or ``key`` is no int, and recording goes on.
        """
        with self._submitting:
            if not self.capturing:
                raise CaptureError("end_graph_capture without a begin_graph_capture")
            number = _checked_key(key)
            kept = _Kept(next(self._serials), self._end(), tuple(self._after))
            self._after.clear()
            with self._shelf:
                self._recordings[number] = kept

    def cancel_graph_capture(self) -> None:
        """Drop what is being recorded, if anything is. Recordings made before stay."""
        with self._submitting:
            self._after.clear()
            if self.capturing:
                self._cancel()

    def replay_graph(self, key: int) -> bool:
        """Run what was recorded under ``key``, behind all that was submitted before, and wait.

        Returns:
            ``False`` when there is no such recording, or no longer: nothing has happened.

        Raises:
            CaptureError: inside a recording.
            VariableError: the variable block has a value that does not fit. Nothing has run.
        """
        try:
            kept = self._recordings.get(key)
        except TypeError:  # not even hashable
            kept = None
        if kept is None:
            _checked_key(key)
            return False
        self.settle("replay_graph waits")
        with self._running:
            kept.recording.replay()
            for tell in kept.after:
                tell()
        return True

    def recording_serial(self, key: int) -> int:
        """Tells recordings apart that are kept under one key in turn; 0 where there is none."""
        kept = self._recordings.get(key)
        return 0 if kept is None else kept.serial

    def reset_graph(self, key: int) -> None:
        """Drop the recording under ``key``, if there is one.

        Raises:
            CaptureError: ``key`` is no int.
        """
        with self._shelf:
            self._recordings.pop(_checked_key(key), None)

    def reset_all_graphs(self) -> None:
        """Drop all recordings. One that is being made goes on."""
        with self._shelf:
            self._recordings.clear()

    def refuse_while_capturing(self, what: str) -> None:
        """Let nothing pass that a recording can not hold.

        Args:
            what: the call, and why it does not fit: ``"run reads its results back"``.

        Raises:
            CaptureError: a recording is being made. It goes on.
        """
        if self.capturing:
            raise CaptureError(
                f"{what}, which a recording can not hold; call it before begin_graph_capture or "
                "after end_graph_capture"
            )

    def forget_users(self, memory: object) -> None:
        """Drop every recording that uses this memory, program or array."""
        if not self._recordings:
            return
        with self._shelf:
            for key in [k for k, r in self._recordings.items() if r.recording.uses(memory)]:
                self._recordings.pop(key, None)  # letting go may run code that resets it

    def after_replay(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` after every replay of what is being recorded."""
        with self._submitting:
            if self.capturing:
                self._after.append(tell)

    # -- the variable block ------------------------------------------------------------------------

    @abstractmethod
    def _write_state(self, values: tuple[int, int, int]) -> None:
        """Write token, position and kv_len into the variable block."""

    @abstractmethod
    def _read_state(self) -> tuple[int, int, int]:
        """What the variable block holds."""

    @property
    @abstractmethod
    def dev_state_mode(self) -> bool:
        """Whether kernels take ``token``, ``position`` and ``kv_len`` from the variable block."""

    @abstractmethod
    def _set_mode(self, enable: bool) -> None:
        """Choose where kernels take those Variables from."""

    def set_decode_state(self, token: int, step: int) -> None:
        """Write the variable block: ``token``, ``position = step`` and ``kv_len = step + 1``.

        What was submitted before still sees what it held then. It is written inside a recording
        too, and is never part of one: replays read what it holds when they start. Before the first
        call it holds 0, 0 and 1.

        Raises:
            VariableError: one of them is no int, or negative. Nothing has been written.
        """
        token, step = _checked_state("token", token), _checked_state("step", step)
        self._queue.settle()
        with self._running:
            self._write_state((token, step, step + 1))

    def set_dev_state_mode(self, enable: bool) -> None:
        """Whether Variables named ``token``, ``position`` and ``kv_len`` live in the block.

        In this mode kernels read them there, whatever a call was bound or submitted with, so one
        recording serves every step. What is recorded in this mode reads them there for good.
        """
        with self._submitting:
            self._settle()
            self._set_mode(bool(enable))

    @property
    def decode_state(self) -> Mapping[str, int]:
        """What the variable block holds, by Variable."""
        return dict(zip(DECODE_VARIABLES, self._read_state(), strict=True))

    @property
    def resident_values(self) -> Mapping[str, int]:
        """The Variables that kernels take from the block: none, unless in dev-state mode."""
        return self.decode_state if self.dev_state_mode else _NO_VALUES

    # -- memory ------------------------------------------------------------------------------------

    @abstractmethod
    def _allocate(self, nbytes: int) -> Memory:
        """Zeroed memory of the device."""

    def storage(self, nbytes: int) -> Storage:
        """Memory that is taken when it is first used, also by what is recorded."""
        return Storage(self.device, nbytes, self._allocate, queue=self)

    def result(self, region: Region) -> ResultStorage:
        """Memory of a session's result, which no more than knows whether anybody holds it."""
        return region.lend(self.device, self._allocate, self)

    def empty(self, type: TensorType) -> Buffer:
        """A buffer on zeroed memory of its own.

        Reading or writing it waits for what was submitted before.

        Raises:
            CaptureError: inside a recording, which can not hold an allocation.
        """
        self.refuse_while_capturing("this allocates memory")
        buffer = Buffer(self.storage(type.max_bytes), 0, type)
        _ = buffer.storage.memory
        return buffer

    def upload(self, array: Any) -> Buffer:
        """A buffer of its own with a copy of ``array``.

        Raises:
            CaptureError: as :meth:`empty`.
            InputError: it is no array, or of a dtype that there is none of.
        """
        try:
            source = as_numpy(array)
            type_ = TensorType(DType.parse(source.dtype), source.shape)
        except GraphError as error:
            raise InputError(str(error)) from None
        buffer = self.empty(type_)
        buffer.copyin(source)
        return buffer

    def constant(self, array: Array) -> Buffer:
        """A buffer of its own with a copy of ``array``, for ops to read.

        Unlike :meth:`upload` it waits for nothing: nothing that was submitted knows it.
        """
        type_ = TensorType(DType.parse(array.dtype), array.shape)
        buffer = Buffer(self.storage(type_.max_bytes), 0, type_)
        buffer.storage.memory.write(0, bytes_of(as_numpy(array)))
        return buffer

    # -- submitting --------------------------------------------------------------------------------

    @abstractmethod
    def copy_call(self, target: Any, source: Any) -> Callable[[], None]:
        """A call that copies the bytes of a host array to another one; it can be recorded."""

    @abstractmethod
    def encode(self, ops: Sequence[PreparedOp], variables: Sequence[Symbol] = ()) -> Encoded:
        """``ops``, in this order, ready to run on their buffers as one submission.

        Args:
            ops: what to run; their buffers' memory is taken now.
            variables: in the order in which kernels take them.

        Raises:
            PlanError: a buffer is another device's, or was released.
        """

    def submit(self, encoded: Encoded) -> futures.Future[int]:
        """Queue ``encoded`` behind what was submitted before, and return at once.

        Inside a recording it is recorded instead, and the future is done.

        Returns:
            The nanoseconds that it takes to run, or what it raises; 0 for what is recorded.
        """
        future: futures.Future[int] = futures.Future()
        queued = partial(_carry_out, self._timed, encoded, future)
        self.enqueue(self._queue, queued, partial(_carry_out, _launched, encoded, future))
        return future

    def run(self, encoded: Encoded) -> int:
        """Submit ``encoded`` and wait: on the calling thread, when nothing is queued.

        Returns:
            As :meth:`submit`.
        """
        with self._submitting:
            if self.capturing:
                encoded.launch()
                return 0
            idle = self._queue.idle
            future = None if idle else self.submit(encoded)
        return self._timed(encoded) if future is None else future.result()

    def enqueue(
        self, queue: Queue, call: Callable[[], object], record: Callable[[], object]
    ) -> None:
        """Queue ``call``, and return at once; inside a recording, call ``record`` instead.

        Args:
            queue: any; what waits for this context's work waits for that on it, too.
            call: runs on the queue's thread.
            record: runs here and now.
        """
        with self._submitting:
            if self.capturing:
                record()
                return
            if all(known() is not queue for known in self._queues):
                living = [known for known in self._queues if known() is not None]
                self._queues = (*living, weakref.ref(queue))
            queue.submit(call)

    def synchronize(self) -> None:
        """Wait until all that was submitted is done.

        Raises:
            CaptureError: inside a recording: nothing was submitted that could be waited for.
        """
        self.settle("synchronize waits")

    def settle(self, what: str) -> None:
        """Wait until all that was submitted is done, for ``what``.

        Raises:
            CaptureError: inside a recording; see :meth:`refuse_while_capturing`.
        """
        self.refuse_while_capturing(what)
        self._settle()

    def _settle(self) -> None:
        for known in self._queues:
            queue = known()
            if queue is not None:
                queue.settle()

    def _timed(self, encoded: Encoded) -> int:
        with self._running:
            start = time.perf_counter_ns()
            encoded.launch()
            return time.perf_counter_ns() - start


def _carry_out(
    timed: Callable[[Encoded], int], encoded: Encoded, future: futures.Future[int]
) -> None:
    try:
        future.set_result(timed(encoded))
    except BaseException as error:  # whatever it is belongs to the one who waits
        future.set_exception(error)


def _launched(encoded: Encoded) -> int:
    encoded.launch()
    return 0


def _checked_key(key: object) -> int:
    try:
        return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        raise CaptureError(f"recordings are kept under ints, got {key!r:.80}") from None


def _checked_state(name: str, value: object) -> int:
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several elements has the method, too
            number = -1
        if 0 <= number <= _MAX_STATE:
            return number
    raise VariableError(f"{name} is an int from 0 on, got {value!r:.80}")
