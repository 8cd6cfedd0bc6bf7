"""The GEMM kernel: a matmul over packed panels, with a fused epilogue.

``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]``, then the epilogue's stores at every
``(batch, m, n)``. Matmuls and convolutions are both this kernel: they differ only in the index
expressions of ``a`` and in how ``b`` was packed.

The work is cut into *items*: one panel of ``b`` by one block of rows, for one batch point. A block
is a few register tiles, so that a panel stays in cache while tiles pass over it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.backends.cpu.rules.prefetch import fits_cache
from ostinato.backends.cpu.rules.sum_axes import SumAxis, sum_axes
from ostinato.backends.cpu.rules.tiles import chains_of
from ostinato.backends.cpu.work_items import MANY_ITEMS
from ostinato.lower.loopir.dependences import accesses_of_statements
from ostinato.lower.loopir.kernel import Access
from ostinato.lower.loopir.nodes import Arg, Store, extent_of, max_extent
from ostinato.records import dataclass, field
from ostinato.variables import (
    Dim,
    Symbol,
    axis,
    bounds,
    ceil_div,
    coefficient,
    minimum,
    prod,
    substitute,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.backends.cpu.rules.packing import BlockRows, BlockScales, PanelFormat
    from ostinato.backends.cpu.rules.prefetch import Prefetch
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.text import KernelText

__all__ = ["Gemm"]

_ITEM_FLOPS = 2_000_000
"""About 20 µs of one core's work: long against the cost of handing an item out."""

_FLOPS_PER_BYTE = 5
"""Operations of a core in the time in which it reads a byte of a panel for the first time."""

_BLOCK_SHARE = 3, 8
"""The share of a first-level cache that the sums of an item may take: it holds their transpose,
too, and part of a panel."""

_SUMS_PART = 16
"""The part of the second-level cache that the sums of an item may take."""

_ROWS_PART = 4
"""The part of the second-level cache that an item's rows may take where panels pass by: BERT-base,
8 x 128, takes 0.98 of the time so on an Intel Xeon with 2 MB, by 1/8 and 1/2 as long."""

_REUSING_ROWS = 256
"""Rows that go over a panel for so long that its arrival takes no time to speak of."""

_TALL_ROWS = 256
"""Rows of an item where tile registers multiply them: its panel is unpacked once for all."""

_MANY_ROWS = 512
"""Rows that make many blocks."""

_RUN = 16
"""Consecutive elements that are worth storing along rows; what is transposed is a multiple."""


@dataclass(frozen=True, eq=False)
class Gemm(CpuKernel):
    """A matmul or convolution whose right operand is in packed panels.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: outer axes, each an independent matmul; outermost first.
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
        masked_tail: the argument that holds one int64, within ``0..m``: the number of last rows
            that are not wanted, whose results are undefined; ``None`` where all are wanted. It
            needs an ``m`` of known size and no ``batch``.
        b_format: how panels hold their elements; ``None``: as the accumulator does.
        scales: what weighs the products of each block of ``k``, if anything does.
        block_rows: the left operand's scales and sums, if panels hold blocks of packed weights.
        chains: partial sums per element; ``None``: as many as hide the latency of each tile.
        item_rows: rows of an item, a multiple of ``rows``; ``None``: as many as are worth it.
        caches: those of a core, which the order of items suits.
        prefetch: the distances at which panels are prefetched; ``None``: they are not.
        items: the work items to have at least, where large ones would leave fewer.
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
    masked_tail: int | None = None
    b_format: PanelFormat | None = None
    scales: BlockScales | None = None
    item_rows: int | None = None
    caches: CacheSizes = field(default_factory=CacheSizes)
    prefetch: Prefetch | None = None
    block_rows: BlockRows | None = None
    chains: int | None = None
    items: int = MANY_ITEMS

    renderer: ClassVar[str] = "gemm"

    # -- text and accesses --------------------------------------------------------------------

    @property
    def directing(self) -> Mapping[int, object]:
        return {} if self.masked_tail is None else {self.masked_tail: None}

    def describe(self, text: KernelText) -> None:
        text.line(0, "gemm")
        text.head(self.args)
        self.describe_sums(text)
        for store in self.epilogue:
            text.statement(store)

    def describe_sums(self, text: KernelText) -> None:
        """Everything but the epilogue."""
        for symbol in self.batch:
            text.line(1, f"for {text.axis(symbol)}")
        given = self.item_rows is not None or self._in_blocks
        items = f" in items of {self.block}" if given else ""
        text.line(1, f"rows {text.axis(self.m)} by {self.rows}{items}")
        text.line(1, f"columns {text.axis(self.n)} by {self.panel}")
        for symbol in self.k:
            text.line(1, f"sum over {text.axis(symbol)}")
        left = f"{self.a_dtype.short} b{self.a}[{text.dim(self.a_index)}]"
        kind = "" if self.b_format is None else f"{self.b_format} "
        right = f"{kind}b{self.b}.group[{text.dim(self.b_group)}]"
        chains = "" if self.chains is None else f" in sums of {self.chains}"
        text.line(1, f"accumulate {self.acc.short} {left} * {right}{chains}")
        if (scales := self.scales) is not None:
            left = f"f32 b{scales.a}[{text.dim(scales.a_index)}]"
            right = f"{scales.b_dtype.short} b{scales.b}"
            text.line(1, f"blocks of {scales.size} scaled by {left} and {right}")
        if (rows := self.block_rows) is not None:
            text.line(1, rows.describe(text))
        if self.masked_tail is not None:
            text.line(1, f"without the last b{self.masked_tail}[0] rows")
        if self.fetch is not None:
            blocks = "" if self.depth_block is None else f", k in blocks of {self.depth_block}"
            text.line(1, f"prefetch {self.fetch}{blocks}")

    def accesses(self) -> Iterator[Access]:
        yield Access(self.a, self.a_index, writes=False)
        group = prod((self.panels, self.panel_size))
        element = axis("panel.element", group)
        yield Access(self.b, self.b_group * group + element, writes=False)
        if (scales := self.scales) is not None:
            block = axis("block", self.depth // scales.size)
            yield Access(scales.a, scales.a_index + block, writes=False)
        if (rows := self.block_rows) is not None:
            block = axis("block", self.depth // rows.size)
            yield Access(rows.scales, rows.scales_index + block, writes=False)
            group = axis("group", self.depth // rows.group)
            yield Access(rows.sums, rows.sums_index + group, writes=False)
        yield from accesses_of_statements(self.epilogue)

    @property
    def row_axis(self) -> Symbol | None:
        axes = self.batch or ((self.m,) if self.masked_tail is not None else ())
        known = all(isinstance(extent_of(symbol), int) for symbol in axes)
        return axes[0] if axes and known and isinstance(self.extent, int) else None

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
        return sum_axes(self.a_index, self.k)

    @property
    def amx(self) -> bool:
        """Whether sums are in the tile registers of AMX."""
        return self.b_format is not None and self.b_format.tile_rows > 1

    @property
    def tall(self) -> int:
        """Rows that are multiplied at a time in tile registers, those that are left by vectors.

        Rows that are not evenly spaced are all left to vectors; 0: so are all others.
        """
        if self.b_format is None or self.row_stride is None:
            return 0
        return self.b_format.tall if max_extent(self.m) >= self.b_format.tall else 0

    @property
    def widens(self) -> bool:
        """Whether tiles widen panels of 16-bit floats as they read them."""
        form = self.b_format
        return form is not None and form.steps == 1 and form.dtype.itemsize == 2

    @property
    def b_dtype(self) -> DType:
        """The element type of the panels."""
        return self.acc if self.b_format is None else self.b_format.dtype

    @property
    def strip(self) -> int:
        """Columns that stand side by side in a panel: all, unless it is in strips."""
        form = self.b_format
        return self.panel if form is None else form.strip or self.panel

    @property
    def narrow_strips(self) -> bool:
        """Whether panels are in strips narrower than a cache line."""
        narrow = self.strip * self.b_dtype.itemsize < self.caches.line
        return self.strip < self.panel and narrow

    @cached_property
    def panel_size(self) -> Dim:
        """Elements in memory of one panel."""
        form = self.b_format
        return self.depth * self.panel if form is None else form.size(self.depth, self.panel)

    @cached_property
    def depth(self) -> Dim:
        """The number of products in a sum: the rows of a panel."""
        return prod(extent_of(symbol) for symbol in self.k)

    # -- how the work is cut ------------------------------------------------------------------

    @property
    def segments(self) -> tuple[tuple[Gemm, ...], ...]:
        """Itself alone, as :class:`~ostinato.backends.cpu.rules.multi_gemm.MultiGemm` has many."""
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
        share, whole = _BLOCK_SHARE
        room = self.caches.first * share // whole
        if self._in_blocks and not self.streams_rows:
            # Sums rest in the second-level cache while other tiles go over the block of k. The
            # fewer items a panel is in, the more computes while its next block arrives.
            room = max(room, self.caches.second // _SUMS_PART)
            blocks = -(-self.items // bounds(self.panels)[1])
            worthwhile = max(worthwhile, -(-tiles // blocks))
        fitting = room // (self.rows * self.panel * self.acc.itemsize)
        if self.stores_along_rows:
            worthwhile = max(worthwhile, -(-_RUN // self.rows))
        if self.streams_rows:
            # The more rows pass over panels, the less often all of these pass by.
            row_bytes = bounds(self.depth)[1] * self.a_dtype.itemsize
            near = self.caches.second // _ROWS_PART // (self.rows * row_bytes)
            worthwhile = fitting = max(fitting, near)
        if self.tall:
            worthwhile = max(worthwhile, _TALL_ROWS // self.rows)
        per_block = max(1, min(tiles, worthwhile, fitting))
        block = self.rows * -(-tiles // -(-tiles // per_block))
        return -(-block // self.tall) * self.tall if self.tall else block

    @property
    def padded_block(self) -> int:
        """Rows of an item with those that only transposing touches."""
        return -(-self.block // _RUN) * _RUN

    @cached_property
    def remainders(self) -> tuple[int, ...]:
        """Heights of the tiles for the rows that full tiles leave: one for each possible count.

        None where every block of rows has at least a full tile's: the last tile of a block then
        goes back over rows of the one before it, which costs little time and no code. A symbolic
        count gets all heights, so that a matmul of a few rows reads each panel just once, as one
        compiled for that count does; panels are most of what it has to read.
        """
        m = extent_of(self.m)
        if isinstance(m, int):
            # Going back over rows would add what follows of their sums twice. Tiles of AMX take
            # time for each row.
            overlapping = self.depth_block is None and not self.amx
            last = m % (self.block if overlapping else self.rows)
            if self.tall:
                last = m % self.tall % self.rows
            return (last,) if 0 < last < self.rows else ()
        return tuple(range(1, min(self.rows, max_extent(self.m) + 1)))

    # -- prefetching --------------------------------------------------------------------------

    @cached_property
    def fetch(self) -> Prefetch | None:
        """:attr:`prefetch` where it pays: panels come from memory and not by the hardware alone."""
        fetch = self.prefetch
        rows = max_extent(self.m)
        if fetch is None or self.amx:
            return None
        if self.block_rows is not None:
            fetch = fetch.of_packed_weights
        elif self.widens:
            fetch = fetch.of_widened_weights
        if rows < fetch.least_rows:
            return None
        # A symbolic number of rows is few in the runs whose time is that of reading weights.
        few = not isinstance(extent_of(self.m), int)
        if rows > _REUSING_ROWS and not self.streams_rows and not few:
            return None
        if self.scales is not None:
            return None  # half bytes take so long to compute that the hardware keeps up
        if self.narrow_strips and (few or rows <= self.rows):
            return None  # the hardware runs ahead of each strip, far enough for one tile
        groups = bounds(self.b_group)[1] + 1
        return None if fits_cache(groups * self.panels_bytes, self.caches) else fetch

    @property
    def fetches_ahead(self) -> bool:
        """Whether tiles prefetch into the second-level cache, too.

        A tile that is alone with its strips does not: the hardware runs ahead of each of them, and
        further requests delay that (8 rows take 1.02 times as long on Emerald Rapids, 4 rows 1.05).
        """
        return self.depth_block is not None or self.strip == self.panel

    def fetches(self, height: int) -> bool:
        """Whether tiles of so many rows prefetch."""
        if self.fetch is None:
            return False
        return height >= self.fetch.least_rows or isinstance(extent_of(self.m), int)

    @cached_property
    def item_tiles(self) -> int:
        """The register tiles that go over a panel in an item, at most."""
        return -(-min(self.block, max_extent(self.m)) // self.rows)

    @cached_property
    def depth_block(self) -> int | None:
        """Positions of ``k`` that all tiles of an item go over before any goes on; None: all.

        Sums go on where they were, in the same order.
        """
        fetch, depth = self.fetch, self.depth
        if fetch is None or not self._in_blocks or self.item_tiles == 1:
            return None
        assert isinstance(depth, int)
        return fetch.block_steps(depth, self._panel_bytes, self.item_sums_bytes)

    @cached_property
    def _in_blocks(self) -> bool:
        """Whether tiles can go over ``k`` block by block."""
        if self.fetch is None or len(self.sum_axes) != 1:
            return False
        if self.b_format is not None and self.b_format.depth > 1:
            return False
        m = extent_of(self.m)
        if not isinstance(self.depth, int) or not isinstance(m, int):
            return False
        lanes = max(1, self.fetch.vector_bytes // self.acc.itemsize)
        vectors = max(1, self.panel // lanes)
        # A tile that splits k among partial sums would have others if it went on with one.
        lowest = m % self.rows or self.rows
        return (self.chains or chains_of(lowest * vectors)) == 1

    @property
    def fetching_tiles(self) -> int:
        """The tiles that share the lines of the next block among them."""
        return 1 if self.depth_block is None else self.item_tiles

    @cached_property
    def stores_along_rows(self) -> bool:
        """Whether the first store is contiguous along ``m`` rather than along ``n``."""
        index = self.epilogue[0].index
        along_m, along_n = coefficient(index, self.m), coefficient(index, self.n)
        if along_m is None or along_m[0] != 1:
            return False
        return max_extent(self.n) == 1 or along_n is None or along_n[0] != 1

    @property
    def finishes_tiles(self) -> bool:
        """Whether the epilogue runs over each tile once its sums are whole, not over an item.

        Then its stores arrive in memory while the next tile is computed. (One thread of a Xeon,
        ``[128, 768] x [768, 3072]``: 0.84 of the rate of multiply-adds without, 0.91 with it.)
        """
        return not (self.tall or self.stores_along_rows)

    @property
    def keeps_item(self) -> bool:
        """Whether the sums of all rows of an item are in scratch memory, not those of a tile."""
        if not self.finishes_tiles:
            return True
        return self.depth_block is not None and self.depth_block < bounds(self.depth)[1]

    @cached_property
    def blocks(self) -> Dim:
        """Row blocks per batch point."""
        return ceil_div(extent_of(self.m), self.block)

    @cached_property
    def extent(self) -> Dim:
        """The parallel range: batch points x row blocks x panels."""
        return prod(extent_of(symbol) for symbol in self.batch) * self.blocks * self.panels

    def computed_rows(self, wanted: Dim) -> Dim:
        """The number of rows computed where the first ``wanted`` are wanted: whole tiles.

        A row comes from the same tile however many are wanted, so its sums are the same bits.
        """
        return minimum(ceil_div(wanted, self.rows) * self.rows, extent_of(self.m))

    def extent_for(self, wanted: int) -> Dim:
        if self.batch:
            return super().extent_for(wanted)
        return self.blocks_for(wanted) * self.panels

    def blocks_for(self, wanted: int) -> Dim:
        """Row blocks where the first ``wanted`` rows are wanted."""
        return ceil_div(self.computed_rows(wanted), self.block)

    @cached_property
    def panels_innermost(self) -> bool:
        """Whether consecutive items share rows of ``a`` rather than a panel.

        They do where all panels fit a cache, and where the rows do not, or are unpacked panels'.
        """
        many = self.streams_rows or self.tall > 0
        return many or fits_cache(self.panels_bytes, self.caches)

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
        large = nbytes > self.caches.second
        return self.row_stride is not None and rows >= _MANY_ROWS and large

    @cached_property
    def grain(self) -> int:
        """The number of consecutive items that are worth handing out together."""
        rows = min(self.block, max_extent(self.m))
        work = max(2 * rows * self._panel_elements, _FLOPS_PER_BYTE * self._panel_bytes)
        return max(1, _ITEM_FLOPS // max(1, work))

    @cached_property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.sums_at(1)

    def sums_at(self, number: int) -> int:
        """The offset in scratch memory of sums that ``number`` others come before.

        First come the offsets of rows. The transpose of sums stands right behind them.
        """
        turned = self.sums_bytes if self.stores_along_rows else 0
        return _whole_lines(8 * self.block) + number * (self.sums_bytes + turned)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums that are in scratch memory at a time."""
        return self.item_sums_bytes if self.keeps_item else self._sums_of(self.rows)

    @property
    def item_sums_bytes(self) -> int:
        """Bytes of the sums of an item."""
        return self._sums_of(self.padded_block)

    def _sums_of(self, rows: int) -> int:
        return _whole_lines(rows * self.panel * self.acc.itemsize)

    @property
    def _panel_bytes(self) -> int:
        return bounds(self.panel_size)[1] * self.b_dtype.itemsize

    @property
    def _panel_elements(self) -> int:
        return self.panel * bounds(self.depth)[1]


def _whole_lines(size: int) -> int:
    return -(-size // 64) * 64
