"""Measurements of facts that no system states about its processor: two kernels, alternately.

The kernels of a trial differ by so much that other work on the machine hardly matters.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

from ostinato.backends.cpu import _core
from ostinato.backends.cpu.llvm.bfloat16_tiles import define_bfloat16_tile
from ostinato.backends.cpu.llvm.kernel import counted_loop, open_kernel
from ostinato.backends.cpu.llvm.microkernel import define_tile
from ostinato.backends.cpu.llvm.toolchain import compile_module
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.backends.cpu.loader.link import load
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.packing import PanelFormat
from ostinato.backends.cpu.rules.prefetch import Prefetch
from ostinato.dtypes import BFLOAT16, FLOAT32
from ostinato.lower.loopir.builder import symbols_of
from ostinato.records import replace
from ostinato.variables import axis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec
    from ostinato.dtypes import DType

__all__ = [
    "bfloat16_dots_are_fast",
    "few_rows_prefetch",
    "row_strips_are_faster",
    "slow_memory",
    "strips_are_faster",
]

#: Bytes read in a trial of memory: more than the third-level cache of a few cores.
_MEMORY_BYTES = 64 << 20

#: Bytes read in a trial of arithmetic: they stay in the second-level cache.
_CACHE_BYTES = 512 << 10

_ROUNDS = 4

#: The share of the other tiles' time that tiles may take at most. Prefetching takes 1.3 of it on
#: Zen 4 and 0.7 to 0.92 on Emerald Rapids; dot products, which have other bits, 0.43 and 0.88 to 1.
_PREFETCHING, _DOTS = 0.96, 0.7

#: The same of tiles that read panels in strips: of 4 rows, 1.3 to 1.9 on Zen 4, 0.61 on Emerald
#: Rapids and 0.7 on Zen 3; of one row, 1.06 and 0.8 on the latter two.
_STRIPS = 0.9

#: Multiply-adds in the time in which a core reads a float32 from slow memory, at least.
_SLOW = 14

_DEPTH = 1024

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


def few_rows_prefetch(target: TargetSpec) -> bool:
    """Whether tiles of 4 rows read weights faster from memory if they prefetch them."""
    gemm = _gemm(target, rows=4, vectors=3, a=FLOAT32)
    fetch = Prefetch(target.caches, target.vector_bytes, least_rows=1)
    return _faster(replace(gemm, prefetch=fetch), gemm, _MEMORY_BYTES, target, _PREFETCHING)


def bfloat16_dots_are_fast(target: TargetSpec) -> bool:
    """Whether tiles of dot products take less time than those that widen panels."""
    gemm = _gemm(target, rows=8, vectors=3, a=BFLOAT16)
    dots = replace(gemm, b_format=PanelFormat(BFLOAT16, 2))
    widening = replace(gemm, b_format=PanelFormat(BFLOAT16))
    return _faster(dots, widening, _CACHE_BYTES, target, _DOTS)


def slow_memory(target: TargetSpec) -> bool:
    """Whether reading a float32 from memory takes as long as :data:`_SLOW` multiply-adds."""
    reading = _gemm(target, rows=1, vectors=4, a=FLOAT32)
    computing = _gemm(target, rows=8, vectors=3, a=FLOAT32)
    try:
        read = _least_seconds([reading], _MEMORY_BYTES, target)[0] / _MEMORY_BYTES
        many = _MEMORY_BYTES // _CACHE_BYTES
        computed = _least_seconds([computing], _CACHE_BYTES, target, many)[0] / _CACHE_BYTES
    except MemoryError:
        return False
    return read > _SLOW * computed / computing.rows


def strips_are_faster(target: TargetSpec) -> bool:
    """Whether tiles of 4 rows read panels faster that are in strips than whole ones, unprefetched.

    Where prefetching alone helps a little, memory that others use may hide which of both is faster.
    """
    return _strips_are_faster(target, _gemm(target, rows=4, vectors=_widest(target), a=FLOAT32))


def row_strips_are_faster(target: TargetSpec) -> bool:
    """The same for one row."""
    return _strips_are_faster(target, _gemm(target, rows=1, vectors=4, a=FLOAT32))


def _strips_are_faster(target: TargetSpec, rows: Gemm) -> bool:
    strips = replace(rows, b_format=PanelFormat(FLOAT32, strip=target.lanes(FLOAT32.itemsize)))
    if rows.rows > 1:
        fetch = Prefetch(target.caches, target.vector_bytes, least_rows=1)
        strips = replace(strips, prefetch=fetch)
    return _faster(strips, rows, _MEMORY_BYTES, target, _STRIPS)


def _widest(target: TargetSpec) -> int:
    """Vectors of a panel whose sums by four rows fit in registers: there are 16, or 32."""
    return 5 if target.has_avx512 else 3


def _gemm(target: TargetSpec, *, rows: int, vectors: int, a: DType) -> Gemm:
    """A matmul that has a row of many panels."""
    m, n, k = axis("m", rows), axis("n", 1 << 20), axis("k", _DEPTH)
    (m_symbol,), (n_symbol,), k_symbols = symbols_of([m]), symbols_of([n]), symbols_of([k])
    return Gemm(
        args=(),
        batch=(),
        m=m_symbol,
        n=n_symbol,
        k=k_symbols,
        a=0,
        a_dtype=a,
        a_index=m * _DEPTH + k,
        b=1,
        b_group=0,
        panel=vectors * target.lanes(FLOAT32.itemsize),
        rows=rows,
        acc=FLOAT32,
        epilogue=(),
        caches=target.caches,
        item_rows=rows,
        chains=1,
    )


def _faster(first: Gemm, second: Gemm, nbytes: int, target: TargetSpec, share: float = 1.0) -> bool:
    """Whether tiles of one matmul take at most a share of the time of another's for their panels.

    Not where the system has no such memory to try.
    """
    try:
        least = _least_seconds([first, second], nbytes, target)
    except MemoryError:
        return False
    return least[0] < share * least[1]


def _least_seconds(
    gemms: Sequence[Gemm], nbytes: int, target: TargetSpec, rounds: int = _ROUNDS
) -> list[float]:
    """The least time of each matmul with panels of so many bytes in all.

    Raises:
        MemoryError: the system has no such memory.
    """
    panels = _core.Arena(nbytes + 2 * target.caches.second)
    ctypes.memset(panels.address, 0, panels.nbytes)  # pages that are not written are one in memory
    operands = _core.Arena(1 << 20)
    calls = [_call(gemm, nbytes, panels, operands, target) for gemm in gemms]
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, (call, _) in enumerate(calls):
            start = time.thread_time()  # without what other processes take
            call()
            least[number] = min(least[number], time.thread_time() - start)
    return least


def _call(
    gemm: Gemm, nbytes: int, panels: _core.Arena, operands: _core.Arena, target: TargetSpec
) -> tuple[Callable[[], None], LinkedCode]:
    """A function that multiplies a few rows with all panels, and its code."""
    kernel = open_kernel("kernel", target, 2)
    b, (a, right) = kernel.builder, kernel.buffers
    pairs = gemm.b_format is not None and gemm.b_format.steps > 1
    define = define_bfloat16_tile if pairs else define_tile
    tile = define(kernel.module, "tile", gemm, gemm.rows, target)
    panel_bytes = _DEPTH * gemm.panel * gemm.b_dtype.itemsize

    def panel(number: object) -> None:
        start = b.gep(right, [b.mul(number, I64(panel_bytes))], source_etype=I8)
        fetch = gemm.fetch
        ahead = [] if fetch is None else [b.gep(start, [I64(fetch.distance)], source_etype=I8)]
        b.call(tile, [a, kernel.scratch, start, kernel.scratch, *ahead])

    counted_loop(b, kernel.begin, kernel.end, 1, panel, name="panel")
    b.ret_void()
    code = load([(compile_module(kernel.module, target), ["kernel"])])
    function = _KERNEL(code.address("kernel"))
    buffers = (ctypes.c_void_p * 2)(operands.address, panels.address)
    scratch = operands.address + (operands.nbytes >> 1)
    count = nbytes // panel_bytes
    return lambda: function(buffers, None, 0, count, scratch), code
