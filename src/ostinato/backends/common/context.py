"""A device's command queue: what is submitted to it runs in order, or is recorded to be replayed.

All that devices share lives here, above all the rules of recording. The order of what is submitted
is kept by the memory that it touches (:mod:`ostinato.plan.order`), across all contexts.
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
    """The command queue of a device, and what it recorded. A session has one.

    It may be used from many threads. What they submit takes effect in the order in which they
    submitted it, as far as it touches the same memory; what does not, runs in parallel. A recording
    is made by one thread, and of what that thread submits.

    Args:
        device: whose queue it is.

    Attributes:
        device: whose queue it is.
        label: names it in messages.
        supports_capture: whether it can record; else :meth:`begin_graph_capture` raises.
    """

    supports_capture = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.label = f"context {id(self):#x} of {device}"
        self._shelf = Mutex()  # guards what is kept to be run again
        self._recordings: dict[int, KeptRecording] = {}
        self._serials = itertools.count(1)
        self._after: list[Callable[[], object]] = []  # of the recording that is being made
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
        """Whether what the calling thread submits now is recorded, not run."""

    @property
    @abstractmethod
    def capturing_number(self) -> int:
        """The number of the recording that any thread makes here, or 0."""

    @property
    @abstractmethod
    def captured_calls(self) -> int:
        """How many submissions the recording that is being made holds so far."""

    @abstractmethod
    def _begin(self, exclusive: bool) -> None:
        """Record from now on what the calling thread submits; see :meth:`begin_graph_capture`."""

    @abstractmethod
    def _end(self) -> Recording:
        """Record no longer; what was recorded.

        Raises:
            CaptureError: what made the recording fail.
        """

    @abstractmethod
    def _cancel(self) -> None:
        """Record no longer, and forget what was."""

    @abstractmethod
    def _capture_uses(self, memory: object) -> bool:
        """Whether what was recorded so far touches this memory, or runs this program."""

    def begin_graph_capture(self, *, exclusive: bool = False) -> None:
        """Record from now on: what this thread submits is not run, until :meth:`end_graph_capture`.

        What was queued before still runs: this waits for it. What other threads submit runs as
        ever, and so does what this thread submits to another context, unless ``exclusive``.

        Args:
            exclusive: refuse with :class:`CaptureError` what this thread submits to another
                context, and let the recording fail: a replay would leave it out.

        Raises:
            CaptureError: this thread records already, and goes on doing so; or another one records
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
        self._settle()
        self._begin(exclusive)
        self._after = []

    def end_graph_capture(self, key: int) -> None:
        """Keep what was recorded under ``key``, in the place of an older recording.

        Raises:
            CaptureError: this thread records nothing here; or ``key`` is no int, and recording
                goes on; or the recording has failed, and is dropped: something was submitted to
                another context, or memory that it uses was changed or given back.
        """
        if not self.capturing:
            raise CaptureError(
                "end_graph_capture without a begin_graph_capture"
                + (" of this thread: another one records" if self.capturing_number else "")
            )
        number = _checked_key(key)
        after, self._after = self._after, []
        kept = KeptRecording(next(self._serials), self._end(), after)
        with self._shelf:
            self._recordings[number] = kept

    def cancel_graph_capture(self) -> None:
        """Drop what is being recorded, by whichever thread. Recordings made before stay."""
        if self.capturing_number:
            self._after = []
            self._cancel()

    def replay_graph(self, key: int) -> bool:
        """Run what was recorded under ``key``, behind all that was submitted before, and wait.

        Returns:
            ``False`` when there is no such recording, or no longer: nothing has happened.

        Raises:
            CaptureError: inside a recording, or ``key`` is no int.
            VariableError: the variable block has a value that does not fit. Nothing has run.
        """
        kept = self._recordings.get(_checked_key(key))
        if kept is None:
            return False
        self.refuse_while_capturing("replay_graph waits")
        with Submission(kept.recording.accesses):
            if kept.dropped:  # by what was submitted before, and ran while this waited
                return False
            kept.replay()
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
            CaptureError: the calling thread records, and goes on doing so; or it makes an exclusive
                recording of another context, which has failed.
        """
        if self.capturing:
            raise CaptureError(
                f"{what}, which a recording can not hold; call it before begin_graph_capture or "
                "after end_graph_capture"
            )
        _order.refuse_elsewhere(self.capturing_number, self.label, CaptureError)

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        """Drop every recording that uses this memory; see :meth:`MemoryOrder.memory_changes`."""
        if (number := self.capturing_number) and self._capture_uses(memory):
            message = "memory that the recording uses was exchanged or given back while it was made"
            _order.fail_recording(number, message)
        if not self._recordings:
            return
        with self._shelf:
            users = [(k, r) for k, r in self._recordings.items() if r.recording.uses(memory)]
            for key, kept in users:
                kept.dropped = True
                self._recordings.pop(key, None)  # letting go may run code that resets it

    def after_replay(self, call: Callable[[], object]) -> None:
        """Have ``call`` be part of every replay of what is being recorded."""
        if self.capturing:
            self._after.append(call)

    # -- the variable block ------------------------------------------------------------------------

    @property
    @abstractmethod
    def _block_accesses(self) -> Accesses:
        """What a write of the variable block touches."""

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
        with Submission(self._block_accesses):
            self._write_state((token, step, step + 1))

    def set_dev_state_mode(self, enable: bool) -> None:
        """Whether Variables named ``token``, ``position`` and ``kv_len`` live in the block.

        In this mode kernels read them there, whatever a call was bound or submitted with, so one
        recording serves every step. What is recorded in this mode reads them there for good.
        """
        with Submission(self._block_accesses):
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

        Unlike :meth:`upload` it may be called inside a recording: it is no part of that.
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

    def submit(self, encode: Callable[[], Encoded]) -> futures.Future[int]:
        """Queue encoded ops behind what was submitted before, and return at once.

        Inside a recording they are recorded instead, and the future is done.

        Args:
            encode: gives the ops, encoded anew where memory that is lent to them was exchanged.

        Returns:
            The nanoseconds that they take to run, or what they raise; 0 for what is recorded.
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
            # What ran in the meantime exchanged memory: the accesses may be others now.

    def enqueue(
        self,
        queue: Queue,
        accesses: Accesses,
        call: Callable[[], object],
        record: Callable[[], object],
    ) -> None:
        """Queue ``call``, and return at once; inside a recording, call ``record`` instead.

        Args:
            queue: any; what waits for this context's work waits for that on it, too.
            accesses: the memory that ``call`` touches.
            call: runs on the queue's thread, when its turn has come.
            record: runs here and now.

        Raises:
            CaptureError: this thread records for another context.
        """
        if self.capturing:
            record()
            return
        self.refuse_while_capturing("a call is queued on its own context")
        with self._shelf:
            if all(known() is not queue for known in self._queues):
                living = [known for known in self._queues if known() is not None]
                self._queues = (*living, weakref.ref(queue))
        queue.submit(accesses, call)

    def synchronize(self) -> None:
        """Wait until all that was submitted is done.

        Raises:
            CaptureError: inside a recording: nothing was submitted that could be waited for.
        """
        self.refuse_while_capturing("synchronize waits")
        self._settle()

    def _settle(self) -> None:
        for known in self._queues:
            queue = known()
            if queue is not None:
                queue.settle()


def _carry_out(
    run: Callable[[Callable[[], Encoded]], int],
    encode: Callable[[], Encoded],
    future: futures.Future[int],
) -> None:
    try:
        future.set_result(run(encode))
    except BaseException as error:  # whatever it is belongs to the one who waits
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
