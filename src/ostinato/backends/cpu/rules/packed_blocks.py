"""Matmuls of 8-bit integers with packed weights, whose panels keep the bits of each element.

A block of a panel has, for each of its columns, what a block of the format has, in the order in
which a register tile reads it: the scale and the minimum, then, for each chunk of 32 positions of
``k``, the integers by which those count in its groups, a byte each, and its codes, in units of a
few positions. A unit has a *plane* for each field of bits that the format keeps apart. So a tile
reads a panel from its first byte to its last, as the hardware's prefetchers expect. (Where all
integers of a block came before all of its codes, one row reached two thirds of the bandwidth.)
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from ostinato.backends.cpu.rules.packing import TILE_ROWS, BlockRows, PanelFormat
from ostinato.backends.cpu.rules.stepped_matmul import RowMatmul, guarded
from ostinato.backends.cpu.rules.tiles import tile_of_least_time
from ostinato.dtypes import INT8, INT32, UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    IndexValue,
    Load,
    Number,
    Scalar,
    Stage,
    Store,
)
from ostinato.lower.loopir.views import VIEWS, linear_index, unravel
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.matmul_spec import MatmulSpec, row_spec
from ostinato.ops.packed.formats import FORMATS, BlockFormat
from ostinato.ops.packed_weights import PACKED_BLOCK_MATMUL
from ostinato.records import dataclass, field, replace
from ostinato.variables import Dim, bounds, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.prefetch import Prefetch
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.views import Indices
    from ostinato.ops.packed.fields import Field
    from ostinato.variables import Symbol

__all__ = [
    "CHUNK",
    "MINIMA_SHIFT",
    "ROWS_OF_PAIRS",
    "BlockPanels",
    "Octet",
    "PackedBlockMatmul",
    "PanelPacking",
    "packed_block_matmul",
    "pairs_in_16_bits",
]

#: Reads a byte of a block: see :class:`PanelPacking`.
Octet: TypeAlias = "Callable[[Indices, Dim, Dim, Dim, bool], Scalar]"

CHUNK = 32
"""Positions of ``k`` whose codes stand together: a multiple of what a byte of any plane holds, and
of a group."""

MINIMA_SHIFT = 4
"""The position of the integer by which a minimum counts, where it shares a byte with a factor."""

ROWS_OF_PAIRS = 4
"""Rows whose sums registers hold at once, with products in pairs; a tile has twice as many."""

_MOST_ROWS, _MOST_VECTORS = 8, 4


@dataclass(frozen=True)
class BlockPanels(PanelFormat):
    """The format of panels that hold blocks of packed weights.

    Offsets are bytes of a column, from the start of a block or of a chunk; a panel has the bytes of
    all columns for each of them. ``steps`` positions of ``k`` are side by side in each plane.

    Attributes:
        form: of the blocks.
    """

    form: BlockFormat = field(kw_only=True)

    @property
    def minimum(self) -> int:
        """The offset of the minimum in a block; the scale is at 0."""
        return self.form.scale.nbytes

    @property
    def first_chunk(self) -> int:
        """The offset of the first chunk in a block."""
        return self.minimum + (0 if self.form.minimum is None else self.form.minimum.nbytes)

    @property
    def chunks(self) -> int:
        """Chunks of a block."""
        return self.form.size // CHUNK

    @property
    def chunk_groups(self) -> int:
        """Groups of a chunk."""
        return CHUNK // self.form.group

    @property
    def paired(self) -> bool:
        """Whether a factor and the integer by which the minimum counts share a byte."""
        factors, minima = self.form.factors, self.form.minima
        return factors is not None and minima is not None and factors.bits + minima.bits <= 8

    @property
    def minima(self) -> int:
        """The offset of the integers by which the minimum counts in a chunk.

        The factors are at 0.
        """
        return 0 if self.form.factors is None or self.paired else self.chunk_groups

    @property
    def first_unit(self) -> int:
        """The offset of the first unit in a chunk."""
        return self.minima + (0 if self.form.minima is None else self.chunk_groups)

    @cached_property
    def unit(self) -> int:
        """Positions of ``k`` of a unit: those of a row of the narrowest plane."""
        return self.steps * 8 // min(part.bits for part in self.form.codes.fields)

    @property
    def unit_bytes(self) -> int:
        """Bytes of a column of a unit."""
        return self.unit * self.form.codes.bits // 8

    @cached_property
    def planes(self) -> tuple[int, ...]:
        """The offset of each plane in a unit, in the order of the fields.

        The narrowest plane comes first, each row of which is of the most positions.
        """
        fields = self.form.codes.fields
        found = [0] * len(fields)
        offset = 0
        for number in sorted(range(len(fields)), key=lambda number: fields[number].bits):
            found[number] = offset
            offset += self.unit * fields[number].bits // 8
        return tuple(found)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a column of a chunk."""
        return self.first_unit + CHUNK * self.form.codes.bits // 8

    @cached_property
    def column_bytes(self) -> int:
        """Bytes of a column of a block."""
        return self.first_chunk + self.chunks * self.chunk_bytes

    @property
    def fitting_pairs(self) -> int:
        """The number of pairs of products whose sum surely fits 16 bits; codes are unsigned."""
        return pairs_in_16_bits(self.form)

    def size(self, depth: Dim, panel: int) -> Dim:
        """Bytes of a panel."""
        return self.blocks(depth) * (self.column_bytes * panel)

    def blocks(self, depth: Dim) -> int:
        """Blocks along ``k``."""
        return bounds(depth)[1] // self.form.size

    def __str__(self) -> str:
        tall = f", {self.tall} rows in tile registers" if self.tall else ""
        return f"blocks of {self.form.name} by {self.steps}{tall}"


@dataclass(frozen=True, eq=False)
class PackedBlockMatmul(RowMatmul):
    """A matmul with packed weights.

    Attributes:
        form: of the weights.
        scales: the rows of the left operand's scales; ``sums``, those of its sums.
        negatable: whether no integer of the left operand is -128, whose opposite has more bits.
    """

    form: BlockFormat
    scales: RowMatmul
    sums: RowMatmul
    negatable: bool = False

    def _in_pairs(self, registers: RegisterFile) -> bool:
        """Whether products are summed in pairs: one of signed codes takes opposites."""
        fits = self.negatable or pairs_in_16_bits(self.form) > 0
        return registers.byte_pairs and not registers.byte_dots and fits

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Two sums of each element are in registers: of a group in integers, of all in float32.

        The time of a tile is that of its products, and of taking apart a row of the panel; to
        repeat an element of a row of ``a`` takes none. With products in pairs, the registers are
        for the sums of 16 bits of some rows; the panel is taken apart once for all of them.
        """
        pairs = self._in_pairs(registers)

        def fits(rows: int, vectors: int) -> bool:
            if pairs:
                return min(rows, ROWS_OF_PAIRS) * vectors + vectors + 3 <= registers.count
            return 2 * rows * vectors + 2 * vectors + 4 <= registers.count

        def time(rows: int, vectors: int) -> int:
            if pairs:
                return 4 * rows * vectors + 4 * vectors + rows
            return 4 * rows * vectors + 10 * vectors + 4

        columns = [matmul.spec.n for matmul in (self, *others)]
        most = _MOST_ROWS, _MOST_VECTORS
        return tile_of_least_time(
            registers, INT32, most, fits, time, self.spec.m, *columns, prefer_wide=True
        )

    def panel_format(self, registers: RegisterFile) -> BlockPanels:
        together = registers.byte_dots or self._in_pairs(registers)
        tall = TILE_ROWS if registers.byte_dots and INT8 in registers.amx_dtypes else 0
        return BlockPanels(UINT8, 4 if together else 2, tall=tall, form=self.form)

    @property
    def row_operands(self) -> tuple[PackedMatmul, ...]:
        return (self, self.scales, self.sums)

    # -- packing ------------------------------------------------------------------------------

    def packed_buffer(
        self, panel: int, role: Role, form: PanelFormat | None = None
    ) -> LoweredBuffer:
        assert isinstance(form, BlockPanels)
        blocks = form.blocks(self.spec.depth)
        panels = ceil_div(self.spec.n, panel)
        shape = (*self.spec.groups, panels, blocks, form.column_bytes * panel)
        return LoweredBuffer(TensorType(UINT8, shape), role, f"{self.spec.node.label}.packed")

    def pack_nest(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
    ) -> LoopNest:
        assert isinstance(form, BlockPanels)
        w, nbytes = self.spec.b, self.form.nbytes

        def octet(groups: Indices, column: Dim, block: Dim, byte: Dim, scale: bool) -> Scalar:
            return build.at(w, (*groups, column, block * nbytes + byte))

        packing = PanelPacking(build, packed, panel, form, octet, columns=self.spec.n)
        return packing.nest(variables)

    # -- the matmul ---------------------------------------------------------------------------

    def block_rows(self, build: KernelBuilder, batch: Indices, row: Dim) -> BlockRows:
        scales, sums = (
            build.at(part.spec.a, part.spec.a_at(batch, row, (0,)))
            for part in (self.scales, self.sums)
        )
        assert isinstance(scales, Load)
        assert isinstance(sums, Load)
        left = scales.buffer, scales.index, sums.buffer, sums.index
        return BlockRows(self.form.size, self.form.group, *left)

    def row_prefetch(self, registers: RegisterFile) -> Prefetch | None:
        nbytes = self.spec.b.type.max_bytes
        found = registers.prefetch_for(self.spec.m, nbytes, unpacks=True)
        return None if found is None else found.of_packed_weights


class PanelPacking:
    """The kernel that brings packed weights into panels, zero beyond the last column.

    Args:
        build: of the kernel.
        packed: the panels, ``[..., panels, blocks, bytes]``.
        panel: columns of a panel.
        form: of the panels.
        blocks: the layout of codes in the bytes that are read, if not that of ``form``.
        octet: a byte of a block: given the indices before those of panels, the column, the block,
            the byte, and whether it is one of a scale.
        columns: how many there are; ``None``: as many as fill the panels.
    """

    def __init__(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        form: BlockPanels,
        octet: Octet,
        blocks: BlockFormat | None = None,
        columns: Dim | None = None,
    ) -> None:
        self.form, self.panels = blocks or form.form, form
        self.build, self.panel, self.octet, self.columns = build, panel, octet, columns
        *outer, nbytes = packed.type.shape
        self.outer = build.axes(outer)
        *self.groups, self.which, self.block = self.outer
        self.lane = build.axis(panel)
        self.column = self.which * panel + self.lane
        self.start = linear_index(outer, self.outer) * nbytes
        self.position = build.argument(packed, writes=True)
        self.stages: list[tuple[Indices, Store]] = []

    def nest(self, variables: tuple[Symbol, ...]) -> LoopNest:
        form, panels = self.form, self.panels
        self._copy(0, form.scale.byte, form.scale.nbytes)
        if form.minimum is not None:
            self._copy(panels.minimum, form.minimum.byte, form.minimum.nbytes)
        factors = () if form.factors is None else form.factors.fields
        minima = () if form.minima is None else form.minima.fields
        if panels.paired:
            moved = [replace(part, to=part.to + MINIMA_SHIFT) for part in minima]
            self._integers(0, (*factors, *moved))
        else:
            self._integers(0, factors)
            self._integers(panels.minima, minima)
        for offset, part in zip(panels.planes, form.codes.fields, strict=True):
            self._plane(offset, part)
        stores = self.build.finish([store for _, store in self.stages])
        outer, merged = merge_axes(symbols_of(self.outer), stores)
        stages = [
            Stage(*merge_axes(symbols_of(axes), (store,)))
            for (axes, _), store in zip(self.stages, merged, strict=True)
        ]
        return LoopNest(self.build.args, outer, tuple(stages), variables=variables)

    def _copy(self, offset: int, byte: int, count: int) -> None:
        """The bytes of a scale, as they are."""
        which = self.build.axis(count)
        value = self._octet(byte + which, scale=True)
        self._store((self.lane, which), offset, self.lane * count + which, value)

    def _integers(self, offset: int, fields: Sequence[Field]) -> None:
        """A byte for the integer of each group, if there are any."""
        panels = self.panels
        chunk, group = self.build.axis(panels.chunks), self.build.axis(panels.chunk_groups)
        value: Scalar | None = None
        for part in fields:
            bits = _shifted(self._bits(part, chunk * panels.chunk_groups + group), part.to)
            value = bits if value is None else _applied("bitwise_or", value, bits)
        if value is None:
            return
        place = group * self.panel + self.lane
        self._store((chunk, group, self.lane), self._in_chunk(chunk, offset), place, value)

    def _plane(self, offset: int, part: Field) -> None:
        """The bits of all codes in a field: those of as many steps as a byte holds in each."""
        steps, held = self.panels.steps, 8 // part.bits
        panels, build = self.panels, self.build
        chunk, unit = build.axis(panels.chunks), build.axis(CHUNK // panels.unit)
        row, step = build.axis(panels.unit // (steps * held)), build.axis(steps)
        value: Scalar | None = None
        for number in range(held):
            element = chunk * CHUNK + unit * panels.unit + (row * held + number) * steps + step
            bits = _shifted(self._bits(part, element), number * part.bits)
            value = bits if value is None else _applied("bitwise_or", value, bits)
        assert value is not None
        place = (row * self.panel + self.lane) * steps + step
        within = panels.first_unit + unit * panels.unit_bytes + offset
        self._store(
            (chunk, unit, row, self.lane, step), self._in_chunk(chunk, within), place, value
        )

    def _in_chunk(self, chunk: Dim, offset: Dim) -> Dim:
        """The offset in a block of what is at ``offset`` in a chunk."""
        return self.panels.first_chunk + chunk * self.panels.chunk_bytes + offset

    def _bits(self, part: Field, number: Dim) -> Scalar:
        """A field's bits of one of the integers of a block."""
        byte: Dim = part.byte
        shift: Dim = part.shift
        places = unravel([digit.count for digit in part.digits], number)
        for digit, place in zip(part.digits, places, strict=True):
            byte = byte + place * digit.nbytes
            shift = shift + place * digit.bits
        value = self._octet(byte)
        if shift != 0:
            value = _applied("bitwise_right_shift", value, IndexValue(shift, UINT8))
        if part.bits < 8:
            value = _applied("bitwise_and", value, Number(part.mask, UINT8))
        if part.flip:
            value = _applied("bitwise_xor", value, Number(part.flip, UINT8))
        return value

    def _octet(self, byte: Dim, *, scale: bool = False) -> Scalar:
        """A byte of a block of the column's weights."""
        return self.octet(tuple(self.groups), self.column, self.block, byte, scale)

    def _store(self, axes: Indices, offset: Dim, place: Dim, value: Scalar) -> None:
        if self.columns is not None:
            value = guarded((self.columns - 1 - self.column,), value, Number(0, UINT8))
        index = self.start + offset * self.panel + place
        self.stages.append((axes, Store(self.position, index, value)))


def packed_block_matmul(node: Node) -> PackedBlockMatmul:
    """Rows of bytes times packed weights: of one matrix, a stack, or one that each row chooses."""
    q, q_scales, q_sums, w = node.inputs[:4]
    stacked = node.op is PACKED_BLOCK_MATMUL and w.ndim > 2
    spec = _stack_spec if stacked else _row_spec
    form = FORMATS[node.attrs["format"]]
    scales, sums = (RowMatmul(spec(node, part, w)) for part in (q_scales, q_sums))
    return PackedBlockMatmul(spec(node, q, w), form, scales, sums, _is_negatable(q))


def pairs_in_16_bits(form: BlockFormat) -> int:
    """The number of pairs of products of unsigned codes and bytes whose sum fits 16 bits."""
    book = form.codebook
    greatest = (1 << form.codes.bits) - 1 if book is None else max(book) - min(book)
    return ((1 << 15) - 1) // (2 * 128 * greatest)


def _is_negatable(q: Value) -> bool:
    """Whether no element is -128: they are clipped, as rounding by magnitude does."""
    while q.node.op.name in VIEWS:
        q = q.node.inputs[0]
    node = q.node
    if node.op.name != "cast" or node.inputs[0].node.op.name != "clip":
        return False
    least = node.inputs[0].node.attrs.get("min")
    return isinstance(least, (int, float)) and least >= -127


def _row_spec(node: Node, left: Value, w: Value) -> MatmulSpec:
    """Rows that all go to the matrix, or each to one of several."""
    *groups, columns, _ = w.shape
    return replace(row_spec(node, left, w), n=columns, groups=tuple(groups))


def _stack_spec(node: Node, left: Value, w: Value) -> MatmulSpec:
    """The rows of each part of ``left`` times the part's matrix."""
    count, rows, depth = left.shape
    return MatmulSpec(
        node, (count,), rows, w.shape[1], (depth,), (count,),
        left, lambda part, row, k: (*part, row, *k),
        w, lambda part, k, column: (*part, column, *k),
        lambda part: part, lambda part, row, column: (*part, row, column),
    )  # fmt: skip


def _applied(op: str, *operands: Scalar) -> Scalar:
    return Apply(op, operands, UINT8)


def _shifted(value: Scalar, count: int) -> Scalar:
    """``value``, shifted to the left."""
    return _applied("bitwise_left_shift", value, Number(count, UINT8)) if count else value
