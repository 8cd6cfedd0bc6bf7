"""Copy-on-write memory, which clones of a compiled graph share until one writes it."""

from __future__ import annotations

import weakref

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.cpu import _core

__all__ = ["CopyOnWriteBlock"]


class _Block:
    """Memory and, held weakly, the references of those that read it."""

    def __init__(self, nbytes: int) -> None:
        self.arena = _core.Arena(nbytes)
        self.sharers: weakref.WeakSet[CopyOnWriteBlock] = weakref.WeakSet()


class CopyOnWriteBlock:
    """A copy-on-write reference to a block of memory: a shared block is copied before a write.

    Attributes:
        guard: to be held while a block is shared, unshared or written. All references that ever
            shared a block have the same one, so that no block is written while it is copied.
    """

    def __init__(self, nbytes: int) -> None:
        self.guard = Mutex()
        self._enter(_Block(nbytes))

    @property
    def arena(self) -> _core.Arena:
        """The memory, until :meth:`unshare`."""
        return self._block.arena

    def share(self) -> CopyOnWriteBlock:
        """Another reference to the same block."""
        other = CopyOnWriteBlock.__new__(CopyOnWriteBlock)
        other.guard = self.guard
        other._enter(self._block)
        return other

    def unshare(self) -> bool:
        """Copy the block if it is shared, before a write; return whether it was copied."""
        left = self._block
        if len(left.sharers) == 1:
            return False
        self._enter(_Block(left.arena.nbytes))
        memoryview(self.arena)[:] = memoryview(left.arena)
        left.sharers.discard(self)
        return True

    def _enter(self, block: _Block) -> None:
        self._block = block
        block.sharers.add(self)
