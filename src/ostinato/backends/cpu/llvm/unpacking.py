"""Stretches of a panel of packed weights as bytes, in memory that the first-level cache holds.

Beside the codes stand the integers of their groups, in the form in which they multiply, and the
scales of their blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from ostinato.backends.cpu.llvm.memory import prefetch
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I8, I64
from ostinato.backends.cpu.rules.packed_blocks import CHUNK
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.llvm.lanes import Lane
    from ostinato.backends.cpu.llvm.packed_operands import PackedPanel

__all__ = ["STRETCH_CHUNKS", "Stretch", "Unpacking", "reserve"]

STRETCH_CHUNKS = 8
"""Chunks of a stretch: the longest block. Codes of 16 columns take 4 kB, sums at most 8 kB."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """The memory of an unpacked stretch: arrays of vectors, by chunk or by block.

    Attributes:
        panel: what is unpacked.
    """

    panel: PackedPanel

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector of codes, or of 32-bit numbers."""
        return self.panel.lanes * self.panel.steps

    @property
    def block_chunks(self) -> int:
        """Chunks of a block."""
        return self.panel.layout.chunks

    @property
    def blocks(self) -> int:
        """Blocks at most."""
        return STRETCH_CHUNKS // self.block_chunks

    @property
    def dots(self) -> int:
        """Dot products of a chunk."""
        return CHUNK // self.panel.steps

    @property
    def together(self) -> int:
        """Dot products that are summed before they are stored."""
        of_group = self.panel.form.group // self.panel.steps
        return of_group if self.panel.signed else self.panel.pairs_together(of_group)

    @property
    def counts(self) -> bool:
        """Whether sums of rows count by group: there are factors and a zero, or minima."""
        form = self.panel.form
        return form.minima is not None or (form.factors is not None and self.panel.zero != 0)

    @property
    def step(self) -> int:
        """Chunks that are unpacked together: as many as have two groups, where pairs of them count.

        Otherwise one.
        """
        return 2 if self.counts and self.panel.layout.chunk_groups == 1 else 1

    @property
    def factors_at(self) -> int:
        """The offset of the factors, a vector for each group and vector of columns."""
        return self._vectors(STRETCH_CHUNKS * self.dots)

    @property
    def counts_at(self) -> int:
        """The offset of pairs of integers by which sums of rows count."""
        has = self.panel.form.factors is not None
        return self.factors_at + has * self._vectors(self._groups)

    @property
    def scales_at(self) -> int:
        """The offset of the scales, a vector for each block and vector of columns."""
        return self.counts_at + self.counts * self._vectors(self._groups // 2)

    @property
    def minima_at(self) -> int:
        """The offset of the minima."""
        return self.scales_at + self._vectors(self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.minima_at + (self.panel.form.minimum is not None) * self._vectors(self.blocks)

    @property
    def _groups(self) -> int:
        return STRETCH_CHUNKS * self.panel.layout.chunk_groups

    def _vectors(self, count: int) -> int:
        return count * self.panel.vectors * self.vector_bytes

    def at(self, base: ir.Value, start: int, number: ir.Value, vector: int) -> ir.Value:
        """The address of a vector of columns of element ``number`` of an array.

        Args:
            base: of the stretch.
            start: the offset of the array.
        """
        b = self.panel.builder
        index = b.add(b.mul(number, I64(self.panel.vectors)), I64(vector))
        offset = b.add(b.mul(index, I64(self.vector_bytes)), I64(start))
        return b.gep(base, [offset], source_etype=I8)

    @property
    def chunk_panel_bytes(self) -> int:
        """Bytes of a panel that a chunk takes, with its share of the block's scales."""
        layout, panel = self.panel.layout, self.panel.gemm.panel
        return layout.column_bytes * panel * CHUNK // self.panel.form.size

    def prefetch_half(self, ahead: ir.Value | None, chunk: ir.Value) -> None:
        """Prefetch half of the lines of a chunk of a panel, whatever they are."""
        if ahead is None:
            return
        b = self.panel.builder
        first = b.mul(chunk, I64(self.chunk_panel_bytes))
        for start in range(0, -(-self.chunk_panel_bytes // 2), self.panel.gemm.caches.line):
            prefetch(b, ahead, b.add(first, I64(start)))


class Unpacking:
    """Brings a stretch of a panel into memory.

    Args:
        start: of the stretch in the panel.
        memory: as :class:`Stretch` lays it out.
    """

    def __init__(self, panel: PackedPanel, start: ir.Value, memory: ir.Value) -> None:
        self.panel, self.builder = panel, panel.builder
        self.start, self.memory = start, memory
        self.stretch = Stretch(panel)

    def begin(self) -> None:
        """The scales, if the stretch is one block."""
        if self.stretch.block_chunks > 1:
            self._scales(self.start, I64(0))

    def codes(self, chunk: ir.Value, dot: int) -> list[ir.Value]:
        """The codes of a dot product of a chunk, by vector."""
        b, panel, stretch = self.builder, self.panel, self.stretch
        start = self._codes_of(chunk)
        codes = [panel.codes(start, dot, vector) for vector in range(panel.vectors)]
        self._store(0, b.add(b.mul(chunk, I64(stretch.dots)), I64(dot)), codes)
        return codes

    def integers(self, chunk: ir.Value) -> None:
        """The scales or factors of as many chunks from ``chunk`` on as are unpacked together."""
        b, stretch, panel = self.builder, self.stretch, self.panel
        layout, form = panel.layout, panel.form
        if stretch.block_chunks == 1:
            size = layout.column_bytes * panel.gemm.panel
            block = b.gep(self.start, [b.mul(chunk, I64(size))], source_etype=I8)
            self._scales(block, chunk)
        if form.factors is None:
            return
        groups: list[list[Lane]] = []
        for number in range(stretch.step):
            at = b.add(chunk, I64(number))
            start = self._codes_of(at)
            for group in range(layout.chunk_groups):
                factors = panel.factors(start, group)
                place = b.add(b.mul(at, I64(layout.chunk_groups)), I64(group))
                stored = [self._factor(factor).value for factor in factors]
                self._store(stretch.factors_at, place, stored)
                groups.append(panel.minima(start, group) if form.minima is not None else factors)
        if stretch.counts:
            pairs = [self._pair(*both).value for both in zip(*groups, strict=True)]
            number = b.udiv(b.mul(chunk, I64(layout.chunk_groups)), I64(2))
            self._store(stretch.counts_at, number, pairs)

    def _codes_of(self, chunk: ir.Value) -> ir.Value:
        """The address of a chunk."""
        b, panel, layout = self.builder, self.panel, self.panel.layout
        size = layout.column_bytes if self.stretch.block_chunks == 1 else layout.chunk_bytes
        distance = b.mul(chunk, I64(size * panel.gemm.panel))
        first = I64(layout.first_chunk * panel.gemm.panel)
        return b.gep(self.start, [b.add(distance, first)], source_etype=I8)

    def _scales(self, block: ir.Value, number: ir.Value) -> None:
        """The scales and minima of a block."""
        panel, stretch = self.panel, self.stretch
        vectors = range(panel.vectors)
        scales = [panel.scale(block, vector).value for vector in vectors]
        self._store(stretch.scales_at, number, scales)
        if panel.form.minimum is not None:
            minima = [panel.minimum(block, vector).value for vector in vectors]
            self._store(stretch.minima_at, number, minima)

    def _factor(self, factor: Lane) -> Lane:
        """A factor as it multiplies: where sums are pairs of 16 bits, twice."""
        return factor if self.panel.signed else self._pair(factor, factor)

    @staticmethod
    def _pair(first: Lane, second: Lane) -> Lane:
        """Two integers of 16 bits in one of 32."""
        return (first & 0xFFFF) | (second << 16)

    def _store(self, start: int, number: ir.Value, vectors: Sequence[ir.Value]) -> None:
        for vector, value in enumerate(vectors):
            place = self.stretch.at(self.memory, start, number, vector)
            self.builder.store(value, place, align=1)


def reserve(panel: PackedPanel, nbytes: int) -> ir.Value:
    """Memory in the frame of the function that is under construction, at a cache line."""
    b = panel.builder
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(I8, nbytes))
        memory.align = panel.gemm.caches.line
        memory.type = BYTE_POINTER
    return memory
