"""Matrix products and convolutions as contractions over packed panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.contraction import Contraction, tile_for
from ostinato.lower.loopir.builder import KernelBuilder, cast
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Guard,
    Load,
    LoopNest,
    Number,
    Reduce,
    Ref,
    Scalar,
    Stage,
    Store,
)
from ostinato.lower.loopir.views import Indices, linear_index, reshape_index, unravel
from ostinato.lower.panels import PanelFormat, stored_dtype
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import Outputs, block_nest, store_at, symbols_of
from ostinato.ops.base import broadcast_shapes
from ostinato.records import dataclass
from ostinato.variables import (
    Dim,
    Expr,
    Symbol,
    axis,
    bounds,
    ceil_div,
    coefficient,
    prod,
    symbols,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import Layout

__all__ = [
    "Product",
    "ProductCut",
    "RegisterFile",
    "Tiling",
    "conv_product",
    "cut_of",
    "matmul_product",
]


@dataclass(frozen=True)
class RegisterFile:
    """What a contraction's tile is sized for.

    Attributes:
        vector_bytes: width of a vector register.
        count: how many of them there are.
        narrow: the dtypes that widen in registers at little cost, so that panels may hold them.
        byte_dots: whether one instruction adds four products of bytes to a 32-bit sum.
    """

    vector_bytes: int
    count: int
    narrow: frozenset[DType] = frozenset()
    byte_dots: bool = False


@dataclass(frozen=True)
class ProductCut:
    """How a product is cut.

    Attributes:
        tile: rows and columns of the register tile.
        item_rows: rows of a work item, a multiple of the tile's; ``None``: as many as are worth it.
    """

    tile: tuple[int, int]
    item_rows: int | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """A matmul or convolution in the contraction's terms.

    Attributes:
        node: the graph's node.
        batch: sizes of the independent products, outermost first.
        m, n: rows and columns of each.
        k: sizes of the axes summed over.
        groups: sizes of the panel groups: how many different right operands there are.
        a: the left operand, which is read in place.
        a_at: the indices into ``a`` of ``(batch, m, k)``.
        b: the right operand, which is packed.
        b_at: the indices into ``b`` of ``(group, k, n)``.
        group_of: the group's indices for a batch point.
        out_at: the indices into the node's result of ``(batch, m, n)``.
        bias: added to every element of its column (a convolution's output channel).
    """

    node: Node
    batch: tuple[Dim, ...]
    m: Dim
    n: Dim
    k: tuple[Dim, ...]
    groups: tuple[Dim, ...]
    a: Value
    a_at: Callable[[Indices, Dim, Indices], Indices]
    b: Value
    b_at: Callable[[Indices, Indices, Dim], Indices]
    group_of: Callable[[Indices], Indices]
    out_at: Callable[[Indices, Dim, Dim], Indices]
    bias: Value | None = None

    @property
    def acc(self) -> DType:
        return self.node.outputs[0].dtype.accumulator

    def tile(self, registers: RegisterFile, beside: Sequence[Product] = ()) -> tuple[int, int]:
        """Rows and columns of the register tile, for itself and others of the same rows."""
        columns = [self.n, *(other.n for other in beside)]
        return tile_for(registers.vector_bytes, registers.count, self.acc, self.m, *columns)

    # -- packing ------------------------------------------------------------------------------

    @property
    def packings(self) -> tuple[Product, ...]:
        """The products whose right operands the kernel wants in panels, and whose left in place."""
        return (self,)

    def panel_format(self, registers: RegisterFile) -> PanelFormat | None:
        """How panels hold the right operand; ``None``: as the accumulator does."""
        stored = stored_dtype(self.b, registers.narrow)
        return None if stored == self.acc else PanelFormat(stored)

    def packed_buffer(
        self, panel: int, role: Role, form: PanelFormat | None = None
    ) -> LoweredBuffer:
        """Memory for the packed right operand."""
        shape = (*self.groups, ceil_div(self.n, panel), prod(self.k), panel)
        name = f"{self.node.label}.packed"
        return LoweredBuffer(TensorType(form.dtype if form else self.acc, shape), role, name)

    def packing(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        variables: tuple[Symbol, ...],
    ) -> LoopNest:
        """The kernel that fills the panels, zero beyond the last column."""
        groups = build.axes(self.groups)
        which = build.axis(ceil_div(self.n, panel))
        k = build.axes(self.k)
        lane = build.axis(panel)
        column = which * panel + lane
        dtype = packed.type.dtype
        value = cast(build.at(self.b, self.b_at(groups, k, column)), dtype)
        if not (isinstance(self.n, int) and self.n % panel == 0):
            value = Guard((self.n - 1 - column,), value, Number(0, dtype), dtype)
        position = build.argument(packed, writes=True)
        index = linear_index(packed.type.shape, (*groups, which, linear_index(self.k, k), lane))
        axes = symbols_of((*groups, which, *k, lane))
        return block_nest(build, axes, [Store(position, index, value)], variables)

    def reads_in_place(self, build: KernelBuilder) -> bool:
        """Whether the left operand is in memory in a form that the contraction can walk."""
        batch, m, _, k = self._axes(build)
        a = build.at(self.a, self.a_at(batch, m, k))
        return isinstance(a, Load) and not a.bindings and separable(a.index, symbols_of(k))

    def _axes(self, build: KernelBuilder) -> tuple[Indices, Dim, Dim, Indices]:
        """Batch, row, column and summed axes; all but the batch's exist even with one value."""
        k = tuple(axis(f"k{i}", extent) for i, extent in enumerate(self.k))
        return build.axes(self.batch), axis("m", self.m), axis("n", self.n), k

    # -- the product --------------------------------------------------------------------------

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
        """The kernel, with the region's other members as its epilogue.

        Args:
            packed: the panels, one for each of :attr:`packings`.
            form: how the first ones hold their elements.
            number: of the sum, where an epilogue takes several.
        """
        rows, panel = tile
        batch, m, n, k = self._axes(build)
        a = build.at(self.a, self.a_at(batch, m, k))
        assert isinstance(a, Load)
        b = build.argument(packed[0], reads=True)
        at = self.out_at(batch, m, n)
        epilogue = self._stores(build, Accumulator(self.acc, number), at, outputs)
        (m_symbol,), (n_symbol,) = symbols_of([m]), symbols_of([n])
        idle = None
        if not symbols_of(batch) and self._counts_leading_rows(m_symbol, at):
            idle = build.argument(self._idle_buffer(build), reads=True)
        return Contraction(
            build.args,
            symbols_of(batch),
            m_symbol,
            n_symbol,
            symbols_of(k),
            a.buffer,
            a.dtype,
            a.index,
            b,
            linear_index(self.groups, self.group_of(batch)),
            panel,
            rows,
            self.acc,
            epilogue,
            variables,
            idle,
            form,
        )

    def _idle_buffer(self, build: KernelBuilder) -> LoweredBuffer:
        """Where it says how many rows are not wanted: one number for all products of a kernel."""
        made = LoweredBuffer(TensorType(INT64, (1,)), Role.IDLE, f"{self.node.label}.idle")
        return next((b for b in build.buffers if b.role is Role.IDLE), made)

    def _counts_leading_rows(self, m: Symbol, at: Indices) -> bool:
        """Whether row ``m`` of the product is row ``m`` of the result, of a known number."""
        (out,) = self.node.outputs
        parts = coefficient(linear_index(out.shape, at), m)
        known = isinstance(self.m, int) and self.m > 1
        return known and parts is not None and parts[0] * self.m == out.type.size

    def dots(
        self, build: KernelBuilder, outputs: Outputs, variables: tuple[Symbol, ...]
    ) -> LoopNest:
        """The kernel of a product with one column: a dot product per row, nothing packed."""
        batch, m, k = build.axes(self.batch), build.axis(self.m), build.axes(self.k)
        terms = (
            cast(build.at(self.a, self.a_at(batch, m, k)), self.acc),
            cast(build.at(self.b, self.b_at(self.group_of(batch), k, 0)), self.acc),
        )
        fold = Reduce("r0", "sum", Apply("multiply", terms, self.acc), self.acc)
        stores = self._stores(build, Ref("r0", self.acc), self.out_at(batch, m, 0), outputs)
        outer, statements = merge_axes(symbols_of((*batch, m)), build.finish([fold, *stores]))
        inner, folded = merge_axes(symbols_of(k), statements[:1])
        stages = (Stage(inner, folded), Stage((), statements[1:]))
        return LoopNest(build.args, outer, stages, variables=variables)

    def _stores(
        self, build: KernelBuilder, total: Scalar, at: Indices, outputs: Outputs
    ) -> tuple[Store, ...]:
        """What becomes of the sum at ``at``: the bias, then the region's other members."""
        (out,) = self.node.outputs
        if self.bias is not None:
            bias = cast(build.at(self.bias, (at[1],)), self.acc)
            total = Apply("add", (total, bias), self.acc)
        build.results[out] = cast(total, out.dtype)
        return tuple(store_at(build, value, buffer, out.shape, at) for value, buffer in outputs)


#: Cuts a product, or leaves it to the rule of thumb.
Tiling: TypeAlias = "Callable[[Product], ProductCut | None]"


def cut_of(
    products: Sequence[Product], registers: RegisterFile, tiling: Tiling | None
) -> ProductCut:
    """How products that share a kernel are cut.

    Args:
        products: of the same rows.
        registers: what they are tiled for.
        tiling: asked about the widest one, if that one's tile is everyone's.
    """
    first, *others = products
    tile = first.tile(registers, others)
    widest = max(products, key=lambda product: bounds(product.n)[1])
    cut = tiling(widest) if tiling and widest.tile(registers) == tile else None
    return cut or ProductCut(tile)


# -- matmul ----------------------------------------------------------------------------------------


def matmul_product(node: Node) -> Product:
    """``matmul`` with NumPy's semantics: 1-D operands, broadcasting batches."""
    a, b = node.inputs
    a_shape = (1, *a.shape) if a.ndim == 1 else a.shape
    b_shape = (*b.shape, 1) if b.ndim == 1 else b.shape
    a_batch, b_batch = a_shape[:-2], b_shape[:-2]
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    shared = all(size == 1 for size in b_batch)
    batch = () if shared else _broadcast(a_batch, b_batch)
    rows = prod(a_batch) * m if shared else m

    def a_at(at: Indices, row: Dim, inner: Indices) -> Indices:
        if shared:
            lead = reshape_index((*a_batch, m), (rows,), (row,))
        else:
            lead = (*_broadcast_at(a_batch, at), row)
        return _squeezed(a, (*lead, *inner), -2)

    def b_at(group: Indices, inner: Indices, column: Dim) -> Indices:
        return _squeezed(b, (*group, *inner, column), -1)

    def out_at(at: Indices, row: Dim, column: Dim) -> Indices:
        if shared:
            ones: Indices = (0,) * (len(b_batch) - len(a_batch))
            lead = ones + reshape_index((*a_batch, m), (rows,), (row,))
        else:
            lead = (*at, row)
        kept = lead if a.ndim > 1 else lead[:-1]
        return kept if b.ndim == 1 else (*kept, column)

    return Product(
        node, batch, rows, n, (k,), tuple(b_batch), a, a_at, b, b_at,
        lambda at: (0,) * len(b_batch) if shared else _broadcast_at(b_batch, at), out_at,
    )  # fmt: skip


def _squeezed(value: Value, indices: Indices, position: int) -> Indices:
    """Indices into a 1-D operand, without the dim that the product gave it."""
    if value.ndim > 1:
        return indices
    return (indices[-1],) if position == -2 else (indices[-2],)


def _broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    return broadcast_shapes(a, b)


def _broadcast_at(shape: Sequence[Dim], at: Indices) -> Indices:
    kept = at[len(at) - len(shape) :]
    return tuple(0 if size == 1 else i for size, i in zip(shape, kept, strict=True))


# -- convolution -----------------------------------------------------------------------------------


def conv_product(node: Node, layout: Layout | None = None) -> Product:
    """A convolution whose rows are output positions and whose columns are output channels.

    Its padding is a ``pad`` node before it by now (:mod:`ostinato.passes.explicit_padding`).

    Args:
        layout: how ``x`` is stored: the innermost axis in memory is the innermost of the sum.
    """
    x, w, *bias = node.inputs
    (out,) = node.outputs
    groups: int = node.attrs["groups"]
    stride, dilation = node.attrs["stride"], node.attrs["dilation"]
    channels, kernel = w.shape[1], w.shape[2:]
    spatial = out.shape[2:]
    per_group = w.shape[0] // groups
    channels_last = layout is not None and layout.order[-1] == 1
    summed = (*kernel, channels) if channels_last else (channels, *kernel)

    def split(k: Indices) -> tuple[Dim, Indices]:
        """The channel and the kernel position."""
        return (k[-1], k[:-1]) if channels_last else (k[0], k[1:])

    def a_at(at: Indices, row: Dim, k: Indices) -> Indices:
        image, group = at
        channel, taps = split(k)
        places = unravel(spatial, row)
        return (
            image,
            group * channels + channel,
            *(
                place * s + tap * d
                for place, s, tap, d in zip(places, stride, taps, dilation, strict=True)
            ),
        )

    def b_at(group: Indices, k: Indices, column: Dim) -> Indices:
        channel, taps = split(k)
        return (group[0] * per_group + column, channel, *taps)

    def out_at(at: Indices, row: Dim, column: Dim) -> Indices:
        image, group = at
        return (image, group * per_group + column, *unravel(spatial, row))

    return Product(
        node, (out.shape[0], groups), prod(spatial), per_group, summed, (groups,), x,
        a_at, w, b_at, lambda at: (at[1],), out_at,
        bias[0] if bias else None,
    )  # fmt: skip


def separable(index: Dim, k: Sequence[Symbol]) -> bool:
    """Whether ``index`` is ``f(others) + g(k)`` with ``g`` affine with steps free of other axes."""
    for symbol in k:
        parts = coefficient(index, symbol)
        if parts is None or (isinstance(parts[0], Expr) and _has_axis(parts[0])):
            return False
    return True


def _has_axis(dim: Expr) -> bool:
    return any(s.extent is not None for s in symbols(dim))
