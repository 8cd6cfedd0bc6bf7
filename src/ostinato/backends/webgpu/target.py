"""The adapter that kernels are rendered for: what code generation depends on."""

from __future__ import annotations

from functools import cached_property

from ostinato.records import dataclass

__all__ = ["WebGpuTarget"]


@dataclass(frozen=True)
class WebGpuTarget:
    """A WebGPU device as code generation sees it. The defaults are those of the standard.

    Attributes:
        subgroups: whether the threads of a subgroup may exchange values without workgroup memory.
        halves: whether kernels may convert between floats of 32 and 16 bits by instructions.
        threads: the most threads of a workgroup.
        shared_bytes: the most bytes of workgroup memory.
        bindings: the most storage buffers of a kernel.
        part_bytes: the size of a storage buffer that holds a part of a larger block of memory; a
            multiple of 256. See :class:`~ostinato.backends.webgpu.kernel.Bindings`.
        iterations: the most iterations of a thread's loops, all together, which end there without
            an error; ``None``: they do not.
    """

    subgroups: bool = False
    halves: bool = False
    threads: int = 256
    shared_bytes: int = 16 << 10
    bindings: int = 8
    part_bytes: int = 128 << 20
    iterations: int | None = None

    @cached_property
    def identity(self) -> str:
        """Everything that generated code depends on."""
        return (
            f"{self.subgroups} {self.halves} {self.threads} {self.shared_bytes} {self.bindings} "
            f"{self.part_bytes} {self.iterations}"
        )
