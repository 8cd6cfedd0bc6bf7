"""The command queue of a device: submissions run in order, or are recorded to be replayed.

Submissions are ordered by the memory that they touch (:mod:`ostinato.plan.order`), across all
contexts. See :mod:`ostinato.backends.common.recorder` for recordings, and
:mod:`ostinato.backends.common.decode_state` for Variables in memory.
"""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.compiled_op_cache import CompiledOpCache
from ostinato.backends.common.decode_state import DecodeState
from ostinato.backends.common.mutex import Mutex
from ostinato.backends.common.queue import Queue
from ostinato.backends.common.recorder import Recorder
from ostinato.dtypes import DType
from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import as_numpy
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.plan.buffer import Array, Buffer, Storage, bytes_of
from ostinato.plan.order import Accesses, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent import futures

    from ostinato.backends.common.encoded import Encoded
    from ostinato.backends.device import Device
    from ostinato.plan.buffer import Memory
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["Context"]


class Context(Recorder, DecodeState, CompiledOpCache):
    """The command queue of a device, with its recordings. A session has one.

    It may be used from many threads. Submissions that touch the same memory take effect in the
    order in which they are made; all others run in parallel.

    Args:
        device: the device.
    """

    def __init__(self, device: Device) -> None:
        CompiledOpCache.__init__(self)
        self._queues_mutex = Mutex()
        self._queues: tuple[weakref.ref[Queue], ...] = ()  # those that were ever used
        self._queue = Queue()
        super().__init__(device)

    def __repr__(self) -> str:
        doing = "recording" if self.capturing else f"recordings: {sorted(self._recordings)}"
        return f"<{type(self).__name__} of {self.device}, {doing}>"

    # -- memory ------------------------------------------------------------------------------------

    @abstractmethod
    def _allocate(self, nbytes: int) -> Memory:
        """Zeroed memory of the device."""

    @property
    def free_memory(self) -> int | None:
        """Free bytes of the device's memory; ``None``: it is the host's, or does not tell."""
        return None

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
        with self._queues_mutex:
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
