"""The order of everything that touches memory: one for the process, as memory is.

What is submitted takes its place in one list, with the ranges of bytes that it reads and writes,
and waits for those before it that it conflicts with. So whatever shares memory takes effect in the
order of submission, whichever object or context it went through, and all else runs in parallel. The
list itself is native (``csrc/order.c``), since a bound call takes and leaves its place in a few
nanoseconds.

A device that runs asynchronously does the same with its own means: where the processor waits for
its turn, a stream waits for the events of the submissions before it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ostinato.plan import _order
from ostinato.plan._order import Accesses, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["NOTHING", "ORDER", "Accesses", "MemoryOrder", "Submission", "arrays_touched"]

#: For what touches no memory but what another :class:`Accesses` names.
NOTHING = Accesses(())


class MemoryUser(Protocol):
    """A context, as far as changes of memory concern it."""

    def memory_changed(self, memory: object, *, replaced: bool) -> None:
        """Drop the recordings that use this memory; see :meth:`MemoryOrder.memory_changes`."""


class MemoryOrder:
    """The contexts that share the memory of this process, and the list of their submissions."""

    def __init__(self) -> None:
        self._users: weakref.WeakSet[MemoryUser] = weakref.WeakSet()

    def join(self, user: MemoryUser) -> None:
        """Have a context told of memory that changes."""
        self._users.add(user)

    def memory_changes(self, memory: object, *, replaced: bool = False) -> None:
        """Drop the recordings that use this memory, on whichever context they are.

        Args:
            memory: a block, an array, a storage that is lent, or a program: what was replaced,
                exchanged or given back.
            replaced: the block is another one from now on, or gone: what else was made ready to run
                on the old one must raise instead.
        """
        for user in list(self._users):
            user.memory_changed(memory, replaced=replaced)

    @property
    def in_flight(self) -> int:
        """The number of submissions that have not taken effect yet."""
        return _order.in_flight()

    @property
    def on_yield(self) -> Callable[[str], object] | None:
        """Called where threads may be switched, for tests that force that to happen.

        The points are ``"enter"``, before a submission takes its place; ``"wait"``, again and again
        while it waits; ``"begin"``, when its turn has come; ``"leave"``, when it has taken effect.
        """
        hook = _order.set_hook(None)
        _order.set_hook(hook)
        return hook

    @on_yield.setter
    def on_yield(self, hook: Callable[[str], object] | None) -> None:
        _order.set_hook(hook)


#: The one there is: a second could not know what the first one lets touch the same bytes.
ORDER = MemoryOrder()


def arrays_touched(read: Iterable[Any], written: Iterable[Any] = ()) -> Accesses:
    """The memory of NumPy arrays; what is no array is left out."""
    ranges = [span for array in read if (span := _span(array, False)) is not None]
    ranges += [span for array in written if (span := _span(array, True)) is not None]
    return Accesses(ranges) if ranges else NOTHING


def _span(array: Any, written: bool) -> tuple[int, int, bool] | None:
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    start: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, array.nbytes, written
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    before = sum(offset for offset in reach if offset < 0)
    after = sum(offset for offset in reach if offset > 0)
    return start + before, after - before + array.itemsize, written
