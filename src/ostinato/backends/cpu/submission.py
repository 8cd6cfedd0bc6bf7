"""Memory of the native core, and steps of its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.program_memory import BlockKind
from ostinato.backends.cpu import _core
from ostinato.plan.buffer import HostMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.compiler import BuiltinKernel, CompiledKernel

__all__ = ["Arenas", "allocate", "copy_step", "discard_step", "kernel_step"]

#: Bytes of a copy that one thread takes at a time.
_COPIED_AT_ONCE = 1 << 18


class Arenas(BlockKind[_core.Arena]):
    """See :class:`~ostinato.backends.common.program_memory.BlockKind`."""

    def allocate(self, nbytes: int) -> _core.Arena:
        return _core.Arena(nbytes)

    def duplicate(self, block: _core.Arena) -> _core.Arena:
        twin = _core.Arena(block.nbytes)
        memoryview(twin)[:] = memoryview(block)
        return twin

    def memory(self, block: _core.Arena) -> HostMemory:
        return HostMemory(block)


def allocate(nbytes: int) -> HostMemory:
    """Zeroed host memory."""
    return HostMemory(_core.Arena(nbytes))


def kernel_step(
    compiled: CompiledKernel | BuiltinKernel, arguments: Sequence[_core.Argument]
) -> _core.Step:
    """The step that runs a kernel on arguments, each ``(slot, byte_offset)``."""
    return (compiled.address, arguments, *compiled.launch)


def copy_step(target: _core.Argument, source: _core.Argument, nbytes: int) -> _core.Step:
    """The step that copies bytes from ``source`` to ``target``, each ``(slot, byte_offset)``."""
    return (_core.memcpy_kernel, (target, source), nbytes, 0, _COPIED_AT_ONCE, 0)


def discard_step(place: _core.Argument, nbytes: int) -> _core.Step:
    """The step that gives pages back to the system; they read as zero afterwards."""
    return (_core.discard_kernel, (place,), nbytes, 0, max(1, nbytes), 0, False)
