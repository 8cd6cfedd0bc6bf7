"""Steps on the host: kernels that the device lacks, compiled for the CPU and run on copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.agreed import agreed_property
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.host import usable_processors
from ostinato.backends.cpu.image import Step as CpuStep
from ostinato.backends.cpu.loader.link import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.llvm.toolchain import LinkedCode
    from ostinato.backends.webgpu.image import HostStep

__all__ = ["HostKernels", "HostProgram", "linked"]

Array = np.ndarray[Any, Any]

#: The least memory of an argument: one without elements has an address, too.
_LEAST_BYTES = 64


class HostKernels:
    """Threads of the host that run kernels of the CPU.

    Args:
        threads: their number; by default one for each processor that the process may use.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    @agreed_property
    def _pool(self) -> _core.ThreadPool:
        return _core.ThreadPool(self._threads or usable_processors())

    def program(self, step: HostStep, code: LinkedCode | None, variables: int) -> HostProgram:
        """The program of one step.

        Args:
            step: the step.
            code: the machine code of its kernel; ``None``: the kernel is built in.
            variables: the number of Variables that kernels read.
        """
        count = len(step.arguments)
        cpu = CpuStep(*step.launch)._replace(arguments=tuple((n, 0) for n in range(count)))
        slots: list[_core.Slot] = [(0, written) for written in step.writes]
        native = _core.Program(self._pool, slots, [cpu.native(code, {})], variables, owner=code)
        return HostProgram(native, step.writes)


class HostProgram:
    """A kernel of the CPU.

    Attributes:
        writes: by argument, whether it is written.
    """

    def __init__(self, native: _core.Program, writes: tuple[bool, ...]) -> None:
        self._native = native
        self.writes = writes

    @staticmethod
    def memory(nbytes: int) -> Array:
        """Memory for an argument."""
        return np.zeros(max(nbytes, _LEAST_BYTES), np.uint8)

    def run(self, arguments: Sequence[Array], variables: Sequence[int]) -> None:
        """Run on copies of the arguments; those that it writes are changed."""
        self._native.run(list(arguments), list(variables))


def linked(objects: Sequence[tuple[bytes, Sequence[str]]]) -> LinkedCode | None:
    """Machine code, ready to run; ``None`` if there is none."""
    return load(list(objects)) if objects else None
