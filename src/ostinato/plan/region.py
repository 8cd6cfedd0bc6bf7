"""Memory of a session's results, before it is settled where it will be.

While ops are being encoded, nobody knows yet which results the user will keep. So nodes refer to a
:class:`Region`, and the user holds a buffer on a storage that belongs to it. A region whose
storage is still held when the nodes are made ready to run gets memory of its own; the others share
an arena.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.errors import SessionStateError
from ostinato.plan.buffer import Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.ir.types import TensorType
    from ostinato.plan.buffer import DeviceQueue, Memory

__all__ = ["Operand", "Piece", "Region", "ResultStorage", "same_place"]


class Operand(Protocol):
    """What a node reads or writes: a buffer, or a piece of a region."""

    @property
    def storage_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def type(self) -> TensorType: ...


def same_place(a: Operand, b: Operand) -> bool:
    """Whether both are the same bytes, seen as the same elements."""
    return a.storage_id == b.storage_id and a.offset == b.offset and a.type == b.type


class Region:
    """Room for the result of a node.

    Args:
        nbytes: its size.
        session: what stands for the session that makes it.
    """

    __slots__ = ("__weakref__", "_storage", "nbytes", "session")

    def __init__(self, nbytes: int, session: object) -> None:
        self.nbytes = nbytes
        self.session = session
        self._storage: weakref.ref[ResultStorage] | None = None

    @property
    def storage(self) -> ResultStorage | None:
        """What a user's buffers hold, while there are any."""
        return None if self._storage is None else self._storage()

    def lend(
        self, device: Any, allocate: Callable[[int], Memory], queue: DeviceQueue
    ) -> ResultStorage:
        """The storage for the user's buffer; see :class:`~ostinato.plan.buffer.Storage`."""
        storage = ResultStorage(self, device, allocate, queue)
        self._storage = weakref.ref(storage)
        return storage


class ResultStorage(Storage):
    """Memory of a result that the user holds. There is none before what fills it is submitted."""

    def __init__(
        self, region: Region, device: Any, allocate: Callable[[int], Memory], queue: DeviceQueue
    ) -> None:
        super().__init__(device, region.nbytes, allocate, queue)
        self.region = region
        self.submitted = False

    def check_open(self) -> None:
        """Raise what keeps the memory from being used.

        Raises:
            SessionStateError: the session that fills it has not been finished.
            PlanError: it was given back for good.
        """
        if not self.submitted:
            raise SessionStateError(
                "this is the result of a session that has not been finished: it has no contents yet"
            )
        super().check_open()


class Piece:
    """A range of a region, seen as a tensor.

    Attributes:
        region: the memory.
        offset: where in it the piece starts, in bytes.
        type: dtype and shape.
    """

    __slots__ = ("end", "nbytes", "offset", "region", "storage_id", "type")

    def __init__(self, region: Region, offset: int, type: TensorType) -> None:
        self.region = region
        self.offset = offset
        self.type = type
        self.nbytes = type.max_bytes
        self.end = offset + self.nbytes
        self.storage_id = id(region)

    @property
    def whole(self) -> bool:
        """Whether it is all of the region."""
        return self.nbytes == self.region.nbytes

    def __repr__(self) -> str:
        return f"<Piece {self.type} of result {self.storage_id:#x}, {self.nbytes} bytes>"
