"""Copy-on-write memory, which clones of a compiled graph share until one writes it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from ostinato.backends.common.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CopyOnWriteBlock"]

M = TypeVar("M")


class _Block(Generic[M]):
    """Memory and, held weakly, the references of those that read it."""

    def __init__(self, memory: M) -> None:
        self.memory = memory
        self.sharers: weakref.WeakSet[CopyOnWriteBlock[M]] = weakref.WeakSet()


class CopyOnWriteBlock(Generic[M]):
    """A copy-on-write reference to a block of memory: a shared block is copied before a write.

    Args:
        memory: the block, of any device.
        duplicate: makes a copy of a block.

    Attributes:
        guard: to be held while a block is shared, unshared or written. All references that ever
            shared a block have the same one, so that no block is written while it is copied.
    """

    def __init__(self, memory: M, duplicate: Callable[[M], M]) -> None:
        self.guard = Mutex()
        self._duplicate = duplicate
        self._enter(_Block(memory))

    @property
    def memory(self) -> M:
        """The memory, until :meth:`unshare`."""
        return self._block.memory

    def share(self) -> CopyOnWriteBlock[M]:
        """Another reference to the same block."""
        other: CopyOnWriteBlock[M] = CopyOnWriteBlock.__new__(CopyOnWriteBlock)
        other.guard = self.guard
        other._duplicate = self._duplicate
        other._enter(self._block)
        return other

    def unshare(self) -> bool:
        """Copy the block if it is shared, before a write; return whether it was copied."""
        left = self._block
        if len(left.sharers) == 1:
            return False
        self._enter(_Block(self._duplicate(left.memory)))
        left.sharers.discard(self)
        return True

    def exchange(self, memory: M) -> None:
        """Take another block with the same contents, which is not shared yet."""
        self._enter(_Block(memory))

    def _enter(self, block: _Block[M]) -> None:
        self._block = block
        block.sharers.add(self)
