"""The register tile of a GEMM of bytes: some rows of ``a`` times one packed panel of ``b``.

Like :mod:`~ostinato.backends.cpu.llvm.microkernel`, in 32-bit integers. A row of a panel has
several positions of ``k`` for each column, which :mod:`~ostinato.backends.cpu.llvm.byte_dots` adds
up at once. Where both sides come in blocks with scales, the sums of a block are integers, and those
of all blocks are float32.

Four products at once are of unsigned by signed bytes. Where both are signed, or neither is, the top
bits of the left bytes are flipped, which makes them numbers of the other kind, 128 off. A further
row of bytes ``0x80`` then sums what that is too much, for each column, to be subtracted in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.byte_dots import add_products
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic
from ostinato.backends.cpu.llvm.memory import load, prefetch, store
from ostinato.backends.cpu.llvm.microkernel import row_pointers, tile_dims
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I32, I64, constant, register_type
from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.records import dataclass, replace
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.sum_axes import SumAxis
    from ostinato.variables import Dim

__all__ = ["define_byte_tile"]

_PER_ITERATION = 48
"""Dot products per iteration of a loop, about: enough to outweigh the loop itself."""

_FOUR = 4
"""Products of bytes that one instruction adds up."""

_TOP_BIT = 0x80
"""The bit to flip in bytes that become signed, or unsigned."""

_CODE_ZERO = 8
"""The 4-bit code that stands for zero."""


def define_byte_tile(
    module: ir.Module, name: str, gemm: Gemm, rows: int, target: TargetSpec
) -> ir.Function:
    """Adds ``void name(a, offsets, b, out, dims..., a_scales, b_scales, ahead)`` to ``module``.

    The first ones are those of :func:`~ostinato.backends.cpu.llvm.microkernel.define_tile`. The
    scales are those of the first row and of the panel; without :attr:`Gemm.scales` there are no
    such arguments. ``ahead`` is the address from which to prefetch; it is there with
    :attr:`Gemm.fetch`.
    """
    dims = tile_dims(gemm)
    pointers = (0 if gemm.scales is None else 2) + (0 if gemm.fetch is None else 1)
    arguments = [*[BYTE_POINTER] * 4, *[I64] * len(dims), *[BYTE_POINTER] * pointers]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, offsets, b, out, *rest = function.args
    ahead = None if gemm.fetch is None else rest.pop()
    left = row_pointers(builder, gemm, rows, a, offsets)
    values = dict(zip(dims, rest, strict=False))
    tile = _ByteTile(builder, gemm, target, left, b, values, ahead if gemm.fetches(rows) else None)
    if gemm.scales is None:
        sums = tile.zeros(tile.size)
        excess = tile.zeros(tile.vectors if tile.flips else 0)
        tile.multiply_runs(sums, excess)
        tile.store(out, sums, excess)
    else:
        _ScaledTile(tile, *rest[len(dims) :]).run(out)
    builder.ret_void()
    return function


@dataclass(frozen=True)
class _ByteTile:
    """A tile whose sums are in stack slots, which LLVM turns into registers.

    Attributes:
        left: pointers to the rows of ``a``.
        b: the panel.
        dims: the values of symbolic steps from one element of a row to another.
        ahead: the address from which to prefetch, if the tile does.
    """

    builder: ir.IRBuilder
    gemm: Gemm
    target: TargetSpec
    left: Sequence[ir.Value]
    b: ir.Value
    dims: Mapping[Dim, ir.Value]
    ahead: ir.Value | None

    @property
    def rows(self) -> int:
        return len(self.left)

    @property
    def lanes(self) -> int:
        return self.target.lanes(INT32.itemsize)

    @property
    def vectors(self) -> int:
        return self.gemm.panel // self.lanes

    @property
    def size(self) -> int:
        """Vectors of sums."""
        return self.rows * self.vectors

    @property
    def depth(self) -> int:
        """Positions of ``k`` in all."""
        return bounds(self.gemm.depth)[1]

    @property
    def steps(self) -> int:
        """Positions of ``k`` that one dot product adds up."""
        assert self.gemm.b_format is not None
        return self.gemm.b_format.steps

    @property
    def halves(self) -> bool:
        """Whether a byte of a panel is two codes."""
        assert self.gemm.b_format is not None
        return self.gemm.b_format.halves

    @property
    def flips(self) -> bool:
        """Whether the left bytes are taken for signed if they are not, and the other way round."""
        a, b = self.gemm.a_dtype, self.gemm.b_dtype
        return self.steps == _FOUR and a.is_signed == b.is_signed

    def zeros(self, count: int) -> list[ir.Value]:
        """Slots for that many vectors of 32-bit sums."""
        kind = register_type(INT32, self.lanes)
        slots = [stack_slot(self.builder, kind) for _ in range(count)]
        self.clear(slots)
        return slots

    def clear(self, slots: Sequence[ir.Value]) -> None:
        for slot in slots:
            self.builder.store(constant(INT32, 0, self.lanes), slot)

    def total(self, slot: ir.Value) -> Lane:
        """The sums in a slot."""
        value = self.builder.load(slot, typ=register_type(INT32, self.lanes))
        return Lane(self.builder, value, INT32, self.lanes)

    def store(self, out: ir.Value, slots: Sequence[ir.Value], excess: Sequence[ir.Value]) -> None:
        """Write sums, less what is too much in each vector of columns, if anything is."""
        for place, slot in enumerate(slots):
            total = self.total(slot)
            if excess:
                total = total - self.total(excess[place % self.vectors])
            store(self.builder, out, INT32, I64(place * self.lanes), total)

    # -- sums of products -------------------------------------------------------------------

    @property
    def run(self) -> int:
        """Positions of ``k`` that one loop walks."""
        assert self.gemm.b_format is not None
        return self.gemm.b_format.run or self.depth

    @property
    def step(self) -> ir.Value | None:
        """Elements of a row from one position of a run to the next; ``None``: one."""
        axes = self.gemm.sum_axes
        step = axes[-1].step if axes else 1
        if step == 1:
            return None
        return I64(step) if isinstance(step, int) else self.dims[step]

    def multiply_runs(self, sums: Sequence[ir.Value], excess: Sequence[ir.Value]) -> None:
        """Adds all products to ``sums``, and those of flipped bits to ``excess``, run by run."""
        form = self.gemm.b_format
        assert form is not None
        if form.run is None:
            self.multiply(sums, I64(0), self.depth, excess=excess)
            return
        b, nbytes = self.builder, -(-form.run // form.depth) * form.steps * self.gemm.panel

        def run(offset: ir.Value, number: ir.Value) -> None:
            left = [b.gep(row, [offset], source_etype=I8) for row in self.left]
            distance = b.mul(number, I64(nbytes))
            panel, ahead = (
                None if pointer is None else b.gep(pointer, [distance], source_etype=I8)
                for pointer in (self.b, self.ahead)
            )
            replace(self, left=left, b=panel, ahead=ahead).multiply(
                sums, I64(0), self.run, excess=excess
            )

        self._each_run(self.gemm.sum_axes[:-1], I64(0), I64(0), run)

    def _each_run(
        self,
        axes: Sequence[SumAxis],
        offset: ir.Value,
        number: ir.Value,
        body: Callable[[ir.Value, ir.Value], None],
    ) -> None:
        """Calls ``body`` for each run, with its offset in a row and its number."""
        if not axes:
            body(offset, number)
            return
        b, outer = self.builder, axes[0]
        count = bounds(outer.extent)[1]
        step = I64(outer.step) if isinstance(outer.step, int) else self.dims[outer.step]

        def iteration(index: ir.Value) -> None:
            place = b.add(offset, b.mul(index, step))
            self._each_run(axes[1:], place, b.add(b.mul(number, I64(count)), index), body)

        counted_loop(b, I64(0), I64(count), 1, iteration, trips=count, name="run")

    def multiply(
        self,
        sums: Sequence[ir.Value],
        start: ir.Value,
        count: int,
        zeros: Sequence[ir.Value] = (),
        excess: Sequence[ir.Value] = (),
    ) -> None:
        """Adds the products of ``count`` positions of ``k`` from ``start`` on to ``sums``.

        Args:
            start: a multiple of the positions that a row of a panel holds.
            zeros: receives, for each row, what codes of zero would come to.
            excess: receives, for each vector of columns, the products of flipped bits.
        """
        b, more = self.builder, (zeros, excess)
        row = self.steps * (2 if self.halves else 1)
        unroll = max(1, _PER_ITERATION // (self.size * (2 if self.halves else 1)))
        whole = count // row
        iterations, rest = divmod(whole, unroll)

        def iteration(k: ir.Value) -> None:
            for number in range(unroll):
                self._row(sums, b.add(k, I64(number * row)), more, self.steps)

        end = b.add(start, I64(iterations * unroll * row))
        counted_loop(b, start, end, unroll * row, iteration, trips=iterations, name="k")
        for number in range(rest):
            self._row(sums, b.add(end, I64(number * row)), more, self.steps)
        if count % row:
            self._row(sums, b.add(end, I64(rest * row)), more, count % row)

    def _row(
        self,
        sums: Sequence[ir.Value],
        k: ir.Value,
        more: tuple[Sequence[ir.Value], Sequence[ir.Value]],
        count: int,
    ) -> None:
        """One row of the panel: the positions of ``k`` from ``k`` on, ``count`` if not in full."""
        zeros, excess = more
        b, steps, lanes = self.builder, self.steps, self.lanes
        first = b.mul(b.udiv(k, I64(2)) if self.halves else k, I64(self.gemm.panel))
        if self.ahead is not None:
            line = self.gemm.caches.line
            for start in range(0, steps * self.gemm.panel, line):
                prefetch(b, self.ahead, b.add(first, I64(start)))
        loaded = []
        for vector in range(self.vectors):
            place = b.add(first, I64(vector * lanes * steps))
            loaded.append(b.load(b.gep(self.b, [place], source_etype=I8), align=1, typ=self._bytes))
        if not self.halves:
            self._add(sums, loaded, k, (), count, excess)
            return
        mask = ir.Constant(self._bytes, [15] * (lanes * steps))
        four = ir.Constant(self._bytes, [4] * (lanes * steps))
        self._add(sums, [b.and_(pair, mask) for pair in loaded], k, zeros, steps)
        high = [b.lshr(pair, four) for pair in loaded]
        self._add(sums, high, b.add(k, I64(steps)), zeros, steps)

    @property
    def _bytes(self) -> ir.Type:
        return ir.VectorType(I8, self.lanes * self.steps)

    def _add(
        self,
        sums: Sequence[ir.Value],
        columns: Sequence[ir.Value],
        k: ir.Value,
        zeros: Sequence[ir.Value],
        count: int,
        excess: Sequence[ir.Value] = (),
    ) -> None:
        b, c = self.builder, self.gemm
        dtypes = (c.a_dtype, c.b_dtype)
        if self.flips:
            dtypes = (UINT8 if c.a_dtype.is_signed else INT8, c.b_dtype)
        kind = register_type(INT32, self.lanes)

        def accumulate(slot: ir.Value, left: ir.Value, right: ir.Value) -> None:
            total = b.load(slot, typ=kind)
            b.store(add_products(b, self.target, total, (left, right), dtypes, self.steps), slot)

        eight = ir.Constant(self._bytes, [_CODE_ZERO] * (self.lanes * self.steps))
        flipped = ir.Constant(self._bytes, [_TOP_BIT] * (self.lanes * self.steps))
        for slot, column in zip(excess, columns, strict=bool(excess)):
            accumulate(slot, flipped, column)
        for row in range(self.rows):
            left = self._repeated(row, k, count)
            if excess:
                left = b.xor(left, flipped)
            for vector, column in enumerate(columns):
                accumulate(sums[row * self.vectors + vector], left, column)
            if zeros:
                accumulate(zeros[row], left, eight)

    def _repeated(self, row: int, k: ir.Value, count: int) -> ir.Value:
        """``steps`` bytes of a row of ``a``, for every column; zero beyond the first ``count``."""
        b, step = self.builder, self.step
        together = ir.IntType(8 * self.steps)
        first = k if step is None else b.mul(k, step)
        at = b.gep(self.left[row], [first], source_etype=I8)
        if count == self.steps and step is None:
            word = b.load(at, align=1, typ=together)
        else:
            word = together(0)
            for number in range(count):
                place = I64(number) if step is None else b.mul(step, I64(number))
                byte = b.load(b.gep(at, [place], source_etype=I8), align=1, typ=I8)
                word = b.or_(word, b.shl(b.zext(byte, together), together(8 * number)))
        vector = ir.VectorType(together, self.lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        first = b.insert_element(undefined, word, I32(0))
        everywhere = ir.Constant(ir.VectorType(I32, self.lanes), None)
        return b.bitcast(b.shuffle_vector(first, undefined, everywhere), self._bytes)


class _ScaledTile:
    """A tile of blocks with scales."""

    def __init__(self, tile: _ByteTile, a_scales: ir.Value, b_scales: ir.Value) -> None:
        assert tile.gemm.scales is not None
        self.tile = tile
        self.builder = tile.builder
        self.scales = tile.gemm.scales
        self.a_scales, self.b_scales = a_scales, b_scales
        self.kind = register_type(FLOAT32, tile.lanes)
        self.totals = [stack_slot(self.builder, self.kind) for _ in range(tile.size)]

    def run(self, out: ir.Value) -> None:
        """Leave the totals at ``out``."""
        b, tile, size = self.builder, self.tile, self.scales.size
        for slot in self.totals:
            b.store(constant(FLOAT32, 0.0, tile.lanes), slot)
        sums, zeros = tile.zeros(tile.size), tile.zeros(tile.rows)

        def block(number: ir.Value) -> None:
            tile.clear([*sums, *zeros])
            tile.multiply(sums, b.mul(number, I64(size)), size, zeros)
            self._add_block(number, sums, zeros)

        blocks = tile.depth // size
        counted_loop(b, I64(0), I64(blocks), 1, block, trips=blocks, name="block")
        for place, slot in enumerate(self.totals):
            store(b, out, FLOAT32, I64(place * tile.lanes), self._total(slot))

    def _add_block(
        self, number: ir.Value, sums: Sequence[ir.Value], zeros: Sequence[ir.Value]
    ) -> None:
        """Adds a block's sums, scaled, to the totals."""
        b, tile, lanes = self.builder, self.tile, self.tile.lanes
        first = b.mul(number, I64(tile.gemm.panel))
        columns = [
            load(b, self.b_scales, self.scales.b_dtype, b.add(first, I64(v * lanes)), lanes)
            for v in range(tile.vectors)
        ]
        for row in range(tile.rows):
            at = b.add(number, I64(row * self._row_step))
            left = broadcast(load(b, self.a_scales, FLOAT32, at), lanes)
            offset = tile.total(zeros[row])
            for vector, column in enumerate(columns):
                place = row * tile.vectors + vector
                exact = (tile.total(sums[place]) - offset).astype(FLOAT32)
                weight = left * column.astype(FLOAT32)
                total = intrinsic("fmuladd", exact, weight, self._total(self.totals[place]))
                b.store(total.value, self.totals[place])

    @property
    def _row_step(self) -> int:
        """Elements from one row's scales to the next one's."""
        parts = coefficient(self.scales.a_index, self.tile.gemm.m)
        assert parts is not None and isinstance(parts[0], int)
        return parts[0]

    def _total(self, slot: ir.Value) -> Lane:
        value = self.builder.load(slot, typ=self.kind)
        return Lane(self.builder, value, FLOAT32, self.tile.lanes)
