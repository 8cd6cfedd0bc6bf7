"""Allocations of a session's results, before they have an address.

A node refers to an :class:`Allocation`; the user's buffer lies on a storage that belongs to it.
When the nodes are encoded, an allocation whose storage is still referenced is materialised in
memory of its own; all others share an arena.
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

__all__ = ["Allocation", "AllocationView", "Operand", "ResultStorage", "same_view"]


class Operand(Protocol):
    """An operand or result of a node: a buffer, or a view of an allocation."""

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


def same_view(a: Operand, b: Operand) -> bool:
    """Whether both are the same bytes with the same type."""
    return a.storage_id == b.storage_id and a.offset == b.offset and a.type == b.type


class Allocation:
    """Memory for the result of a node, without an address yet.

    Args:
        nbytes: its size.
        session: the identity of the session that makes it.
    """

    __slots__ = ("__weakref__", "_storage", "nbytes", "session")

    def __init__(self, nbytes: int, session: object) -> None:
        self.nbytes = nbytes
        self.session = session
        self._storage: weakref.ref[ResultStorage] | None = None

    @property
    def storage(self) -> ResultStorage | None:
        """The storage of the user's buffers, as long as one is referenced."""
        return None if self._storage is None else self._storage()

    def lend(
        self, device: Any, allocate: Callable[[int], Memory], queue: DeviceQueue
    ) -> ResultStorage:
        """Make the storage of the user's buffer; see :class:`~ostinato.plan.buffer.Storage`."""
        storage = ResultStorage(self, device, allocate, queue)
        self._storage = weakref.ref(storage)
        return storage


class ResultStorage(Storage):
    """Memory of a result that the user holds, not to be read before its session is submitted."""

    def __init__(
        self,
        allocation: Allocation,
        device: Any,
        allocate: Callable[[int], Memory],
        queue: DeviceQueue,
    ) -> None:
        super().__init__(device, allocation.nbytes, allocate, queue)
        self.allocation = allocation
        self.submitted = False

    def check_open(self) -> None:
        """Check that the memory may be used.

        Raises:
            SessionStateError: the session that writes it has not been finished.
            PlanError: it was released.
        """
        if not self.submitted:
            raise SessionStateError(
                "this is the result of a session that has not been finished: it has no contents yet"
            )
        super().check_open()


class AllocationView:
    """A range of an allocation, as a tensor.

    Attributes:
        allocation: the memory.
        offset: of its first byte in the allocation.
        type: dtype and shape.
    """

    __slots__ = ("allocation", "end", "nbytes", "offset", "storage_id", "type")

    def __init__(self, allocation: Allocation, offset: int, type: TensorType) -> None:
        self.allocation = allocation
        self.offset = offset
        self.type = type
        self.nbytes = type.max_bytes
        self.end = offset + self.nbytes
        self.storage_id = id(allocation)

    def __repr__(self) -> str:
        return f"<AllocationView {self.type} of result {self.storage_id:#x}, {self.nbytes} bytes>"
