"""The order of all submissions that touch memory, one list for the process.

A submission enters the list with the ranges of bytes that it reads and writes, and waits for the
earlier ones that it conflicts with. Submissions that share memory therefore take effect in order,
through whichever object or context they were made, and all others run in parallel. The list is
native (``csrc/order_list.c``), since a bound call enters and leaves it in a few nanoseconds.

A device that runs asynchronously keeps the same order by its own means: a stream waits for the
events of earlier submissions.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ostinato.plan import _order
from ostinato.plan._order import Accesses, Submission
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["NOTHING", "ORDER", "Accesses", "MemoryOrder", "Submission", "arrays_touched"]

#: The accesses of a submission that touches no further memory.
NOTHING = Accesses(())


class MemoryUser(Protocol):
    """A context that is notified of changes of memory."""

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        """Drop the recordings that use this memory; see :meth:`MemoryOrder.memory_changes`."""


class MemoryOrder:
    """The contexts that share the memory of this process, and the list of their submissions."""

    def __init__(self) -> None:
        self._users: dict[int, weakref.ref[MemoryUser]] = {}

    def join(self, user: MemoryUser) -> None:
        """Notify a context of changes of memory from now on."""
        key = id(user)
        self._users[key] = weakref.ref(user, lambda _: self._users.pop(key, None))

    def memory_changes(self, memory: object, *, replaced: bool = False) -> None:
        """Drop the recordings that use this memory, on whichever context they are.

        Args:
            memory: the block, array, lent storage or program that was replaced or given back. A
                tuple concerns the users of all its items: of a lent storage and its former block,
                those that have not moved to the new block.
            replaced: the block is exchanged or gone: all else that was encoded on the old one must
                raise from now on.
        """
        for known in list(self._users.values()):  # one step: others may join meanwhile
            if (user := known()) is not None:
                user.memory_changed(memory, replaced=replaced)

    @property
    def in_flight(self) -> int:
        """The number of submissions that have not taken effect yet."""
        return _order.in_flight()

    @property
    def on_yield(self) -> Callable[[str], object] | None:
        """A hook at the points where threads may be switched, for tests that force switches.

        The points are ``"enter"``, before a submission enters the list; ``"wait"``, repeatedly
        while it waits; ``"begin"``, when it starts; ``"leave"``, when it has taken effect.
        """
        hook = _order.set_hook(None)
        _order.set_hook(hook)
        return hook

    @on_yield.setter
    def on_yield(self, hook: Callable[[str], object] | None) -> None:
        _order.set_hook(hook)


#: The only instance: a second one could not order accesses to the same bytes against this one's.
ORDER = MemoryOrder()


def arrays_touched(read: Iterable[Any], written: Iterable[Any] = ()) -> Accesses:
    """The memory of arrays of the host or a device; what is no array is left out."""
    ranges = [span for array in read if (span := _span(array, False)) is not None]
    ranges += [span for array in written if (span := _span(array, True)) is not None]
    return Accesses(ranges) if ranges else NOTHING


def _span(array: Any, written: bool) -> tuple[int, int, bool] | None:
    if isinstance(array, DeviceArray):
        return (array.address, array.nbytes, written) if array.nbytes else None
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    start: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, array.nbytes, written
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    before = sum(offset for offset in reach if offset < 0)
    after = sum(offset for offset in reach if offset > 0)
    return start + before, after - before + array.itemsize, written
