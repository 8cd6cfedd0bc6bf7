"""Memory of the native core, as executables of any device hold it."""

from __future__ import annotations

from ostinato.backends.cpu import _core
from ostinato.plan.buffer import HostMemory

__all__ = ["Arenas"]


class Arenas:
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`."""

    def allocate(self, nbytes: int) -> _core.Arena:
        return _core.Arena(nbytes)

    def duplicate(self, block: _core.Arena) -> _core.Arena:
        twin = _core.Arena(block.nbytes)
        memoryview(twin)[:] = memoryview(block)
        return twin

    def memory(self, block: _core.Arena) -> HostMemory:
        return HostMemory(block)
