"""Matmuls over packed panels: from the algebra of one to the CPU's GEMM kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.packing import PanelFormat, pack_nest, stored_dtype
from ostinato.backends.cpu.rules.prefetch import fits_cache
from ostinato.backends.cpu.rules.tiles import TileSizes, chains_by_columns, tile_for
from ostinato.dtypes import BFLOAT16, FLOAT8, INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Load, extent_of
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.records import dataclass, replace
from ostinato.variables import bounds, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.rules.packing import BlockRows
    from ostinato.backends.cpu.rules.prefetch import Prefetch
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim, Symbol

__all__ = [
    "ChooseTiles",
    "OrderedMatmul",
    "PackedMatmul",
    "pack",
    "pack_operands",
    "segment_of",
    "tile_sizes",
]


#: Rows of matmuls up to which panels may be in strips, by the bytes of an element: from 24 on,
#: arithmetic takes as long. (Emerald Rapids: 1.06 times the time with 1 row, 0.86 with 4, 0.82 with
#: 8 and with 16, 0.99 with 24; Zen 3: 0.80, 0.71, 0.83, 1.01. Widened from 16 bits, on Zen 3: 0.69
#: with 1 row, 0.65 with 2, 1.03 with 4 and with 8; on Emerald Rapids, 1.03 with 2 and 1.09 with 4.)
_ROWS_OF_STRIPS = {8: 16, 4: 16, 2: 3}

#: Rows up to which panels hold 8-bit floats as they are: for more, widening them takes longer than
#: reading bfloat16, which all of their numbers are. (Zen 3, times that of float32 with weights in
#: cache: 1.1 with 1 row; 2.0, and 1.1 as bfloat16, with 8; 1.7, and 1.0, with 128.)
_ROWS_OF_BYTES = 4


@dataclass(frozen=True, eq=False)
class PackedMatmul:
    """A matmul whose left operand is read in place and whose right operand is packed into panels.

    Attributes:
        spec: what is multiplied.
    """

    spec: MatmulSpec

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Rows and columns of the register tile, for itself and others of the same rows."""
        columns = [self.spec.n, *(other.spec.n for other in others)]
        acc = self.spec.acc
        return tile_for(registers.vector_bytes, registers.count, acc, self.spec.m, *columns)

    def chains(self, registers: RegisterFile) -> int | None:
        """Partial sums per element; ``None``: as many as hide the latency of each tile."""
        return None

    # -- packing ------------------------------------------------------------------------------

    @property
    def packings(self) -> tuple[PackedMatmul, ...]:
        """The matmuls whose right operands the kernel reads as panels: itself, and its scales'."""
        return (self,)

    @property
    def row_operands(self) -> tuple[PackedMatmul, ...]:
        """The matmuls whose left operands the kernel reads where they are, or as copies."""
        return self.packings

    def block_rows(self, build: KernelBuilder, batch: Indices, row: Dim) -> BlockRows | None:
        """The left operand's scales and sums in a kernel, if panels hold blocks.

        Args:
            build: of the kernel.
            batch: the point of the batch.
            row: of the left operand.
        """
        return None

    def row_prefetch(self, registers: RegisterFile) -> Prefetch | None:
        """The distances of prefetching where rows choose their panels."""
        return registers.prefetch_for(self.spec.m, self.spec.b.type.max_bytes)

    def reads_in_place(self, build: KernelBuilder) -> bool:
        """Whether tiles can read the left operand where it is."""
        return self.spec.reads_in_place(build)

    def panel_format(self, registers: RegisterFile) -> PanelFormat | None:
        """The format of the panels; ``None``: that of the accumulator."""
        stored = stored_dtype(self.spec.b, registers.narrow)
        if stored in FLOAT8 and bounds(self.spec.m)[1] > _ROWS_OF_BYTES:
            stored = BFLOAT16
        return None if stored == self.spec.acc else PanelFormat(stored)

    def packed_buffer(
        self, panel: int, role: Role, form: PanelFormat | None = None
    ) -> LoweredBuffer:
        """Memory for the packed right operand."""
        spec = self.spec
        strip = panel if form is None else form.strip or panel
        shape = (*spec.groups, ceil_div(spec.n, panel), panel // strip, spec.depth, strip)
        name = f"{spec.node.label}.packed"
        return LoweredBuffer(TensorType(form.dtype if form else spec.acc, shape), role, name)

    def pack_nest(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
    ) -> LoopNest:
        """The kernel that fills the panels, zero beyond the last column."""
        return pack_nest(build, self.spec, packed, panel, variables)

    # -- the matmul ---------------------------------------------------------------------------

    def kernel(
        self,
        build: KernelBuilder,
        packed: Sequence[LoweredBuffer],
        tile: tuple[int, int],
        outputs: Outputs,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
        number: int = 0,
    ) -> Gemm:
        """The kernel, with the region's other members as its epilogue.

        Args:
            packed: the panels, one for each of :attr:`packings`.
            form: the format of the first ones.
            number: of the sum, where an epilogue takes several.
        """
        rows, panel = tile
        spec = self.spec
        at = spec.axes(build)
        block_rows = self.block_rows(build, at.batch, at.m)
        a = spec.left(build, at)
        assert isinstance(a, Load)
        b = build.argument(packed[0], reads=True)
        result = spec.out_at(at.batch, at.m, at.n)
        epilogue = spec.stores(build, Accumulator(spec.acc, number), result, outputs)
        (m_symbol,), (n_symbol,) = symbols_of([at.m]), symbols_of([at.n])
        masked_tail = None
        if not symbols_of(at.batch) and spec.counts_leading_rows(m_symbol, result):
            masked_tail = build.argument(self._masked_tail_buffer(build), reads=True)
        return Gemm(
            build.args,
            symbols_of(at.batch),
            m_symbol,
            n_symbol,
            symbols_of(at.k),
            a.buffer,
            a.dtype,
            a.index,
            b,
            spec.group_index(at.batch),
            panel,
            rows,
            spec.acc,
            epilogue,
            variables,
            masked_tail,
            form,
            block_rows=block_rows,
        )

    def _masked_tail_buffer(self, build: KernelBuilder) -> LoweredBuffer:
        """The number of rows that are not wanted: one for all matmuls of a kernel."""
        made = LoweredBuffer(
            TensorType(INT64, (1,)), Role.MASKED_TAIL, f"{self.spec.node.label}.masked_tail"
        )
        return next((b for b in build.buffers if b.role is Role.MASKED_TAIL), made)


@dataclass(frozen=True, eq=False)
class OrderedMatmul(PackedMatmul):
    """A matmul each row of which is summed in one order, however many rows there are.

    A row has the same bits alone, in a batch, and in whatever part of one.
    """

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        together = (self, *others)
        columns = [matmul.spec.n for matmul in together]
        acc, chains = self.spec.acc, max(matmul.chains(registers) or 1 for matmul in together)
        sizes = (self.spec.m, *columns)
        return tile_for(registers.vector_bytes, registers.count, acc, *sizes, chains=chains)

    def chains(self, registers: RegisterFile) -> int:
        lanes = max(1, registers.vector_bytes // self.spec.acc.itemsize)
        return chains_by_columns(bounds(self.spec.n)[1], lanes)

    def panel_format(self, registers: RegisterFile) -> PanelFormat | None:
        found = super().panel_format(registers)
        form = found or PanelFormat(self.spec.acc)
        if not self._in_strips(form, registers):
            return found
        return replace(form, strip=registers.vector_bytes // self.spec.acc.itemsize)

    def _in_strips(self, form: PanelFormat, registers: RegisterFile) -> bool:
        """Whether panels are in strips as wide as a vector, in which memory is read faster.

        Where the number of rows is symbolic, it may be one. Then tiles go over whole panels one by
        one, and read strips faster however many they are: 8 rows take 0.72 of the time on Zen 3,
        512 as long.
        """
        spec, line = self.spec, registers.caches.line
        several = isinstance(spec.m, int) and spec.m > 1 and form.dtype.itemsize > 2
        faster = registers.strips if several else registers.row_strips
        most = _ROWS_OF_STRIPS.get(form.dtype.itemsize)
        if faster is None or most is None or not registers.prefetches or form.depth > 1:
            return False
        if isinstance(spec.m, int) and spec.m > most:
            return False
        columns = bounds(spec.n)[1]
        short = 2 * registers.vector_bytes < line or columns * spec.acc.itemsize < line
        if short or not isinstance(spec.depth, int):
            return False
        nbytes = spec.depth * columns * form.dtype.itemsize
        return not fits_cache(nbytes, registers.caches) and faster()


#: Chooses the tile sizes of a matmul, or leaves them to the heuristic.
ChooseTiles: TypeAlias = "Callable[[PackedMatmul], TileSizes | None]"


def tile_sizes(
    matmuls: Sequence[PackedMatmul], registers: RegisterFile, choose: ChooseTiles | None
) -> TileSizes:
    """The tile sizes of matmuls that share a kernel.

    Args:
        matmuls: of the same rows.
        registers: what they are tiled for.
        choose: called with the widest one, if all have its tile.
    """
    first, *others = matmuls
    tile = first.tile(registers, others)
    widest = max(matmuls, key=lambda matmul: bounds(matmul.spec.n)[1])
    sizes = choose(widest) if choose and widest.tile(registers) == tile else None
    return sizes or TileSizes(tile)


def segment_of(
    build: KernelBuilder,
    matmuls: Sequence[PackedMatmul],
    panels: Mapping[PackedMatmul, Sequence[LoweredBuffer]],
    sizes: TileSizes,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
    registers: RegisterFile,
) -> tuple[Gemm, ...]:
    """The GEMMs of matmuls that share one epilogue, the first one's.

    Args:
        build: of the kernel; its members are all that the epilogue computes.
        matmuls: in the order of their sums' numbers.
        panels: the packed operands of each.
        sizes: the blocking of all.
        outputs: what the epilogue stores.
        variables: the graph's Variables.
        registers: what the matmuls are tiled for.
    """
    made: list[Gemm] = []
    # The first one comes last: its epilogue takes the others' sums.
    for number, matmul in reversed([*enumerate(matmuls)]):
        results = () if number else outputs
        form = matmul.panel_format(registers)
        kernel = matmul.kernel(build, panels[matmul], sizes.tile, results, variables, form, number)
        blocked = replace(
            kernel,
            item_rows=sizes.item_rows,
            caches=registers.caches,
            items=registers.items,
        )
        fetch, chains = _prefetch(registers, sizes, kernel), matmul.chains(registers)
        made.insert(0, replace(blocked, prefetch=fetch, chains=chains))
    return tuple(made)


def _prefetch(registers: RegisterFile, sizes: TileSizes, kernel: Gemm) -> Prefetch | None:
    """The distances of prefetching under these tile sizes; ``None``: there is none."""
    if sizes.prefetch is None:
        rows, nbytes = extent_of(kernel.m), kernel.panels_bytes
        unpacks = kernel.widens or kernel.block_rows is not None
        return registers.prefetch_for(rows, nbytes, unpacks=unpacks)
    found = registers.prefetch if sizes.prefetch else None
    return None if found is None else replace(found, least_rows=1)


def pack(
    lowering: ProgramBuilder, matmul: PackedMatmul, panel: int, form: PanelFormat | None = None
) -> LoweredBuffer:
    """Bring the right operand of ``matmul`` into panels."""
    packed = matmul.packed_buffer(panel, Role.TEMP, form)
    build = lowering.helper_builder()
    nest = matmul.pack_nest(build, packed, panel, lowering.variables, form)
    lowering.helper_call(matmul.spec.node, "pack", build, nest)
    return packed


def pack_operands(
    lowering: ProgramBuilder, matmul: PackedMatmul, panel: int, registers: RegisterFile
) -> list[LoweredBuffer]:
    """Bring what ``matmul`` reads into the form that its kernel takes; gives the panels."""
    for part in matmul.row_operands:
        if not part.reads_in_place(lowering.helper_builder()):
            lowering.copy(part.spec.a)
    packings = matmul.packings
    return [pack(lowering, part, panel, part.panel_format(registers)) for part in packings]
