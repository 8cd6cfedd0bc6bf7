"""The register tile of a GEMM of bfloat16: dot products of pairs, summed in float32.

Like :mod:`~ostinato.backends.cpu.llvm.microkernel`, but a row of a panel has two positions of ``k``
for each column, which one instruction of AVX-512 BF16 multiplies and adds. It rounds to nearest
after each addition, whatever the mode, and takes subnormal numbers as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.memory import prefetch, store
from ostinato.backends.cpu.llvm.types import (
    BYTE_POINTER,
    I8,
    I16,
    I32,
    I64,
    call_intrinsic,
    constant,
    register_type,
)
from ostinato.dtypes import FLOAT32
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm

__all__ = ["define_bfloat16_tile"]

_DOTS_PER_ITERATION = 48
"""Dot products per iteration of the loop, about: enough to outweigh the loop itself."""

_PAIR = 2
"""Positions of ``k`` that one dot product adds up."""

_ITEM = 2
"""Bytes of a bfloat16."""


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's ``bfloat``, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_LANES = 16
_PAIRS = ir.VectorType(_BFloat(), _LANES * _PAIR)
_DOT = "llvm.x86.avx512bf16.dpbf16ps.512"


def define_bfloat16_tile(
    module: ir.Module, name: str, gemm: Gemm, rows: int, target: TargetSpec
) -> ir.Function:
    """Adds the function ``void name(a, offsets, b, out, ahead)`` to ``module``.

    ``a`` points at the first row, ``b`` is the panel, ``out`` receives ``rows`` x ``panel`` sums,
    densely. ``offsets`` is not looked at: rows are evenly spaced. ``ahead`` is the address from
    which to prefetch; it is there with :attr:`Gemm.fetch`.
    """
    arguments = [BYTE_POINTER] * (4 if gemm.fetch is None else 5)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, _, b, out, *ahead = function.args
    fetched = ahead[0] if gemm.fetches(rows) else None
    _Bfloat16Tile(builder, gemm, rows, (a, b), fetched).run(out)
    builder.ret_void()
    return function


class _Bfloat16Tile:
    """A tile whose sums are in stack slots, which LLVM turns into registers."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        gemm: Gemm,
        rows: int,
        operands: tuple[ir.Value, ir.Value],
        ahead: ir.Value | None,
    ) -> None:
        self.builder, self.gemm, self.rows = builder, gemm, rows
        self.a, self.b = operands
        self.ahead = ahead
        self.lanes = _LANES
        self.vectors = gemm.panel // self.lanes
        self.kind = register_type(FLOAT32, self.lanes)
        self.sums = [stack_slot(builder, self.kind) for _ in range(rows * self.vectors)]

    def run(self, out: ir.Value) -> None:
        """Leave the sums at ``out``."""
        b, depth = self.builder, bounds(self.gemm.depth)[1]
        for slot in self.sums:
            b.store(constant(FLOAT32, 0.0, self.lanes), slot)
        unroll = max(1, min(8, _DOTS_PER_ITERATION // len(self.sums)))
        iterations, rest = divmod(depth // _PAIR, unroll)

        def iteration(pair: ir.Value) -> None:
            for number in range(unroll):
                self._pair(b.add(pair, I64(number)))

        end = I64(iterations * unroll)
        counted_loop(b, I64(0), end, unroll, iteration, trips=iterations, name="k")
        for number in range(rest):
            self._pair(I64(iterations * unroll + number))
        if depth % _PAIR:
            self._pair(I64(depth // _PAIR), alone=True)
        for place, slot in enumerate(self.sums):
            total = Lane(b, b.load(slot, typ=self.kind), FLOAT32, self.lanes)
            store(b, out, FLOAT32, I64(place * self.lanes), total)

    def _pair(self, pair: ir.Value, *, alone: bool = False) -> None:
        """A row of the panel.

        Args:
            pair: its number.
            alone: whether the second position is beyond the last.
        """
        b, row_bytes = self.builder, self.gemm.panel * _PAIR * _ITEM
        first = b.mul(pair, I64(row_bytes))
        if self.ahead is not None:
            for line in range(0, row_bytes, self.gemm.caches.line):
                prefetch(b, self.ahead, b.add(first, I64(line)))
        width = self.lanes * _PAIR * _ITEM
        columns = [
            b.load(
                b.gep(self.b, [b.add(first, I64(vector * width))], source_etype=I8),
                align=_ITEM,
                typ=_PAIRS,
            )
            for vector in range(self.vectors)
        ]
        for row in range(self.rows):
            left = self._repeated(row, pair, alone=alone)
            for vector, column in enumerate(columns):
                slot = self.sums[row * self.vectors + vector]
                total = b.load(slot, typ=self.kind)
                arguments = [total, left, column]
                b.store(call_intrinsic(b, _DOT, self.kind, arguments), slot)

    def _repeated(self, row: int, pair: ir.Value, *, alone: bool) -> ir.Value:
        """Two elements of a row of ``a``, for every column; zero for what is beyond the last."""
        b, stride = self.builder, self.gemm.row_stride
        assert stride is not None
        start = b.add(b.mul(pair, I64(_PAIR * _ITEM)), I64(row * stride * _ITEM))
        at = b.gep(self.a, [start], source_etype=I8)
        if alone:
            word = b.zext(b.load(at, align=_ITEM, typ=I16), I32)
        else:
            word = b.load(at, align=_ITEM, typ=I32)
        words = ir.VectorType(I32, self.lanes)
        undefined = ir.Constant(words, ir.Undefined)
        one = b.insert_element(undefined, word, I32(0))
        everywhere = ir.Constant(words, None)
        return b.bitcast(b.shuffle_vector(one, undefined, everywhere), _PAIRS)
