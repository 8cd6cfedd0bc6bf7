"""The code of kernels on a GPU, and as plans show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.cuda.control import CudaControl
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.rules.library import LibraryProduct
from ostinato.cache.objects import process_cache
from ostinato.lower.control import Control
from ostinato.lower.loopir.text import kernel_text
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.common.program_image import ObjectCode
    from ostinato.backends.cuda.gpu import Gpu, Library
    from ostinato.backends.cuda.toolchain import Toolchain
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.variables import Symbol

__all__ = ["CudaCode", "KernelCode", "load_image", "load_objects"]


@dataclass(frozen=True)
class KernelCode:
    """A kernel as it was compiled.

    Attributes:
        kernel: the kernel; ``None``: a library computes it, or the step only marks where control
            flow goes on.
        described: the kernel that it was made of.
        toolchain: its compiler.
    """

    kernel: CudaKernel | None
    described: Kernel
    toolchain: Toolchain

    @property
    def name(self) -> str:
        """Its symbol, or what it does where it has none."""
        if self.kernel is None:
            return kernel_text(self.described).split("\n", 1)[0]
        return self.kernel.name

    @property
    def shape(self) -> tuple[Any, ...]:
        """The fields of its launch."""
        if self.kernel is None:
            return 0, 0
        at = self.kernel.launch(self.toolchain.target)
        return at.grid, at.block, at.shared_bytes, at.cooperative, at.programmatic, at.maps

    @property
    def source(self) -> str:
        """Its CUDA C++, rendered once more: objects are all that is kept."""
        if self.kernel is None:
            return kernel_text(self.described)
        return self.kernel.source(self.toolchain.target)

    @property
    def assembly(self) -> str | None:
        """Its machine code or PTX as text, compiled once more."""
        return None if self.kernel is None else self.toolchain.assembly(self.kernel)


class CudaCode:
    """The compiled kernels of a program.

    Args:
        kernels: of the program; those of control flow are still the shared ones.
        variables: the Variables of the program.
        toolchain: compiles them.
        progress: called as kernels are compiled.

    Attributes:
        objects: by the cache's key, an object and its symbols.
    """

    def __init__(
        self,
        kernels: Iterable[Kernel],
        variables: tuple[Symbol, ...],
        toolchain: Toolchain,
        progress: Progress | None = None,
    ) -> None:
        self._codes = {
            kernel: KernelCode(_on_device(kernel, variables), kernel, toolchain)
            for kernel in kernels
        }
        found = {c.kernel.name: c.kernel for c in self._codes.values() if c.kernel is not None}
        self.objects: Mapping[str, tuple[bytes, Sequence[str]]] = (
            toolchain.compile(list(found.values()), progress) if found else {}
        )

    def code(self, kernel: Kernel) -> KernelCode:
        """The code of a kernel."""
        return self._codes[kernel]


def _on_device(kernel: Kernel, variables: tuple[Symbol, ...]) -> CudaKernel | None:
    """The device's kernel for one of a program."""
    if isinstance(kernel, LibraryProduct):
        return None
    if isinstance(kernel, Control):
        return CudaControl.of(kernel, variables) if kernel.decides else None
    assert isinstance(kernel, CudaKernel)
    return kernel


def load_objects(
    gpu: Gpu, objects: Mapping[str, tuple[bytes, Sequence[str]]]
) -> dict[str, Library]:
    """By symbol, the library that has it."""
    return {
        symbol: library
        for key, (data, symbols) in objects.items()
        for library in [gpu.library(key, data)]
        for symbol in symbols
    }


def load_image(gpu: Gpu, objects: Iterable[ObjectCode]) -> dict[str, Library] | None:
    """The same for a stored program; ``None`` if some of it is no longer in the cache."""
    found = {}
    for key, symbols in objects:
        data = process_cache().find(key)
        if data is None:
            return None
        found[key] = (data, symbols)
    return load_objects(gpu, found)
