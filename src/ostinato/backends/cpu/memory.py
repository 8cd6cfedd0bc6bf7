"""Copy-on-write memory, which clones of a compiled graph share until one writes it."""

from __future__ import annotations

import weakref

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.cpu import _core

__all__ = ["Tenancy"]


class _Block:
    """Memory, and those who read it. What reads it keeps its tenancy alive, and nothing else."""

    def __init__(self, nbytes: int) -> None:
        self.arena = _core.Arena(nbytes)
        self.tenants: weakref.WeakSet[Tenancy] = weakref.WeakSet()


class Tenancy:
    """A claim to read a block of memory that others may read too; before it writes, it moves out.

    Attributes:
        guard: to be held while tenants join, move out or write; all who ever shared a block have
            the same one, so that nobody writes what somebody else is about to copy or to share.
    """

    def __init__(self, nbytes: int) -> None:
        self.guard = Mutex()
        self._enter(_Block(nbytes))

    @property
    def arena(self) -> _core.Arena:
        """The memory, as long as this tenant does not move out."""
        return self._block.arena

    def join(self) -> Tenancy:
        """A claim of somebody else to the same block."""
        other = Tenancy.__new__(Tenancy)
        other.guard = self.guard
        other._enter(self._block)
        return other

    def move_out(self) -> bool:
        """Have the block to oneself: a copy of it, if others read it. Whether it is a copy."""
        left = self._block
        if len(left.tenants) == 1:
            return False
        self._enter(_Block(left.arena.nbytes))
        memoryview(self.arena)[:] = memoryview(left.arena)
        left.tenants.discard(self)
        return True

    def _enter(self, block: _Block) -> None:
        self._block = block
        block.tenants.add(self)
