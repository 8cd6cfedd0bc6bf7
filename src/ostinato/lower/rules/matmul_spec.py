"""The algebra of matmuls and convolutions, whichever way a device multiplies.

``out[batch, m, n] = Σ_k a[batch, m, k] · b[group, k, n]``: a matmul and a convolution differ in the
index expressions of their operands and of their result. A device reads a :class:`MatmulSpec` and
hands it to a library, multiplies tile by tile, or takes it as a loop nest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.builder import KernelBuilder, Outputs, cast, store_at, symbols_of
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Load, Reduce, Ref, Scalar, Stage, Store
from ostinato.lower.loopir.views import Indices, linear_index, reshape_index, unravel
from ostinato.lower.rules.loops import BLOCK
from ostinato.ops.base import broadcast_shapes
from ostinato.records import dataclass, replace
from ostinato.variables import Dim, Expr, Symbol, axis, coefficient, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import Layout

__all__ = [
    "MatmulAxes",
    "MatmulSpec",
    "conv_spec",
    "matmul_spec",
    "row_spec",
    "scaled_spec",
    "separable",
]


@dataclass(frozen=True)
class MatmulAxes:
    """The axes of a matmul's kernel: all but the batch's exist even with one value."""

    batch: Indices
    m: Dim
    n: Dim
    k: Indices


@dataclass(frozen=True, eq=False)
class MatmulSpec:
    """A matmul or convolution as sums of products.

    Attributes:
        node: the graph's node.
        batch: sizes of the independent matmuls, outermost first.
        m, n: rows and columns of each.
        k: sizes of the axes summed over.
        groups: sizes that tell how many different right operands there are.
        a: the left operand.
        a_at: the indices into ``a`` of ``(batch, m, k)``.
        b: the right operand.
        b_at: the indices into ``b`` of ``(group, k, n)``.
        group_of: the group's indices for a batch point.
        out_at: the indices into the node's result of ``(batch, m, n)``.
        bias: added to every element of its column (a convolution's output channel).
        scales: factors of each sum; they broadcast against the node's result.
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
    scales: tuple[Value, ...] = ()

    @property
    def acc(self) -> DType:
        """The dtype that sums are accumulated in."""
        return self.node.outputs[0].dtype.accumulator

    @property
    def depth(self) -> Dim:
        """The number of products in a sum."""
        return prod(self.k)

    def axes(self, build: KernelBuilder) -> MatmulAxes:
        """The axes of the kernel that ``build`` makes."""
        k = tuple(axis(f"k{i}", extent) for i, extent in enumerate(self.k))
        return MatmulAxes(build.axes(self.batch), axis("m", self.m), axis("n", self.n), k)

    def left(self, build: KernelBuilder, at: MatmulAxes) -> Scalar:
        """The element of the left operand at some axes."""
        return build.at(self.a, self.a_at(at.batch, at.m, at.k))

    def reads_in_place(self, build: KernelBuilder) -> bool:
        """Whether the left operand is in memory, and walked by even steps along ``k``."""
        at = self.axes(build)
        a = self.left(build, at)
        return isinstance(a, Load) and not a.bindings and separable(a.index, symbols_of(at.k))

    def group_index(self, batch: Indices) -> Dim:
        """The number of the right operand that serves a batch point."""
        return linear_index(self.groups, self.group_of(batch))

    def counts_leading_rows(self, m: Symbol, at: Indices) -> bool:
        """Whether row ``m`` of the matmul is row ``m`` of the result, of a known number.

        Args:
            m: the axis of rows.
            at: the indices into the result.
        """
        (out,) = self.node.outputs
        parts = coefficient(linear_index(out.shape, at), m)
        known = isinstance(self.m, int) and self.m > 1
        return known and parts is not None and parts[0] * self.m == out.type.size

    def stores(
        self, build: KernelBuilder, total: Scalar, at: Indices, outputs: Outputs
    ) -> tuple[Store, ...]:
        """The stores at ``at`` of the result.

        The sum, times the scales, plus the bias, and what the region's other members make of it.
        """
        (out,) = self.node.outputs
        for scale in self.scales:
            factor = cast(build.at(scale, _broadcast_at(scale.shape, at)), self.acc)
            total = Apply("multiply", (total, factor), self.acc)
        if self.bias is not None:
            bias = cast(build.at(self.bias, (at[1],)), self.acc)
            total = Apply("add", (total, bias), self.acc)
        build.results[out] = cast(total, out.dtype)
        return tuple(store_at(build, value, buffer, out.shape, at) for value, buffer in outputs)

    def loop_nest(
        self, build: KernelBuilder, outputs: Outputs, variables: tuple[Symbol, ...]
    ) -> LoopNest:
        """The matmul as loops: a dot product for each element, columns side by side."""
        batch, m, n = build.axes(self.batch), build.axis(self.m), build.axis(self.n)
        k = build.axes(self.k)
        terms = (
            cast(build.at(self.a, self.a_at(batch, m, k)), self.acc),
            cast(build.at(self.b, self.b_at(self.group_of(batch), k, n)), self.acc),
        )
        total = Reduce("r0", "sum", Apply("multiply", terms, self.acc), self.acc)
        stores = self.stores(build, Ref("r0", self.acc), self.out_at(batch, m, n), outputs)
        outer, statements = merge_axes(symbols_of((*batch, m, n)), build.finish([total, *stores]))
        inner, summed = merge_axes(symbols_of(k), statements[:1])
        columns = bool(symbols_of([n]))
        return LoopNest(
            build.args,
            outer[:-1] if columns else outer,
            (Stage(inner, summed), Stage((), statements[1:])),
            inner_axis=outer[-1] if columns else None,
            block=BLOCK,
            variables=variables,
        )


# -- matmul ----------------------------------------------------------------------------------------


def matmul_spec(node: Node) -> MatmulSpec:
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

    return MatmulSpec(
        node, batch, rows, n, (k,), tuple(b_batch), a, a_at, b, b_at,
        lambda at: (0,) * len(b_batch) if shared else _broadcast_at(b_batch, at), out_at,
    )  # fmt: skip


def _squeezed(value: Value, indices: Indices, position: int) -> Indices:
    """Indices into a 1-D operand, without the dim that the matmul gave it."""
    if value.ndim > 1:
        return indices
    return (indices[-1],) if position == -2 else (indices[-2],)


def _broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    return broadcast_shapes(a, b)


def _broadcast_at(shape: Sequence[Dim], at: Indices) -> Indices:
    kept = at[len(at) - len(shape) :]
    return tuple(0 if size == 1 else i for size, i in zip(shape, kept, strict=True))


# -- convolution -----------------------------------------------------------------------------------


def conv_spec(node: Node, layout: Layout | None = None) -> MatmulSpec:
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

    return MatmulSpec(
        node, (out.shape[0], groups), prod(spatial), per_group, summed, (groups,), x,
        a_at, w, b_at, lambda at: (at[1],), out_at,
        bias[0] if bias else None,
    )  # fmt: skip


def row_spec(node: Node, a: Value, b: Value) -> MatmulSpec:
    """The rows of ``a``, whatever its rank, times the matrix ``b``."""
    lead = a.shape[:-1]
    rows = prod(lead)

    def a_at(at: Indices, row: Dim, inner: Indices) -> Indices:
        return (*reshape_index(lead, (rows,), (row,)), *inner)

    def b_at(group: Indices, inner: Indices, column: Dim) -> Indices:
        return (*inner, column)

    def out_at(at: Indices, row: Dim, column: Dim) -> Indices:
        return (*reshape_index(lead, (rows,), (row,)), column)

    return MatmulSpec(
        node, (), rows, b.shape[1], (a.shape[-1],), (),
        a, a_at, b, b_at, lambda at: (), out_at,
    )  # fmt: skip


def scaled_spec(node: Node) -> MatmulSpec:
    """``scaled_matmul``: rows of 8-bit floats times a matrix of them, and the scales of both."""
    x, w, *scales = node.inputs
    return replace(row_spec(node, x, w), scales=tuple(scales))


# -- indices ---------------------------------------------------------------------------------------


def separable(index: Dim, k: Sequence[Symbol]) -> bool:
    """Whether ``index`` is ``f(others) + g(k)`` with ``g`` affine with steps free of other axes."""
    for symbol in k:
        parts = coefficient(index, symbol)
        if parts is None or (isinstance(parts[0], Expr) and _has_axis(parts[0])):
            return False
    return True


def _has_axis(dim: Expr) -> bool:
    return any(s.extent is not None for s in symbols(dim))
