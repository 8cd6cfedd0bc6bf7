"""Products of 8-bit integers with packed weights of 8 or 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.dtypes import INT32, UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.contraction import Contraction, tile_for
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    LoopNest,
    Number,
    Scalar,
    Store,
    max_extent,
)
from ostinato.lower.loopir.views import linear_index, reshape_index
from ostinato.lower.panels import BlockScales, PanelFormat
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import Outputs, block_nest, symbols_of
from ostinato.lower.rules.matmul_spec import Product, RegisterFile
from ostinato.records import dataclass, field, replace
from ostinato.variables import (
    Dim,
    axis,
    bounds,
    ceil_div,
    coefficient,
    floor_div,
    prod,
    remainder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.views import Indices
    from ostinato.variables import Symbol

__all__ = ["BlockwiseProduct", "IntegerProduct", "blockwise_product", "integer_product"]

P = TypeVar("P", bound=Product)

_MOST_ROWS, _MOST_VECTORS = 9, 4


@dataclass(frozen=True, eq=False)
class RowProduct(Product):
    """Rows times a matrix, read by tiles that want a row's elements side by side."""

    def reads_in_place(self, build: KernelBuilder) -> bool:
        """Whether they are, and rows are a known distance apart."""
        row, column = axis("m", self.m), axis("k", self.k[0])
        scalar = build.at(self.a, self.a_at((), row, (column,)))
        if not isinstance(scalar, Load) or scalar.bindings:
            return False
        (m,), (k,) = symbols_of([row]), symbols_of([column])
        rows, columns = coefficient(scalar.index, m), coefficient(scalar.index, k)
        if rows is None or columns is None or not isinstance(rows[0], int):
            return False
        return columns[0] == 1 or max_extent(k) <= 1


@dataclass(frozen=True, eq=False)
class IntegerProduct(RowProduct):
    """A product of two operands of 8-bit integers; panels hold several positions of ``k`` a row."""

    def tile(self, registers: RegisterFile, beside: Sequence[Product] = ()) -> tuple[int, int]:
        """Panels are never narrower than a register: there is no other way to multiply bytes."""
        lanes = registers.vector_bytes // INT32.itemsize
        columns = [max(bounds(product.n)[1], lanes) for product in (self, *beside)]
        return tile_for(registers.vector_bytes, registers.count, INT32, self.m, *columns)

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        """Four bytes a column where one instruction multiplies unsigned by signed ones."""
        unlike = self.a.dtype != self.b.dtype
        return PanelFormat(self.b.dtype, 4 if registers.byte_dots and unlike else 2)

    def packed_buffer(
        self, panel: int, role: Role, form: PanelFormat | None = None
    ) -> LoweredBuffer:
        assert form is not None
        rows = ceil_div(prod(self.k), form.depth)
        shape = (ceil_div(self.n, panel), rows, panel, form.steps)
        return LoweredBuffer(TensorType(form.dtype, shape), role, f"{self.node.label}.packed")

    def packing(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        variables: tuple[Symbol, ...],
    ) -> LoopNest:
        which, row, lane, step = build.axes(packed.type.shape)
        value = self._element(build, row, which * panel + lane, step, packed.type.shape[-1])
        position = build.argument(packed, writes=True)
        index = linear_index(packed.type.shape, (which, row, lane, step))
        store = Store(position, index, value)
        return block_nest(build, symbols_of((which, row, lane, step)), [store], variables)

    def _element(
        self, build: KernelBuilder, row: Dim, column: Dim, step: Dim, steps: Dim
    ) -> Scalar:
        """An element of a panel's row: zero where there is no weight."""
        (depth,) = self.k
        k = row * steps + step
        conditions = (depth - 1 - k, self.n - 1 - column)
        weight = build.at(self.b, (k, column))
        return _guarded(conditions, weight, Number(0, weight.dtype))


@dataclass(frozen=True, eq=False)
class BlockwiseProduct(IntegerProduct):
    """A product with 4-bit codes, in blocks of ``k`` that have scales.

    Registers are for the sums of a block; those of all blocks, which are needed once a block, may
    find themselves on the stack.

    Attributes:
        scales: those of the left operand and those of the right, as if they were multiplied.
    """

    scales: RowProduct = field(kw_only=True)

    def tile(self, registers: RegisterFile, beside: Sequence[Product] = ()) -> tuple[int, int]:
        """A row has one sum more than columns: what codes of zero would come to.

        The time of a tile is that of its products, of repeating an element of each row, and of
        taking apart a row of the panel (``python -m bench.quantization``).
        """
        lanes = registers.vector_bytes // INT32.itemsize
        rows_in_all = bounds(self.m)[1]
        widths = [-(-bounds(product.n)[1] // lanes) for product in (self, *beside)]

        def time(shape: tuple[int, int]) -> int:
            rows, vectors = shape
            tiles = -(-rows_in_all // rows) * sum(-(-width // vectors) for width in widths)
            return tiles * (rows * (vectors + 2) + 2 * vectors + 1)

        shapes = [
            (rows, vectors)
            for vectors in range(1, _MOST_VECTORS + 1)
            for rows in range(1, min(_MOST_ROWS, max(1, rows_in_all)) + 1)
            if rows * (vectors + 1) + 2 * vectors + 2 <= registers.count
        ]
        rows, vectors = min(shapes, key=time)
        return rows, vectors * lanes

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        return PanelFormat(UINT8, 4 if registers.byte_dots else 2, halves=True)

    def _element(
        self, build: KernelBuilder, row: Dim, column: Dim, step: Dim, steps: Dim
    ) -> Scalar:
        low = row * (2 * steps) + step
        pair = (self._code(build, low, column), self._code(build, low + steps, column))
        high = Apply("bitwise_left_shift", (pair[1], Number(4, UINT8)), UINT8)
        return Apply("bitwise_or", (pair[0], high), UINT8)

    def _code(self, build: KernelBuilder, k: Dim, column: Dim) -> Scalar:
        """The code of one weight: 8, which stands for zero, where there is none."""
        rows, columns = self.b.shape
        conditions = (rows * 2 - 1 - k, columns - 1 - column)
        pair = build.at(self.b, (floor_div(k, 2), column))
        shift = IndexValue(remainder(k, 2) * 4, UINT8)
        moved = Apply("bitwise_right_shift", (pair, shift), UINT8)
        code = Apply("bitwise_and", (moved, Number(15, UINT8)), UINT8)
        return _guarded(conditions, code, Number(8, UINT8))

    @property
    def group(self) -> int:
        group: int = self.node.attrs["group"]
        return group

    @property
    def packings(self) -> tuple[Product, ...]:
        return (self, self.scales)

    def contraction(
        self,
        build: KernelBuilder,
        packed: Sequence[LoweredBuffer],
        tile: tuple[int, int],
        outputs: Outputs,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
        number: int = 0,
    ) -> Contraction:
        """The kernel; ``packed`` are the panels of the codes and those of their scales."""
        _, scales = packed
        row = axis("m", self.m)
        left = build.at(self.scales.a, self.scales.a_at((), row, (0,)))
        assert isinstance(left, Load)
        right = build.argument(scales, reads=True)
        kernel = super().contraction(build, packed, tile, outputs, variables, form, number)
        found = BlockScales(self.group, left.buffer, left.index, right, scales.type.dtype)
        return replace(kernel, scales=found)


def integer_product(node: Node) -> IntegerProduct:
    """``integer_matmul``: rows of bytes times a matrix of bytes."""
    a, b = node.inputs
    return _rows_times_matrix(IntegerProduct, node, a, b)


def blockwise_product(node: Node) -> BlockwiseProduct:
    """``blockwise_matmul``: rows of bytes times a matrix of 4-bit codes, both with scales."""
    q, q_scales, codes, scales = node.inputs
    blocks = _rows_times_matrix(RowProduct, node, q_scales, scales)
    return _rows_times_matrix(BlockwiseProduct, node, q, codes, scales=blocks)


def _rows_times_matrix(kind: type[P], node: Node, a: Value, b: Value, **more: Any) -> P:
    lead = a.shape[:-1]
    rows = prod(lead)

    def a_at(at: Indices, row: Dim, inner: Indices) -> Indices:
        return (*reshape_index(lead, (rows,), (row,)), *inner)

    def b_at(group: Indices, inner: Indices, column: Dim) -> Indices:
        return (*inner, column)

    def out_at(at: Indices, row: Dim, column: Dim) -> Indices:
        return (*reshape_index(lead, (rows,), (row,)), column)

    return kind(
        node, (), rows, b.shape[1], (a.shape[-1],), (),
        a, a_at, b, b_at, lambda at: (), out_at, **more,
    )  # fmt: skip


def _guarded(conditions: tuple[Dim, ...], body: Scalar, otherwise: Scalar) -> Scalar:
    """``body`` where every condition is ``>= 0``; those that surely are cost nothing."""
    open_ones = tuple(condition for condition in conditions if bounds(condition)[0] < 0)
    return Guard(open_ones, body, otherwise, body.dtype) if open_ones else body
