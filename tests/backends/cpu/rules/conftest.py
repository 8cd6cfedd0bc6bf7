"""``run_lowered``: a graph lowered and run kernel by kernel, between guard pages."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.compiler import builtin_kernel
from ostinato.backends.cpu.llvm import render
from ostinato.backends.cpu.llvm.kernel import extent_symbol
from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec, compile_module
from ostinato.backends.cpu.loader.link import load
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.options import CompileOptions
from ostinato.dtypes import DType
from ostinato.errors import DeviceUnavailableError
from ostinato.ir.graph import BaseGraph
from ostinato.lower.loopir.text import kernel_text
from ostinato.lower.program import Call, LoweredBuffer, Program, Role
from ostinato.records import replace
from ostinato.variables import evaluate

Array = np.ndarray[Any, Any]

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


class Memory:
    """Room for an array whose last byte touches an inaccessible page."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], align: int = 1) -> None:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        nbytes_room = -(-nbytes // align) * align
        pages = max(1, -(-nbytes_room // _PAGE))
        self._memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        offset = _PAGE + pages * _PAGE - nbytes_room
        self.address = base + offset
        self.array: Array = np.ndarray(shape, dtype, self._memory, offset)
        self.array.view(np.uint8)[...] = 0xA5 if nbytes else 0
        for page in (base, base + (pages + 1) * _PAGE):
            assert _LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0) == 0


class CodeCache:
    """Linked kernels by their text and target: tests of a session share many of them.

    Args:
        rewrite: makes code for this machine of the LLVM IR for another.
    """

    def __init__(self, rewrite: Callable[[str], str] = str) -> None:
        self._rewrite = rewrite
        self._linked: dict[tuple[str, str], LinkedCode] = {}

    def linked(self, kernel: CpuKernel, target: TargetSpec) -> LinkedCode:
        """The code of a kernel, with ``kernel`` for its symbol."""
        key = kernel_text(kernel), target.identity
        if key not in self._linked:
            names = ["kernel"]
            if not isinstance(kernel.extent, int):
                names.append(extent_symbol("kernel"))
            module = self._rewrite(str(render(kernel, "kernel", target)))
            self._linked[key] = load([(compile_module(module, target), names)])
        return self._linked[key]


class LoweredGraph:
    """A program of kernels for one instruction set level, and for caches of any size.

    Args:
        code: of kernels that other graphs have, too.
        graph: to be lowered.
        level: the level, or a processor that this machine need not be.
        caches: instead of the level's.
        rewrite: see :class:`CodeCache`; such code is shared with no other graph.
    """

    def __init__(
        self,
        code: CodeCache,
        graph: BaseGraph,
        level: str | TargetSpec,
        caches: CacheSizes | None = None,
        rewrite: Callable[[str], str] | None = None,
        **options: Any,
    ) -> None:
        target = TargetSpec.named(level) if isinstance(level, str) else level
        self.target = target if caches is None else replace(target, caches=caches)
        settings = lowering_options(CompileOptions(**options), self.target)
        self.program, _ = lower_for_cpu(graph, settings)
        self._names = {v.name for v in self.program.variables}
        self._code = code if rewrite is None else CodeCache(rewrite)

    @property
    def kernels(self) -> list[Any]:
        return [call.kernel for call in (*self.program.prepare, *self.program.calls)]

    def __call__(self, inputs: Mapping[str, Array], **variables: int) -> list[Array]:
        assert variables.keys() == self._names
        return _Run(self, inputs, variables).outputs()

    def address(self, call: Call, symbol: str = "kernel") -> int:
        """The address of the call's code, or of a function that comes with it."""
        ready = builtin_kernel(call.kernel)
        if ready is not None:
            return ready.address
        return self._code.linked(call.kernel, self.target).address(symbol)


class _Run:
    def __init__(
        self, lowered: LoweredGraph, inputs: Mapping[str, Array], variables: Mapping[str, int]
    ) -> None:
        self.lowered = lowered
        self.inputs = inputs
        self.variables = variables
        self._memory: dict[int, Memory] = {}

    def outputs(self) -> list[Array]:
        program: Program = self.lowered.program
        for call in (*program.prepare, *program.calls):
            self._call(call)
        return [self._of(buffer).array.copy() for buffer in program.outputs.values()]

    def _of(self, buffer: LoweredBuffer) -> Memory:
        if id(buffer) not in self._memory:
            shape = tuple(evaluate(size, self.variables) for size in buffer.type.shape)
            memory = Memory(shape, np.dtype(buffer.type.dtype.numpy))
            if buffer.role in (Role.INPUT, Role.PARAM):
                memory.array[...] = self.inputs[buffer.name]
            elif buffer.role is Role.CONSTANT:
                memory.array[...] = buffer.data
            elif buffer.role is Role.MASKED_TAIL:
                memory.array[...] = 0
            self._memory[id(buffer)] = memory
        return self._memory[id(buffer)]

    def _call(self, call: Call) -> None:
        """Runs the kernel's range in up to three pieces, the last first where order is free."""
        kernel = call.kernel
        buffers = (ctypes.c_void_p * len(call.buffers))(
            *(self._of(b).address for b in call.buffers)
        )
        live = [self.variables[v.name] for v in kernel.variables]
        values = (ctypes.c_int64 * max(1, len(live)))(*live)
        extent = evaluate(kernel.extent, self.variables)
        if not isinstance(kernel.extent, int):
            address = self.lowered.address(call, extent_symbol("kernel"))
            assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)(values) == extent
        scratch = Memory((kernel.scratch_bytes,), np.dtype(np.uint8), align=64)
        pieces = list(itertools.pairwise([0, extent // 3, extent // 2, extent]))
        for begin, end in reversed(pieces) if kernel.parallel else pieces:
            _KERNEL(self.lowered.address(call))(buffers, values, begin, end, scratch.address)


@pytest.fixture
def memory() -> Iterator[Callable[[tuple[int, ...], DType], Array]]:
    """``memory(shape, dtype)``: elements whose last byte touches an inaccessible page."""
    kept: list[Memory] = []

    def make(shape: tuple[int, ...], dtype: DType) -> Array:
        kept.append(Memory(shape, np.dtype(dtype.numpy)))
        return kept[-1].array

    yield make
    kept.clear()


@pytest.fixture(scope="session")
def lowered() -> Callable[..., LoweredGraph]:
    """``lowered(graph, level)(inputs, **variables)`` gives the outputs."""
    return partial(LoweredGraph, CodeCache())


@pytest.fixture(params=["avx512", "avx2", "sse2"])
def level(request: pytest.FixtureRequest) -> str:
    """An instruction set level of this machine."""
    try:
        TargetSpec.named(request.param)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    return str(request.param)
