"""``run_nest``: compiles a loop nest and runs it between guard pages."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu.llvm.kernel import extent_symbol
from ostinato.backends.cpu.llvm.loops import render
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, compile_module
from ostinato.backends.cpu.loader.link import load
from ostinato.backends.cpu.rules.kernel import CpuLoopNest
from ostinato.errors import DeviceUnavailableError
from ostinato.lower.loopir.nest import LoopNest
from ostinato.variables import evaluate

Array = np.ndarray[Any, Any]

_PAGE = mmap.PAGESIZE
_NO_ACCESS, _READ, _READ_WRITE = 0, 1, 3
_LIBC = ctypes.CDLL(None, use_errno=True)
_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


class GuardedArray:
    """A copy of an array that touches an inaccessible page with its first or its last byte."""

    def __init__(self, array: Array, *, at_end: bool, writable: bool) -> None:
        pages = max(1, -(-array.nbytes // _PAGE))
        self._memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._handle = ctypes.c_char.from_buffer(self._memory)
        base = ctypes.addressof(self._handle)
        offset = _PAGE + (pages * _PAGE - array.nbytes if at_end else 0)
        self.address = base + offset
        self.array = np.ndarray(array.shape, array.dtype, self._memory, offset)
        self.array[...] = array
        self._regions = [(base, _PAGE), (base + (pages + 1) * _PAGE, _PAGE)]
        self._protect(_NO_ACCESS)
        if not writable:
            self._regions.append((base + _PAGE, pages * _PAGE))
            _LIBC.mprotect(ctypes.c_void_p(base + _PAGE), ctypes.c_size_t(pages * _PAGE), _READ)

    def release(self) -> Array:
        """The contents; the memory is ordinary again."""
        result = self.array.copy()
        self._protect(_READ_WRITE)
        return result

    def _protect(self, access: int) -> None:
        for address, size in self._regions:
            _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access)


class CompiledNest:
    """Machine code of a nest: ``compiled(*arrays, S=5)`` gives all arrays as they are after it."""

    def __init__(self, nest: LoopNest, level: str) -> None:
        self._nest = nest = CpuLoopNest.of(nest)
        target = TargetSpec.named(level)
        symbols = ["kernel"]
        if not isinstance(nest.extent, int):
            symbols.append(extent_symbol("kernel"))
        self._code = load([(compile_module(render(nest, "kernel", target), target), symbols)])

    def __call__(self, *arrays: Array, **variables: int) -> list[Array]:
        results = [self._run(arrays, variables, at_end) for at_end in (True, False)]
        for x, y in zip(*results, strict=True):
            np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))
        return results[0]

    def extent(self, values: ctypes.Array[ctypes.c_int64]) -> int:
        address = self._code.address(extent_symbol("kernel"))
        return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)(values))

    def _run(
        self, arrays: tuple[Array, ...], variables: dict[str, int], at_end: bool
    ) -> list[Array]:
        nest = self._nest
        guarded = [
            GuardedArray(a, at_end=at_end, writable=arg.writes)
            for a, arg in zip(arrays, nest.args, strict=True)
        ]
        scratch = GuardedArray(np.zeros(nest.scratch_bytes, np.uint8), at_end=at_end, writable=True)
        pointers = (ctypes.c_void_p * len(arrays))(*(g.address for g in guarded))
        values = (ctypes.c_int64 * max(1, len(nest.variables)))(
            *(variables[v.name] for v in nest.variables)
        )
        steps = evaluate(nest.extent, variables)
        if not isinstance(nest.extent, int):
            assert self.extent(values) == steps
        # Half of the runs hand out the range in three parts.
        cuts = [0, steps] if at_end else [0, steps // 3, steps // 2, steps]
        kernel = _KERNEL(self._code.address("kernel"))
        for begin, end in itertools.pairwise(cuts):
            kernel(pointers, values, begin, end, scratch.address)
        scratch.release()
        return [g.release() for g in guarded]


@pytest.fixture(scope="session")
def compile_nest() -> type[CompiledNest]:
    """``compile_nest(nest, level)``."""
    return CompiledNest


@pytest.fixture(params=["avx512", "avx2", "sse2"])
def level(request: pytest.FixtureRequest) -> str:
    """An instruction set level of this machine."""
    try:
        TargetSpec.named(request.param)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    return str(request.param)
