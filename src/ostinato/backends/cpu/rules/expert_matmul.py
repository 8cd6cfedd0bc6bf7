"""Matmuls of experts before their kernels are built: which matrices, their panels, and their tiles.

Matrices of floats and packed ones differ in how their panels are filled and in what a tile reads
beside them, which :class:`~ostinato.backends.cpu.rules.packed_matmul.PackedMatmul` and its
subclasses know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.group_rows import GroupLayout
from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm
from ostinato.backends.cpu.rules.packed_blocks import packed_block_matmul
from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.lower.loopir.builder import Outputs, cast, store_at, symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Load, Store
from ostinato.lower.rules.matmul_spec import MatmulSpec, separable
from ostinato.ops.packed_experts import PACKED_GROUPED_BLOCK_MATMUL
from ostinato.records import dataclass, replace
from ostinato.variables import Dim, Symbol, axis, bounds, ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.packing import PanelFormat
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.program import LoweredBuffer

__all__ = [
    "ExpertMatmul",
    "expert_matmul",
    "grouped_matmul",
    "grouped_matmul_kernel",
    "rows_in_place",
]

#: Rows of a tile where an expert's share may be more than the average: a panel is then read less
#: often from where it was left.
_FEW_ROWS = 4

#: A panel of up to this many bytes is still in the second-level cache when tiles go over it again:
#: with 64 tokens at 2 of 8 experts of 1024 x 3584, 5% faster than panels of 920 kB. Narrower than
#: three vectors panels cost more than they save. Tiles of equal heights, of 9 rows, or of 11 or 14
#: rows by 32 columns, that go over a panel less often, are 1 to 5% slower there (Zen 4).
_PANEL_BYTES, _LEAST_VECTORS = 768 << 10, 3


@dataclass(frozen=True, eq=False)
class ExpertMatmul:
    """Rows times one or several matrices of the expert that each of them goes to.

    Attributes:
        node: the graph's node.
        rows: how many rows.
        packings: the matmuls that pack the matrices of all experts into panels, and share a tile.
        tile: rows and columns of the register tile.
        form: how the matrices' elements are held; ``None``: as the accumulator does.
        packed: whether the matrices are brought into panels.
        registers: what the tile is for.
    """

    node: Node
    rows: Dim
    packings: tuple[PackedMatmul, ...]
    tile: tuple[int, int]
    form: PanelFormat | None
    packed: bool
    registers: RegisterFile

    @property
    def weights(self) -> tuple[Value, ...]:
        """The matrices of all experts."""
        return tuple(packing.spec.b for packing in self.packings)

    @property
    def layout(self) -> GroupLayout:
        """The layout of the list of rows by expert."""
        (experts,) = self.packings[0].spec.groups
        assert isinstance(experts, int)
        return GroupLayout(experts, self.rows)

    @property
    def acc(self) -> DType:
        """The dtype that sums are accumulated in."""
        return self.packings[0].spec.acc

    @property
    def flops(self) -> Dim:
        """Operations of all rows with their matrices."""
        return 2 * self.rows * sum(p.spec.depth * p.spec.n for p in self.packings)

    @property
    def row_operands(self) -> tuple[PackedMatmul, ...]:
        """See :attr:`PackedMatmul.row_operands`."""
        return self.packings[0].row_operands

    def axes(self) -> tuple[Dim, Dim, Dim]:
        """Rows, columns and what is summed over."""
        spec = self.packings[0].spec
        return axis("m", self.rows), axis("n", spec.n), axis("k", spec.depth)

    def kernel(
        self,
        build: KernelBuilder,
        matrices: Sequence[LoweredBuffer],
        groups: LoweredBuffer,
        left: Load,
        at: tuple[Dim, Dim, Dim],
        epilogue: Sequence[Store],
        variables: tuple[Symbol, ...],
    ) -> GroupedGemm:
        """The kernel, whose axes are ``at`` and whose element of ``a`` there is ``left``."""
        block_rows = self.packings[0].block_rows(build, (), at[0])
        b = tuple(build.argument(buffer, reads=True) for buffer in matrices)
        listed = build.argument(groups, reads=True)
        m, n, k = symbols_of(at)
        return GroupedGemm(
            build.args, m, n, k, left.buffer, left.dtype, left.index, b, listed, self.layout,
            self.tile[1], self.tile[0], self.acc, tuple(epilogue), variables, self.form,
            self.packed, self.registers.caches, self.packings[0].row_prefetch(self.registers),
            block_rows,
        )  # fmt: skip


def grouped_matmul(node: Node, registers: RegisterFile, *, packed: bool = True) -> ExpertMatmul:
    """The matmul of a node that is one, of floats or integers or with packed matrices.

    Args:
        packed: see :func:`expert_matmul`; of packed matrices, panels are made in any case.
    """
    if node.op is PACKED_GROUPED_BLOCK_MATMUL:
        return _packed_matmul(node, registers)
    x, w, _ = node.inputs
    return expert_matmul(node, x.shape[0], (w,), registers, packed=packed)


def expert_matmul(
    node: Node,
    rows: Dim,
    weights: Sequence[Value],
    registers: RegisterFile,
    *,
    packed: bool = True,
) -> ExpertMatmul:
    """The matmul of ``rows`` rows with their experts' ``weights``, as ``node`` needs it.

    Args:
        packed: whether to pack the weights; if not, they are read where they are if their dtype
            and their number of columns allow it.
    """
    tile = _tile(weights[0], _expected_rows(rows, weights[0].shape[0]), registers)
    packings = tuple(_packing(node, rows, weight) for weight in weights)
    forms = {packing.panel_format(registers) for packing in packings}
    form = forms.pop() if len(forms) == 1 else None
    if not packed:
        acc = weights[0].dtype.accumulator
        held = acc if form is None else form.dtype
        lanes = max(1, registers.vector_bytes // acc.itemsize)
        panel = _dividing(weights[0].shape[2], tile[1], lanes)
        if panel and all(weight.dtype == held for weight in weights):
            tile = (tile[0], panel)
            return ExpertMatmul(node, rows, packings, tile, form, False, registers)
    return ExpertMatmul(node, rows, packings, tile, form, True, registers)


def _packed_matmul(node: Node, registers: RegisterFile) -> ExpertMatmul:
    """The matmul of a ``packed_grouped_block_matmul`` node."""
    blocks = packed_block_matmul(node)
    rows, (experts,) = blocks.spec.m, blocks.spec.groups
    expected = replace(blocks.spec, m=_expected_rows(rows, experts))
    tile, form = replace(blocks, spec=expected).tile(registers), blocks.panel_format(registers)
    return ExpertMatmul(node, rows, (blocks,), tile, form, True, registers)


def _expected_rows(rows: Dim, experts: Dim) -> int:
    """The number of rows of an expert that tiles are sized for."""
    share = bounds(ceil_div(rows, experts))[1]
    return max(share, min(_FEW_ROWS, bounds(rows)[1]), 1)


def _dividing(columns: Dim, widest: int, lanes: int) -> int:
    """The widest panel of whole vectors, up to ``widest``, that divides ``columns``; 0: none."""
    choices = range(widest // lanes * lanes, 0, -lanes)
    return next((panel for panel in choices if columns % panel == 0), 0)


def _tile(weight: Value, rows: int, registers: RegisterFile) -> tuple[int, int]:
    """The register tile where an expert has about ``rows`` rows."""
    _, depth, columns = weight.shape
    assert isinstance(depth, int)
    acc = weight.dtype.accumulator
    vector_bytes, count = registers.vector_bytes, registers.count
    tile = tile_for(vector_bytes, count, acc, rows, columns)
    lanes = max(1, vector_bytes // acc.itemsize)
    widest = max(_LEAST_VECTORS, _PANEL_BYTES // max(1, depth * vector_bytes)) * lanes
    if rows > tile[0] and tile[1] > widest:  # panels are gone over again
        tile = tile_for(vector_bytes, count, acc, rows, widest)
    return tile


def _packing(node: Node, rows: Dim, weight: Value) -> PackedMatmul:
    """The packing of one matrix of each expert; its left operand is found by others."""
    experts, depth, columns = weight.shape
    spec = MatmulSpec(
        node, (experts,), rows, columns, (depth,), (experts,),
        weight, lambda group, row, k: (*group, row, *k),
        weight, lambda group, k, column: (*group, *k, column),
        lambda group: group, lambda group, row, column: (*group, row, column),
    )  # fmt: skip
    return PackedMatmul(spec)


def rows_in_place(build: KernelBuilder, x: Value) -> bool:
    """Whether the rows of ``x`` are in memory in a form that tiles can walk over."""
    row, k = build.axes(x.shape)
    element = build.at(x, (row, k))
    if not isinstance(element, Load) or element.bindings:
        return False
    return separable(element.index, symbols_of([k]))


def grouped_matmul_kernel(
    build: KernelBuilder,
    matmul: ExpertMatmul,
    matrices: Sequence[LoweredBuffer],
    groups: LoweredBuffer,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
) -> GroupedGemm:
    """The kernel of a node that is one matmul, with its region's other members as epilogue."""
    x, (result,) = matmul.node.inputs[0], matmul.node.outputs
    m, n, k = at = matmul.axes()
    left = build.at(x, (m, k))
    assert isinstance(left, Load)
    build.results[result] = cast(Accumulator(matmul.acc), result.dtype)
    stores = [store_at(build, value, buffer, result.shape, (m, n)) for value, buffer in outputs]
    return matmul.kernel(build, matrices, groups, left, at, stores, variables)
