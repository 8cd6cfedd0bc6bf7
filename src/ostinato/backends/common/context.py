"""The command queue of a device: submissions run in order, or are recorded to be replayed.

The rules of recording are the same for all devices. Submissions are ordered by the memory that they
touch (:mod:`ostinato.plan.order`), across all contexts.
"""

from __future__ import annotations

import itertools
import operator
import time
import weakref
from abc import abstractmethod
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.compiled_op_cache import CompiledOpCache
from ostinato.backends.common.encoded import KeptRecording
from ostinato.backends.common.mutex import Mutex
from ostinato.backends.common.queue import Queue
from ostinato.dtypes import DType
from ostinato.errors import CaptureError, GraphError, InputError, VariableError
from ostinato.ir.leaves import as_numpy
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.plan import _order
from ostinato.plan.buffer import Array, Buffer, Storage, bytes_of
from ostinato.plan.order import ORDER, Accesses, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent import futures

    from ostinato.backends.common.encoded import Encoded, Recording
    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["DECODE_VARIABLES", "Context"]

#: Variables of these names can live on the device; see :meth:`Context.set_dev_state_mode`.
DECODE_VARIABLES = ("token", "position", "kv_len")

#: So that ``step + 1`` still is an int64.
_MAX_STATE = (1 << 63) - 2

_NO_VALUES: Mapping[str, int] = MappingProxyType({})


class Context(CompiledOpCache):
    """The command queue of a device, with its recordings. A session has one.

    It may be used from many threads. Submissions that touch the same memory take effect in the
    order in which they are made; all others run in parallel. A recording is made by one thread, and
    holds the submissions of that thread.

    Args:
        device: the device.

    Attributes:
        device: the device.
        label: its name in messages.
        supports_capture: whether it can record; else :meth:`begin_graph_capture` raises.
    """

    supports_capture = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.label = f"context {id(self):#x} of {device}"
        self._mutex = Mutex()  # guards recordings and the list of queues
        self._recordings: dict[int, KeptRecording] = {}
        self._serials = itertools.count(1)
        self._after: list[Callable[[], object]] = []  # of the recording in progress
        self._queues: tuple[weakref.ref[Queue], ...] = ()  # those that were ever used
        self._queue = Queue()
        ORDER.join(self)

    def __repr__(self) -> str:
        doing = "recording" if self.capturing else f"recordings: {sorted(self._recordings)}"
        return f"<{type(self).__name__} of {self.device}, {doing}>"

    # -- recording ---------------------------------------------------------------------------------

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
        with self._mutex:
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
        with self._mutex:
            self._recordings.pop(_checked_key(key), None)

    def reset_all_graphs(self) -> None:
        """Drop all stored recordings. A recording in progress continues."""
        with self._mutex:
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
        with self._mutex:
            users = [(k, r) for k, r in self._recordings.items() if r.recording.uses(memory)]
            for key, kept in users:
                kept.dropped = True
                self._recordings.pop(key, None)  # its destructor may reset the key itself

    def after_replay(self, call: Callable[[], object]) -> None:
        """Make ``call`` part of every replay of the recording in progress."""
        if self.capturing:
            self._after.append(call)

    # -- the variable block ------------------------------------------------------------------------

    @property
    @abstractmethod
    def _block_accesses(self) -> Accesses:
        """The accesses of a write of the variable block."""

    @abstractmethod
    def _write_state(self, values: tuple[int, int, int]) -> None:
        """Write token, position and kv_len into the variable block."""

    @abstractmethod
    def _read_state(self) -> tuple[int, int, int]:
        """Read token, position and kv_len from the variable block."""

    @property
    @abstractmethod
    def dev_state_mode(self) -> bool:
        """Whether kernels read ``token``, ``position`` and ``kv_len`` from the variable block."""

    @abstractmethod
    def _set_mode(self, enable: bool) -> None:
        """Switch dev-state mode."""

    def set_decode_state(self, token: int, step: int) -> None:
        """Write the variable block: ``token``, ``position = step`` and ``kv_len = step + 1``.

        Earlier submissions still read the former values. Inside a recording it is written at once,
        and is no part of that: replays read the values at their start. Initially it holds 0, 0
        and 1.

        Raises:
            VariableError: one of them is no int, or negative. Nothing has been written.
        """
        token, step = _checked_state("token", token), _checked_state("step", step)
        with Submission(self._block_accesses):
            self._write_state((token, step, step + 1))

    def set_dev_state_mode(self, enable: bool) -> None:
        """Choose whether kernels read ``token``, ``position`` and ``kv_len`` from the block.

        In this mode they ignore the values that a call was bound or submitted with, so one
        recording serves every step. Calls recorded in this mode read the block for good.
        """
        with Submission(self._block_accesses):
            self._set_mode(bool(enable))

    @property
    def decode_state(self) -> Mapping[str, int]:
        """The values of the variable block, by Variable."""
        return dict(zip(DECODE_VARIABLES, self._read_state(), strict=True))

    @property
    def resident_values(self) -> Mapping[str, int]:
        """The values of Variables that kernels read from the block; none outside dev-state mode."""
        return self.decode_state if self.dev_state_mode else _NO_VALUES

    # -- memory ------------------------------------------------------------------------------------

    @abstractmethod
    def _allocate(self, nbytes: int) -> Memory:
        """Zeroed memory of the device."""

    def storage(self, nbytes: int) -> Storage:
        """A storage that is allocated at its first use, also by a recorded one."""
        return Storage(self.device, nbytes, self.allocator, queue=self)

    @property
    def allocator(self) -> Callable[[int], Memory]:
        """The function that takes zeroed memory from the device."""
        return self._allocate

    def empty(self, type: TensorType) -> Buffer:
        """A buffer on zeroed memory of its own.

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
            InputError: it is no array, or of an unknown dtype.
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

        Unlike :meth:`upload` it may be called inside a recording, and is no part of that.
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
        """Encode ``ops``, in this order, to run on their buffers as one submission.

        Args:
            ops: the ops; their buffers' memory is taken now.
            variables: in the order in which kernels take them.

        Raises:
            PlanError: a buffer is another device's, or was released.
        """

    def submit(self, encode: Callable[[], Encoded]) -> futures.Future[int]:
        """Queue encoded ops behind all earlier submissions, and return at once.

        Inside a recording they are recorded instead, and the future is done.

        Args:
            encode: returns the encoded ops, encoded again if memory lent to them was exchanged.

        Returns:
            The nanoseconds of the run, or its error; 0 for ops that are recorded.
        """
        future: futures.Future[int] = futures.Future()
        self.enqueue(
            self._queue,
            encode().accesses,
            partial(_carry_out, _timed, encode, future),
            partial(_carry_out, _launched, encode, future),
        )
        return future

    def run(self, encode: Callable[[], Encoded]) -> int:
        """Submit encoded ops, and wait for them on the calling thread.

        Returns:
            As :meth:`submit`.
        """
        if self.capturing:
            return _launched(encode)
        self.refuse_while_capturing("a session submits to its own context")
        while True:
            encoded = encode()
            with Submission(encoded.accesses):
                if encode() is encoded:
                    return _timed(encode)
            # An earlier submission exchanged memory: the accesses may have changed.

    def enqueue(
        self,
        queue: Queue,
        accesses: Accesses,
        call: Callable[[], object],
        record: Callable[[], object],
    ) -> None:
        """Queue ``call``, and return at once; inside a recording, call ``record`` instead.

        Args:
            queue: any queue; waiting for this context includes it from now on.
            accesses: the memory that ``call`` touches.
            call: runs on the queue's thread, after the submissions that it conflicts with.
            record: runs on the calling thread.

        Raises:
            CaptureError: this thread records for another context.
        """
        if self.capturing:
            record()
            return
        self.refuse_while_capturing("a call is queued on its own context")
        with self._mutex:
            if all(known() is not queue for known in self._queues):
                living = [known for known in self._queues if known() is not None]
                self._queues = (*living, weakref.ref(queue))
        queue.submit(accesses, call)

    def synchronize(self) -> None:
        """Wait until all submissions are done.

        Raises:
            CaptureError: inside a recording, in which nothing runs.
        """
        self.refuse_while_capturing("synchronize waits")
        self._wait_for_queues()

    def _wait_for_queues(self) -> None:
        for known in self._queues:
            queue = known()
            if queue is not None:
                queue.wait()


def _carry_out(
    run: Callable[[Callable[[], Encoded]], int],
    encode: Callable[[], Encoded],
    future: futures.Future[int],
) -> None:
    try:
        future.set_result(run(encode))
    except BaseException as error:  # raised by the future, whatever it is
        future.set_exception(error)


def _timed(encode: Callable[[], Encoded]) -> int:
    encoded = encode()
    start = time.perf_counter_ns()
    encoded.launch()
    return time.perf_counter_ns() - start


def _launched(encode: Callable[[], Encoded]) -> int:
    encode().launch()
    return 0


def _checked_key(key: object) -> int:
    try:
        if not isinstance(key, bool):
            return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise CaptureError(f"recordings are kept under ints, got {key!r:.80}")


def _checked_state(name: str, value: object) -> int:
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several elements has the method, too
            number = -1
        if 0 <= number <= _MAX_STATE:
            return number
    raise VariableError(f"{name} is an int from 0 on, got {value!r:.80}")
