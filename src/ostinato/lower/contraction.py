"""The contraction kernel: a sum of products over packed panels, with a fused epilogue.

``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]``, then the epilogue's stores at every
``(batch, m, n)``. Matrix products and convolutions are both this kernel: they differ only in the
index expressions of ``a`` and in how ``b`` was packed.

The work is cut into *items*: one panel of ``b`` by one block of rows, for one batch point. A block
is a few register tiles, so that a panel stays in cache while tiles pass over it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nodes import Arg, Store, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import (
    Dim,
    Symbol,
    bounds,
    ceil_div,
    coefficient,
    minimum,
    prod,
    substitute,
    symbols,
)

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.lower.panels import BlockScales, PanelFormat

__all__ = ["Contraction", "SumAxis", "tile_choices", "tile_for"]

_ITEM_FLOPS = 2_000_000
"""About 20 µs of one core's work: long against the cost of handing an item out."""

_FLOPS_PER_BYTE = 5
"""What a core computes in the time in which it reads a byte of a panel for the first time."""

_BLOCK_BYTES = 12 << 10
"""Room for the sums of one item: they and their transpose fit a first-level cache."""

_RESIDENT_BYTES = 256 << 10
"""Panels of up to this many bytes together stay in the second-level cache."""

_CACHE_BYTES = 1 << 20
"""What a second-level cache holds, about."""

_MANY_ROWS = 512
"""Rows that make many blocks."""

_RUN = 16
"""Consecutive elements that are worth storing along rows; what is transposed is a multiple."""

_MAX_ROWS = 9
"""Rows of a tile at most: rows of ``a`` a power of two apart share a set of the first-level cache.

Twelve are 9% slower than nine or eight where a row has 1024, 4096 or 8192 float32.
"""

_MAX_VECTORS, _MAX_VECTORS_OF_32 = 4, 5
"""Vectors of a panel's row at most: with fewer than 32 registers, and with 32.

Groups of 68 columns are 22% faster as five vectors of 16 than as two panels of three.
"""


@dataclass(frozen=True)
class SumAxis:
    """A loop of the sum: ``extent`` values, ``step`` elements of ``a`` apart."""

    extent: Dim
    step: Dim


@dataclass(frozen=True, eq=False)
class Contraction:
    """A GEMM-like kernel (SPEC section 1, ``matmul`` and ``conv``).

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: outer axes, each an independent product; outermost first.
        m: the row axis: of the output, and of ``a``.
        n: the column axis: vector lanes.
        k: the axes summed over, outermost first (matmul has one; a convolution has channel and
            kernel positions). Their order is the order of rows in the packed panels.
        a: the argument that holds ``a``; ``a_dtype`` its element type.
        a_index: element offset over ``batch``, ``m`` and ``k``: ``f(batch, m) + g(k)`` with ``g``
            affine in each ``k`` axis.
        b: the argument that holds the packed panels: for each panel group, ``ceil(n / panel)``
            panels of ``prod(k)`` rows of ``panel`` elements, zero beyond ``n``.
        b_group: which panel group serves a batch point; an expression over ``batch``.
        panel: elements per row of a panel, a multiple of the vector length or a power of two.
        rows: how many rows of ``a`` a register tile holds.
        acc: the accumulator's dtype.
        epilogue: stores over ``batch``, ``m`` and ``n``, in which ``Accumulator`` is the sum.
        variables: the graph's Variables in the order of ``vars``.
        idle: the argument that holds one int64, within ``0..m``: how many of the last rows are not
            wanted, and what is stored for them undefined; ``None`` where all are wanted. It needs
            an ``m`` of known size and no ``batch``.
        b_format: how panels hold their elements; ``None``: as the accumulator does.
        scales: what weighs the products of each block of ``k``, if anything does.
        item_rows: rows of an item, a multiple of ``rows``; ``None``: as many as are worth it.
    """

    args: tuple[Arg, ...]
    batch: tuple[Symbol, ...]
    m: Symbol
    n: Symbol
    k: tuple[Symbol, ...]
    a: int
    a_dtype: DType
    a_index: Dim
    b: int
    b_group: Dim
    panel: int
    rows: int
    acc: DType
    epilogue: tuple[Store, ...]
    variables: tuple[Symbol, ...] = ()
    idle: int | None = None
    b_format: PanelFormat | None = None
    scales: BlockScales | None = None
    item_rows: int | None = None

    #: Points of the parallel range may run at the same time and in any order.
    parallel: ClassVar[bool] = True

    # -- how ``a`` is read --------------------------------------------------------------------

    @cached_property
    def row_offset(self) -> Dim:
        """``f(batch, m)``: where a row of ``a`` starts, in elements."""
        return substitute(self.a_index, dict.fromkeys(self.k, 0))

    @cached_property
    def row_stride(self) -> int | None:
        """Elements from one row of ``a`` to the next, where that is one known number."""
        split = coefficient(self.row_offset, self.m)
        return split[0] if split is not None and isinstance(split[0], int) else None

    @cached_property
    def sum_axes(self) -> tuple[SumAxis, ...]:
        """``k`` as loops, outermost first; axes that one loop can walk are merged.

        Raises:
            OstinatoError: ``a_index`` is not affine in ``k``, which is a bug in its maker.
        """
        merged: list[SumAxis] = []
        for symbol in self.k:
            axis = SumAxis(extent_of(symbol), _step(self.a_index, symbol, self.k))
            if axis.extent == 1:
                continue
            if merged and merged[-1].step == axis.extent * axis.step:
                axis = SumAxis(merged.pop().extent * axis.extent, axis.step)
            merged.append(axis)
        return tuple(merged)

    @property
    def b_dtype(self) -> DType:
        """The element type of the panels."""
        return self.acc if self.b_format is None else self.b_format.dtype

    @cached_property
    def panel_size(self) -> Dim:
        """Elements in memory of one panel."""
        form = self.b_format
        return self.depth * self.panel if form is None else form.size(self.depth, self.panel)

    @cached_property
    def depth(self) -> Dim:
        """How many products a sum has: the rows of a panel."""
        return prod(extent_of(symbol) for symbol in self.k)

    # -- how the work is cut ------------------------------------------------------------------

    @property
    def stripes(self) -> tuple[tuple[Contraction, ...], ...]:
        """This one, as :class:`~ostinato.lower.joint.JointProduct` has many."""
        return ((self,),)

    @cached_property
    def panels(self) -> Dim:
        """Panels per group."""
        return ceil_div(extent_of(self.n), self.panel)

    @cached_property
    def block(self) -> int:
        """Rows of an item: a multiple of ``rows``, sized to be worth handing out."""
        if self.item_rows is not None:
            return self.item_rows
        tiles = max(1, -(-max_extent(self.m) // self.rows))
        worthwhile = -(-_ITEM_FLOPS // max(1, 2 * self.rows * self._panel_elements))
        fitting = _BLOCK_BYTES // (self.rows * self.panel * self.acc.itemsize)
        if self.stores_along_rows:
            worthwhile = max(worthwhile, -(-_RUN // self.rows))
        if self.streams_rows:
            worthwhile = fitting
        per_block = max(1, min(tiles, worthwhile, fitting))
        return self.rows * -(-tiles // -(-tiles // per_block))

    @property
    def padded_block(self) -> int:
        """Rows of an item with those that only transposing touches."""
        return -(-self.block // _RUN) * _RUN

    @cached_property
    def remainders(self) -> tuple[int, ...]:
        """Heights of the tiles for the rows that full tiles leave: one for each possible count.

        None where every block of rows has at least a full tile's: the last tile of a block then
        goes back over rows of the one before it, which costs little time and no code. A symbolic
        count gets all heights, so that a product of a few rows reads each panel just once, as one
        compiled for that count does; panels are most of what it has to read.
        """
        m = extent_of(self.m)
        if isinstance(m, int):
            last = m % self.block
            return (last,) if 0 < last < self.rows else ()
        return tuple(range(1, min(self.rows, max_extent(self.m) + 1)))

    @cached_property
    def stores_along_rows(self) -> bool:
        """Whether the first store is contiguous along ``m`` rather than along ``n``."""
        index = self.epilogue[0].index
        along_m, along_n = coefficient(index, self.m), coefficient(index, self.n)
        if along_m is None or along_m[0] != 1:
            return False
        return max_extent(self.n) == 1 or along_n is None or along_n[0] != 1

    @cached_property
    def blocks(self) -> Dim:
        """Row blocks per batch point."""
        return ceil_div(extent_of(self.m), self.block)

    @cached_property
    def extent(self) -> Dim:
        """The parallel range: batch points x row blocks x panels."""
        return prod(extent_of(symbol) for symbol in self.batch) * self.blocks * self.panels

    def computed_rows(self, wanted: Dim) -> Dim:
        """How many rows are computed where the first ``wanted`` are wanted: whole tiles.

        A row comes from the same tile however many are wanted, so its sums are the same bits.
        """
        return minimum(ceil_div(wanted, self.rows) * self.rows, extent_of(self.m))

    def extent_for(self, wanted: int) -> Dim:
        """The parallel range where the first ``wanted`` rows are wanted."""
        return self.blocks_for(wanted) * self.panels

    def blocks_for(self, wanted: int) -> Dim:
        """Row blocks where the first ``wanted`` rows are wanted."""
        return ceil_div(self.computed_rows(wanted), self.block)

    @cached_property
    def panels_innermost(self) -> bool:
        """Whether consecutive items share rows of ``a`` rather than a panel.

        They do where all panels fit a cache, and where the rows do not.
        """
        return fits_cache(self.panels_bytes) or self.streams_rows

    @property
    def panels_bytes(self) -> int:
        """Bytes of all panels of a group, at most."""
        return self._panel_bytes * bounds(self.panels)[1]

    @cached_property
    def streams_rows(self) -> bool:
        """Whether rows are too many for the second-level cache to hold all of them.

        Then a block of them stays there while all panels pass by, which are read line by line.
        (Two threads, ``[1024, 768] x [768, 768]``: 224 GFLOP/s so, 222 panel by panel.)
        """
        rows, depth = extent_of(self.m), self.depth
        if not isinstance(rows, int) or not isinstance(depth, int) or self.batch:
            return False
        nbytes = rows * depth * self.a_dtype.itemsize
        return self.row_stride is not None and rows >= _MANY_ROWS and nbytes > _CACHE_BYTES

    @cached_property
    def grain(self) -> int:
        """How many consecutive items are worth handing out together."""
        rows = min(self.block, max_extent(self.m))
        work = max(2 * rows * self._panel_elements, _FLOPS_PER_BYTE * self._panel_bytes)
        return max(1, _ITEM_FLOPS // max(1, work))

    @cached_property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.sums_at(1)

    def sums_at(self, number: int) -> int:
        """Where in scratch memory sums start that ``number`` others come before.

        First come the offsets of rows. The transpose of sums stands right behind them.
        """
        turned = self.sums_bytes if self.stores_along_rows else 0
        return _whole_lines(8 * self.block) + number * (self.sums_bytes + turned)

    @property
    def sums_bytes(self) -> int:
        """Bytes that the sums of an item take."""
        return _whole_lines(self.padded_block * self.panel * self.acc.itemsize)

    @property
    def _panel_bytes(self) -> int:
        return bounds(self.panel_size)[1] * self.b_dtype.itemsize

    @property
    def _panel_elements(self) -> int:
        return self.panel * bounds(self.depth)[1]


def fits_cache(nbytes: int) -> bool:
    """Whether panels of so many bytes together stay in the second-level cache."""
    return nbytes <= _RESIDENT_BYTES


def tile_for(vector_bytes: int, registers: int, acc: DType, m: Dim, *n: Dim) -> tuple[int, int]:
    """The register tile, ``(rows, panel)``, for products of ``m`` x ``n``.

    Where a size is symbolic, the tile takes the least time for products of several sizes, from the
    least to the greatest, each twice the one before.

    Args:
        vector_bytes: the width of a vector register.
        registers: how many vector registers there are.
        acc: the accumulator's dtype.
        m: rows of the product.
        n: columns of the product; of each one, if several are cut alike.
    """
    return tile_choices(vector_bytes, registers, acc, m, *n)[0]


def tile_choices(
    vector_bytes: int, registers: int, acc: DType, m: Dim, *n: Dim
) -> list[tuple[int, int]]:
    """The register tiles worth considering, the one likely to be fastest first.

    Args:
        vector_bytes, registers, acc, m, n: as for :func:`tile_for`.
    """
    lanes = max(1, vector_bytes // acc.itemsize)
    most_m, widths = bounds(m)[1], [bounds(columns)[1] for columns in n]
    most_n = max(widths)
    if most_n < lanes:
        panel = 1 << max(0, most_n - 1).bit_length()
        return [(min(_most_rows(registers, 1), max(1, most_m)), panel)]
    widest = _MAX_VECTORS if registers < 32 else _MAX_VECTORS_OF_32
    shapes = [
        (rows, vectors)
        for vectors in range(1, widest + 1)
        for rows in _row_choices(most_m, _most_rows(registers, vectors))
    ]
    sizes = [
        (rows, -(-columns // lanes), each)
        for each in n
        for rows in _samples(m)
        for columns in _samples(each)
    ]

    def cost(shape: tuple[int, int]) -> tuple[int, int]:
        """By time, then by loads."""
        rows, vectors = shape
        tiles = -(-most_m // rows) * sum(-(-width // (vectors * lanes)) for width in widths)
        time = sum(_cost(shape, (r, c), m, each) for r, c, each in sizes)
        # What is nearly as fast by this count is faster with eight rows than with nine.
        return time * (100 if rows % 8 == 0 else 101), tiles * (rows + vectors)

    return [(rows, vectors * lanes) for rows, vectors in sorted(shapes, key=cost)]


def _samples(size: Dim) -> list[int]:
    """Values of a size that stand for all of them."""
    least, most = bounds(size)
    found = [max(1, most)]
    while found[-1] // 2 >= max(1, least):
        found.append(found[-1] // 2)
    return found


def _cost(shape: tuple[int, int], size: tuple[int, int], m: Dim, n: Dim) -> int:
    """Time per step of ``k`` over a whole product of ``size``: rows, and vectors of columns.

    A symbolic ``m`` has a tile of every height for the last rows. A symbolic ``n`` has panels that
    are packed at each run, the last one in full.
    """
    (rows, vectors), (all_rows, all_vectors) = shape, size
    panels = -(-all_vectors // vectors)
    if isinstance(m, int):
        time = -(-all_rows // rows) * _tile_time(rows, vectors)
    else:
        full, rest = divmod(all_rows, rows)
        time = full * _tile_time(rows, vectors) + (_tile_time(rest, vectors) if rest else 0)
    packing = 0 if isinstance(n, int) else 2 * vectors
    return panels * (time + packing)


def _step(index: Dim, symbol: Symbol, k: tuple[Symbol, ...]) -> Dim:
    split = coefficient(index, symbol)
    if split is None or not symbols(split[0]).isdisjoint(k):
        raise OstinatoError(f"contraction: {index} is not affine in {symbol.name}")
    return split[0]


def _most_rows(registers: int, vectors: int) -> int:
    """Rows whose sums fit beside a panel row and two temporaries."""
    return max(1, min(_MAX_ROWS, (registers - vectors - 2) // vectors))


def _row_choices(m: int, most: int) -> range:
    """Heights worth considering: at least half of what fits, if there are as many rows."""
    highest = max(1, min(m, most))
    return range(highest, (highest + 1) // 2 - 1, -1)


def _tile_time(rows: int, vectors: int) -> int:
    """Cycles per step of ``k``, up to a factor.

    A tile multiplies ``rows * vectors`` vectors, for which it reads a panel row from the
    second-level cache, at half the speed, and one element of each row. To start and to finish
    takes longer, in proportion, the smaller the tile.
    """
    return 1 + max(rows * vectors, rows + 2 * vectors)


def _whole_lines(size: int) -> int:
    return -(-size // 64) * 64
