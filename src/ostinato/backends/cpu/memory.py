"""Copy-on-write memory, which clones of a compiled graph share until one writes it."""

from __future__ import annotations

import weakref

from ostinato.backends.common.mutex import Mutex
from ostinato.backends.cpu import _core

__all__ = ["Tenancy"]


class _Block:
    """Memory and the sharers that read it, which alone keep it alive."""

    def __init__(self, nbytes: int) -> None:
        self.arena = _core.Arena(nbytes)
        self.tenants: weakref.WeakSet[Tenancy] = weakref.WeakSet()


class Tenancy:
    """A copy-on-write reference to a block of memory: a shared block is copied before a write.

    Attributes:
        guard: to be held while sharers join, move out or write. All that ever shared a block have
            the same one, so that no block is written while another sharer copies or joins it.
    """

    def __init__(self, nbytes: int) -> None:
        self.guard = Mutex()
        self._enter(_Block(nbytes))

    @property
    def arena(self) -> _core.Arena:
        """The memory, until :meth:`move_out`."""
        return self._block.arena

    def join(self) -> Tenancy:
        """Another reference to the same block."""
        other = Tenancy.__new__(Tenancy)
        other.guard = self.guard
        other._enter(self._block)
        return other

    def move_out(self) -> bool:
        """Copy the block if it is shared, before a write; return whether it was copied."""
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
