"""The register tile of a GEMM: some rows of ``a`` times one packed panel of ``b``.

A tile is an internal function of its own, so that its loop has the registers to itself. All sums
stay in registers for the whole of ``k``: every step reads one panel row as vectors, repeats one
element of each row of ``a``, and multiplies and adds. The shape (rows and vectors) is all that
tells one instruction set from another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.conversion import convert, from_memory
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic
from ostinato.backends.cpu.llvm.memory import load, prefetch, store
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I1, I8, I64, constant
from ostinato.backends.cpu.llvm.weight_columns import WeightColumns
from ostinato.backends.cpu.rules.tiles import chains_of
from ostinato.dtypes import BFLOAT16, FLOAT16, INT16
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.sum_axes import SumAxis
    from ostinato.variables import Dim

__all__ = ["define_tile", "row_pointers", "tile_dims", "tile_lanes"]

_STRAIGHT_LINE = 8
"""The longest innermost axis written out without a loop (a convolution's kernel width)."""

_PER_ITERATION = 48
"""Multiply-adds per iteration of the innermost loop, about: enough to outweigh the loop itself."""

_MOST_STEPS = 8
"""Steps of the innermost axis per iteration, at most."""


def tile_lanes(gemm: Gemm, target: TargetSpec) -> int:
    """Lanes per vector: a whole register, or less where a panel is no multiple of that."""
    return math.gcd(gemm.panel, target.lanes(gemm.acc.itemsize))


def tile_dims(gemm: Gemm) -> tuple[Dim, ...]:
    """The symbolic extents and steps that a tile's caller passes, in order."""
    dims = (dim for axis in gemm.sum_axes for dim in (axis.extent, axis.step))
    return tuple(dict.fromkeys(dim for dim in dims if not isinstance(dim, int)))


def define_tile(
    module: ir.Module,
    name: str,
    gemm: Gemm,
    rows: int,
    target: TargetSpec,
    pitch: int | None = None,
) -> ir.Function:
    """Adds the function ``void name(a, offsets, b, out, dims..., more...)`` to ``module``.

    ``a`` points at element 0 of the first row where :attr:`Gemm.row_stride` is known;
    otherwise at the buffer's, with ``offsets`` the rows' element offsets. ``b`` is the panel and
    ``out`` receives ``rows`` x ``panel`` sums, densely. ``dims`` are those of :func:`tile_dims`.
    With :attr:`Gemm.fetch`, ``ahead`` follows, the address from which to prefetch. With
    :attr:`Gemm.depth_block`, ``steps`` and ``resumed`` follow that: how many positions of ``k``
    there are from ``a`` and ``b`` on, and whether the sums so far are in ``out``.

    Args:
        pitch: elements from one row of ``b`` to the next, if they are not packed.
    """
    dims = tile_dims(gemm)
    arguments = [BYTE_POINTER] * 4 + [I64] * len(dims)
    if gemm.fetch is not None:
        arguments.append(BYTE_POINTER)
    if gemm.depth_block is not None:
        arguments += [I64, I1]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    target.decorate(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    a, offsets, b, out, *values = function.args
    more = values[len(dims) :]
    lanes = tile_lanes(gemm, target)
    tile = _Tile(
        builder,
        gemm,
        rows=row_pointers(builder, gemm, rows, a, offsets),
        vectors=gemm.panel // lanes,
        lanes=lanes,
        pitch=pitch or gemm.strip,
        dims=dict(zip(dims, values, strict=False)),
        given_chains=gemm.chains if gemm.depth_block is None else 1,
        ahead=more[0] if gemm.fetches(rows) and gemm.fetches_ahead else None,
        near=gemm.fetch.near if gemm.fetches(rows) and gemm.fetch is not None else 0,
        weights=_weights(gemm, lanes, pitch or gemm.strip, target),
    )
    if gemm.depth_block is None:
        _store_sums(tile, _accumulate(tile, b), out)
    else:
        _store_sums(tile, _accumulate_block(tile, b, out, more[-2], more[-1]), out)
    builder.ret_void()
    return function


def _weights(gemm: Gemm, lanes: int, pitch: int, target: TargetSpec) -> WeightColumns:
    """The columns of the panel, as vectors of ``lanes``."""
    vectors, dense = gemm.panel // lanes, pitch == gemm.strip == gemm.panel
    return WeightColumns(target, gemm.b_dtype, gemm.acc, vectors, lanes, dense)


@dataclass(frozen=True)
class _Tile:
    """State that the emitters of one tile share."""

    builder: ir.IRBuilder
    gemm: Gemm
    rows: Sequence[ir.Value]
    vectors: int
    lanes: int
    pitch: int
    dims: dict[Dim, ir.Value]
    given_chains: int | None
    ahead: ir.Value | None
    near: int
    weights: WeightColumns

    @property
    def size(self) -> int:
        """Vectors of sums."""
        return len(self.rows) * self.vectors

    @property
    def chains(self) -> int:
        """Sums per element: a tile too small to hide latency splits ``k`` among several."""
        return self.given_chains or chains_of(self.size)

    @property
    def steps(self) -> int:
        """Steps of the innermost axis per iteration of its loop, a multiple of ``chains``."""
        steps = max(1, min(_MOST_STEPS, _PER_ITERATION // self.size))
        if self.gemm.depth_block is not None:
            return 1 << (steps - 1).bit_length()  # blocks are multiples of all powers up to eight
        return max(1, steps // self.chains) * self.chains

    @property
    def line(self) -> int:
        """Bytes of a cache line."""
        return self.gemm.caches.line

    @property
    def strips(self) -> range:
        """The strips of the panel, by their first elements."""
        depth, strip = self.gemm.depth, self.gemm.strip
        if strip == self.gemm.panel:
            return range(1)
        assert isinstance(depth, int)
        return range(0, depth * self.gemm.panel, depth * strip)

    def place(self, vector: int) -> int:
        """The element at which a vector of a panel's row starts."""
        strip, column = divmod(vector * self.lanes, self.gemm.strip)
        return self.strips[strip] + column

    def lines(self, nbytes: int) -> int:
        """The lines to prefetch while ``nbytes`` of a strip are used."""
        return 0 if self.ahead is None else -(-nbytes // (self.line * self.gemm.fetching_tiles))

    def advance(self, nbytes: int) -> int:
        """The bytes that those lines are of."""
        return nbytes if self.gemm.fetching_tiles == 1 else self.lines(nbytes) * self.line

    def near_lines(self, number: int, row_bytes: int) -> Sequence[int]:
        """Distances of the lines to fetch into the first-level cache with a row of the panel."""
        if not self.near:
            return ()
        first = -(-number * row_bytes // self.line) * self.line
        return range(self.near + first, self.near + (number + 1) * row_bytes, self.line)

    def value(self, dim: Dim) -> ir.Value:
        return I64(dim) if isinstance(dim, int) else self.dims[dim]


@dataclass(frozen=True)
class _Cursor:
    """Progress of the sum: offset into a row of ``a``, panel pointer, sums, prefetch pointer.

    Behind the sums come the marks of the panel's columns (:class:`WeightColumns`).
    """

    offset: ir.Value
    b: ir.Value
    sums: list[ir.Value]
    ahead: ir.Value | None

    @property
    def state(self) -> list[ir.Value]:
        """All of it, as a loop carries it."""
        return [self.offset, self.b, *([] if self.ahead is None else [self.ahead]), *self.sums]

    def with_state(self, state: Sequence[ir.Value]) -> _Cursor:
        """The same with other values."""
        offset, b, *rest = state
        ahead = None if self.ahead is None else rest.pop(0)
        return _Cursor(offset, b, rest, ahead)


def row_pointers(
    builder: ir.IRBuilder, gemm: Gemm, rows: int, a: ir.Value, offsets: ir.Value
) -> list[ir.Value]:
    """Pointers to the rows of a tile; ``a`` and ``offsets`` as :func:`define_tile` has them."""
    stride = gemm.row_stride
    size = gemm.a_dtype.itemsize
    pointers = []
    for row in range(rows):
        if stride is not None:
            # One register and a constant displacement per row.
            distance = I64(row * stride * size)
        else:
            slot = builder.gep(offsets, [I64(row)], source_etype=I64)
            distance = builder.mul(builder.load(slot, typ=I64), I64(size))
        pointers.append(builder.gep(a, [distance], source_etype=I8))
    return pointers


def _accumulate(tile: _Tile, b: ir.Value) -> list[ir.Value]:
    zero = constant(tile.gemm.acc, 0, tile.lanes)
    sums = [*[zero] * (tile.chains * tile.size), *tile.weights.first_marks()]
    return _run(tile, tile.gemm.sum_axes, _Cursor(I64(0), b, sums, tile.ahead)).sums


def _accumulate_block(
    tile: _Tile, b: ir.Value, out: ir.Value, steps: ir.Value, resumed: ir.Value
) -> list[ir.Value]:
    """The sums over ``steps`` positions of ``k``, added one by one to those in ``out``, if any."""
    builder, gemm = tile.builder, tile.gemm
    (axis,) = gemm.sum_axes
    assert gemm.depth_block is not None
    start, resume = builder.block, builder.append_basic_block("resume")
    sum_up = builder.append_basic_block("sum")
    builder.cbranch(resumed, resume, sum_up)
    builder.position_at_end(resume)
    earlier = [
        load(builder, out, gemm.acc, I64(place * tile.lanes), tile.lanes).value
        for place in range(tile.size)
    ]
    builder.branch(sum_up)
    builder.position_at_end(sum_up)
    zero = constant(gemm.acc, 0, tile.lanes)
    sums = [builder.phi(zero.type) for _ in range(tile.size)]
    _join(sums, start, [zero] * tile.size, resume, earlier)
    cursor = _Cursor(I64(0), b, [*sums, *tile.weights.first_marks()], tile.ahead)
    assert isinstance(axis.extent, int)
    whole = axis.extent % tile.steps == gemm.depth_block % tile.steps == 0
    return _run_counted(tile, steps, axis.step, cursor, whole=whole).sums


def _run(tile: _Tile, axes: Sequence[SumAxis], cursor: _Cursor) -> _Cursor:
    """Adds all products over ``axes``; the offset comes back unchanged."""
    if not axes:
        return _steps(tile, cursor, 1, 0)
    axis, inner = axes[0], axes[1:]
    if not inner:
        return replace(_run_innermost(tile, axis, cursor), offset=cursor.offset)

    def body(at: _Cursor) -> _Cursor:
        after = _run(tile, inner, at)
        return replace(after, offset=tile.builder.add(at.offset, tile.value(axis.step)))

    return replace(_loop(tile, tile.value(axis.extent), cursor, body), offset=cursor.offset)


def _run_innermost(tile: _Tile, axis: SumAxis, cursor: _Cursor) -> _Cursor:
    extent, steps = axis.extent, tile.steps
    if isinstance(extent, int):
        if extent > _STRAIGHT_LINE:
            iterations = I64(extent // steps)
            cursor = _loop(tile, iterations, cursor, lambda at: _steps(tile, at, steps, axis.step))
            extent %= steps
        return _steps(tile, cursor, extent, axis.step)
    return _run_counted(tile, tile.value(extent), axis.step, cursor)


def _run_counted(
    tile: _Tile, count: ir.Value, step: Dim, cursor: _Cursor, *, whole: bool = False
) -> _Cursor:
    """``count`` products, known at run time only.

    Args:
        whole: whether ``count`` is a multiple of the steps per iteration.
    """
    builder, steps = tile.builder, tile.steps
    iterations = builder.udiv(count, I64(steps))
    cursor = _loop(tile, iterations, cursor, lambda at: _steps(tile, at, steps, step))
    if whole or steps == 1:
        return cursor
    rest = builder.urem(count, I64(steps))
    return _loop(tile, rest, cursor, lambda at: _steps(tile, at, 1, step))


def _loop(
    tile: _Tile, count: ir.Value, start: _Cursor, body: Callable[[_Cursor], _Cursor]
) -> _Cursor:
    """Repeats ``body`` ``count`` times, which may be none."""
    builder = tile.builder
    before = builder.block
    loop, done = builder.append_basic_block("k"), builder.append_basic_block("k.done")
    surely = isinstance(count, ir.Constant) and count.constant > 0
    if surely:
        builder.branch(loop)
    else:
        builder.cbranch(builder.icmp_signed(">", count, I64(0)), loop, done)

    builder.position_at_end(loop)
    index = builder.phi(I64)
    initial = start.state
    state = [builder.phi(value.type) for value in initial]
    end = body(start.with_state(state))
    final = end.state
    following = builder.add(index, I64(1))
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    _join([index, *state], before, [I64(0), *initial], last, [following, *final])

    builder.position_at_end(done)
    if surely:
        return end
    results = [builder.phi(value.type) for value in initial]
    _join(results, before, initial, last, final)
    return start.with_state(results)


def _join(
    phis: Sequence[ir.PhiInstr],
    first: ir.Block,
    initial: Sequence[ir.Value],
    second: ir.Block,
    final: Sequence[ir.Value],
) -> None:
    for phi, start, end in zip(phis, initial, final, strict=True):
        phi.add_incoming(start, first)
        phi.add_incoming(end, second)


def _steps(tile: _Tile, cursor: _Cursor, count: int, step: Dim) -> _Cursor:
    """``count`` consecutive products along the innermost axis."""
    builder, stored, pitch = tile.builder, tile.gemm.b_dtype, tile.pitch
    sums, stride = list(cursor.sums), tile.value(step)
    nbytes = count * pitch * stored.itemsize
    lines = tile.lines(nbytes)
    for number in range(count):
        for strip in tile.strips:
            first = strip * stored.itemsize
            for line in range(number * lines // count, (number + 1) * lines // count):
                assert cursor.ahead is not None
                prefetch(builder, cursor.ahead, I64(first + line * tile.line))
            for place in tile.near_lines(number, pitch * stored.itemsize):
                prefetch(builder, cursor.b, I64(first + place), level=1)
        places = [number * pitch + tile.place(vector) for vector in range(tile.vectors)]
        columns = [
            Lane(builder, tile.weights.vector(builder, cursor.b, place), tile.gemm.acc, tile.lanes)
            for place in places
        ]
        at = builder.add(cursor.offset, builder.mul(stride, I64(number)))
        chain = (number % tile.chains) * tile.size
        for row, pointer in enumerate(tile.rows):
            factor = _repeated(tile, pointer, at)
            for vector, column in enumerate(columns):
                place = chain + row * tile.vectors + vector
                sums[place] = _multiply_add(factor, column, sums[place])
        row = builder.gep(cursor.b, [I64(number * pitch * stored.itemsize)], source_etype=I8)
        first_mark = tile.chains * tile.size
        sums[first_mark:] = tile.weights.marked(builder, row, sums[first_mark:])
    offset = builder.add(cursor.offset, builder.mul(stride, I64(count)))
    b = builder.gep(cursor.b, [I64(nbytes)], source_etype=I8)
    ahead = cursor.ahead
    if ahead is not None:
        ahead = builder.gep(ahead, [I64(tile.advance(nbytes))], source_etype=I8)
    return _Cursor(offset, b, sums, ahead)


def _repeated(tile: _Tile, row: ir.Value, offset: ir.Value) -> Lane:
    """One element of ``a`` in every lane, as the accumulator's dtype."""
    builder, dtype, acc = tile.builder, tile.gemm.a_dtype, tile.gemm.acc
    if dtype not in (FLOAT16, BFLOAT16):
        return broadcast(load(builder, row, dtype, offset).astype(acc), tile.lanes)
    # Repeated as 16 bits and widened as a vector: scalar conversions would cross register files.
    bits = broadcast(load(builder, row, INT16, offset), tile.lanes)
    wide = from_memory(builder, bits.value, dtype, tile.lanes)
    return Lane(builder, convert(builder, wide, dtype, acc, tile.lanes), acc, tile.lanes)


def _multiply_add(x: Lane, y: Lane, total: ir.Value) -> ir.Value:
    if x.dtype.is_float:
        # fmuladd, not fma: without the instruction, fma would be a library call.
        return intrinsic("fmuladd", x, y, x.like(total)).value
    return (x * y + x.like(total)).value


def _store_sums(tile: _Tile, sums: Sequence[ir.Value], out: ir.Value) -> None:
    acc, marks = tile.gemm.acc, sums[tile.chains * tile.size :]
    firsts = tile.weights.with_nans(tile.builder, sums[: tile.size], marks)
    for place in range(tile.size):
        total = Lane(tile.builder, firsts[place], acc, tile.lanes)
        for chain in range(1, tile.chains):
            total = total + total.like(sums[chain * tile.size + place])
        store(tile.builder, out, acc, I64(place * tile.lanes), total)
