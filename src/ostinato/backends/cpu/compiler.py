"""Compilation of kernels to machine code, cached by content, and linked at once."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu import _core
from ostinato.backends.cpu.host import usable_processors
from ostinato.backends.cpu.rules.kernel import CpuKernel, CpuSizeStep
from ostinato.cache.builds import build_all
from ostinato.cache.fingerprint import object_key
from ostinato.lower.control import Control
from ostinato.lower.loopir.text import kernel_text
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec
    from ostinato.cache.objects import ObjectCache
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.variables import Dim, Symbol

__all__ = [
    "BuiltinKernel",
    "CompiledKernel",
    "ControlCode",
    "KernelCompiler",
    "MachineCode",
    "SizeCode",
]


@dataclass(frozen=True)
class CompiledKernel:
    """The address of a kernel's code, and what it was compiled from.

    Attributes:
        name: its symbol.
        address: of the kernel.
        extent_address: of the function that returns its extent; 0 if that is a constant.
        kernel: its loop IR.
        target: the processor that it was compiled for.
        linked: owner of the code.
    """

    name: str
    address: int
    extent_address: int
    kernel: CpuKernel
    target: TargetSpec
    linked: LinkedCode

    @cached_property
    def launch(self) -> tuple[int, int, int, int, bool]:
        """The launch: the part of a native step that follows its arguments."""
        kernel = self.kernel
        extent = kernel.extent if isinstance(kernel.extent, int) else 0
        return extent, self.extent_address, kernel.grain, kernel.scratch_bytes, kernel.parallel

    @property
    def extent_symbol(self) -> str:
        """The symbol of the function that returns its extent; empty if that is a constant."""
        return f"{self.name}_extent" if self.extent_address else ""

    @property
    def source(self) -> str:
        """Its LLVM IR, before optimisation, rendered once more: objects are all that is kept."""
        from ostinato.backends.cpu.llvm import render

        return str(render(self.kernel, self.name, self.target))

    @property
    def assembly(self) -> str:
        """Its machine code as text, compiled once more."""
        from ostinato.backends.cpu.llvm.toolchain import assembly

        return assembly(self.source, self.target)


@dataclass(frozen=True)
class BuiltinKernel:
    """A kernel of the native core: nothing is generated for it.

    Attributes:
        name: its title.
        address: of its code.
        kernel: its description.
        extent_symbol: of the function that returns a symbolic extent; empty for a constant.
        extent_address: of that function; 0 for a constant.
    """

    name: str
    address: int
    kernel: CpuKernel
    extent_symbol: str = ""
    extent_address: int = 0

    @property
    def launch(self) -> tuple[int, int, int, int, bool]:
        """See :attr:`CompiledKernel.launch`."""
        kernel = self.kernel
        extent = kernel.extent if isinstance(kernel.extent, int) else 0
        return extent, self.extent_address, kernel.grain, kernel.scratch_bytes, kernel.parallel

    @property
    def source(self) -> str:
        """The loop IR of the kernel, which is part of the core."""
        return kernel_text(self.kernel)

    assembly = None


@dataclass(frozen=True)
class ControlCode:
    """A step of the native core that decides which step comes next."""

    kernel: Control

    @property
    def name(self) -> str:
        return self.kernel.kind.name.lower()

    @property
    def source(self) -> str:
        """The kernel as text."""
        return kernel_text(self.kernel)

    assembly = None


@dataclass(frozen=True)
class SizeCode:
    """The code of a step that binds or checks a size: the core itself.

    Attributes:
        kernel: its description.
        limit: the symbol of the function that returns a symbolic limit; empty for a constant.
    """

    kernel: CpuSizeStep
    limit: str

    assembly = None

    @property
    def name(self) -> str:
        """Its problem, which no other step has."""
        return self.kernel.problem

    @property
    def source(self) -> str:
        return kernel_text(self.kernel)


def builtin_kernel(kernel: CpuKernel) -> BuiltinKernel | None:
    """The code of a kernel that the native core has; ``None``: it has to be generated."""
    name = kernel.builtin
    return None if name is None else BuiltinKernel(name, getattr(_core, f"{name}_kernel"), kernel)


class MachineCode:
    """Linked kernels and size functions. Their addresses are valid as long as this lives.

    Attributes:
        linked: the code; ``None`` if all kernels are built-in.
        objects: the cache's keys of the linked objects, each with the symbols used from it.
    """

    def __init__(
        self,
        linked: LinkedCode | None,
        objects: Mapping[str, Sequence[str]],
        names: dict[CpuKernel, str],
        sizes: dict[Dim, str],
        target: TargetSpec,
    ) -> None:
        self.linked = linked
        self.objects = objects
        self._target = target
        self._names = names
        self._sizes = sizes

    def code(self, kernel: Kernel) -> CompiledKernel | BuiltinKernel | SizeCode | ControlCode:
        """The code of a kernel, or of a step that decides which comes next."""
        return ControlCode(kernel) if isinstance(kernel, Control) else self.kernel(kernel)

    def kernel(self, kernel: Kernel) -> CompiledKernel | BuiltinKernel | SizeCode:
        """The code of a kernel."""
        assert isinstance(kernel, CpuKernel)
        if isinstance(kernel, CpuSizeStep):
            return SizeCode(kernel, self.size_symbol(kernel.limit))
        if builtin := builtin_kernel(kernel):
            return self._launched(builtin)
        assert self.linked is not None
        name = self._names[kernel]
        symbolic = not isinstance(kernel.extent, int)
        extent = self.linked.address(f"{name}_extent") if symbolic else 0
        address = self.linked.address(name)
        return CompiledKernel(name, address, extent, kernel, self._target, self.linked)

    def _launched(self, builtin: BuiltinKernel) -> BuiltinKernel:
        """A built-in kernel with the function that returns its extent, if that is symbolic."""
        symbol = self.size_symbol(builtin.kernel.extent)
        if not symbol:
            return builtin
        assert self.linked is not None
        return replace(builtin, extent_symbol=symbol, extent_address=self.linked.address(symbol))

    def size_symbol(self, size: Dim) -> str:
        """The symbol of the function that returns a symbolic size; empty for a constant."""
        return "" if isinstance(size, int) else f"{self._sizes[size]}_extent"


class KernelCompiler:
    """Compiles kernels for one target.

    Args:
        target: the processor.
        cache: objects of kernels compiled before.
    """

    def __init__(self, target: TargetSpec, cache: ObjectCache) -> None:
        self.target = target
        self.cache = cache

    def compile(
        self,
        kernels: Sequence[CpuKernel],
        sizes: Sequence[Dim],
        variables: tuple[Symbol, ...],
        progress: Progress | None = None,
    ) -> MachineCode:
        """Machine code for every kernel, and a function for every symbolic size."""
        from ostinato.backends.cpu.loader.link import load

        names: dict[CpuKernel, str] = {}
        builds: dict[str, tuple[str, CpuKernel]] = {}
        steps = [kernel for kernel in kernels if isinstance(kernel, CpuSizeStep)]
        sizes = [*sizes, *(step.limit for step in steps)]
        others = [kernel for kernel in dict.fromkeys(kernels) if kernel not in steps]
        sizes += [kernel.extent for kernel in others if builtin_kernel(kernel) is not None]
        generated = [kernel for kernel in others if builtin_kernel(kernel) is None]
        for kernel in generated:
            text = kernel_text(kernel)
            names[kernel] = name = self._symbol(text)
            builds.setdefault(name, (text, kernel))
        objects = self._objects(builds, progress)
        size_names = self._sizes(sizes, variables, objects)
        linked = load(objects.values()) if objects else None
        symbols = {key: symbols for key, (_, symbols) in objects.items()}
        return MachineCode(linked, symbols, names, size_names, self.target)

    def _objects(
        self, builds: dict[str, tuple[str, CpuKernel]], progress: Progress | None
    ) -> dict[str, tuple[bytes, list[str]]]:
        """By symbol, a kernel's object, and all symbols in it."""
        # Longest first: compile time grows with the length of a kernel's text.
        order = sorted(builds, key=lambda name: len(builds[name][0]), reverse=True)
        built = build_all(
            self.cache,
            {name: partial(self._build, builds[name][1], name) for name in order},
            helpers=usable_processors() - 1,
            report=None if progress is None else lambda done: progress(done, len(builds)),
        )
        objects: dict[str, tuple[bytes, list[str]]] = {}
        for name, (_, kernel) in builds.items():
            symbolic = not isinstance(kernel.extent, int)
            objects[name] = (built[name], [name, f"{name}_extent"] if symbolic else [name])
        return objects

    def _symbol(self, text: str) -> str:
        return "k" + object_key(text, self.target.identity)

    def _build(self, kernel: CpuKernel, name: str) -> Callable[[], bytes]:
        """Render a kernel, which is Python's work; what is given compiles it, which is LLVM's."""
        from ostinato.backends.cpu.llvm import render
        from ostinato.backends.cpu.llvm.toolchain import compile_module

        text = str(render(kernel, name, self.target))
        return partial(compile_module, text, self.target)

    def _sizes(
        self,
        sizes: Sequence[Dim],
        variables: tuple[Symbol, ...],
        objects: dict[str, tuple[bytes, list[str]]],
    ) -> dict[Dim, str]:
        """One module with a function for each distinct symbolic size."""
        distinct = [s for s in dict.fromkeys(sizes) if not isinstance(s, int)]
        if not distinct:
            return {}
        header = f"sizes {[(v.name, v.min, v.max) for v in variables]} {[str(s) for s in distinct]}"
        name = self._symbol(header)
        names: dict[Dim, str] = {size: f"{name}_{i}" for i, size in enumerate(distinct)}

        def build() -> bytes:
            from llvmlite import ir

            from ostinato.backends.cpu.llvm.kernel import define_extent
            from ostinato.backends.cpu.llvm.toolchain import compile_module

            module = ir.Module(name)
            for size, symbol in names.items():
                define_extent(module, symbol, variables, size)
            return compile_module(module, self.target)

        symbols = [f"{symbol}_extent" for symbol in names.values()]
        objects[name] = (self.cache.get_or_build(name, build), symbols)
        return names
