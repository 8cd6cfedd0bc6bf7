"""Building one kernel: its arguments, its axes, and the scalar expression of any graph value.

``KernelBuilder.at(value, indices)`` is the heart of lowering: the element of a graph value at some
indices, as a scalar expression. Views rename the indices; members of the kernel's region are
computed on the spot; everything else is loaded from its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ostinato.dtypes import BOOL, INT64, DType
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Scalar,
    Statement,
    Store,
    Temp,
)
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.loopir.views import (
    VIEWS,
    Indices,
    broadcast_index,
    reshape_index,
    source_index,
)
from ostinato.ops.base import Elementwise
from ostinato.variables import (
    Dim,
    Expr,
    Symbol,
    axis,
    bounds,
    floor_div,
    remainder,
    symbols,
)

if TYPE_CHECKING:
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import LoweredBuffer

__all__ = [
    "POINTWISE",
    "KernelBuilder",
    "Outputs",
    "cast",
    "in_memory_order",
    "is_pointwise",
    "store_at",
    "symbols_of",
]

#: The values that a kernel stores, with their buffers.
Outputs: TypeAlias = Sequence[tuple["Value", "LoweredBuffer"]]


class KernelBuilder:
    """Collects what one kernel needs.

    Args:
        stored: the buffer of each value that is in memory.
        members: the nodes that this kernel computes on the spot.
    """

    def __init__(
        self, stored: Mapping[Value, LoweredBuffer], members: Container[Node] = ()
    ) -> None:
        self.buffers: list[LoweredBuffer] = []
        self.temps: list[Temp] = []
        #: reductions (and the sums of a matmul) that are scalars by now
        self.results: dict[Value, Scalar] = {}
        #: rows in temps, each with its temp and how a value's indices become an offset in the row
        self.kept: dict[Value, tuple[int, Callable[[Indices], Dim]]] = {}
        #: the nodes that were computed on the spot, as keys
        self.computed: dict[Node, None] = {}
        self._stored = stored
        self._members = members
        self._access: list[list[bool]] = []
        self._memo: dict[tuple[Value, Indices], Scalar] = {}
        self._bindings: dict[Symbol, Binding] = {}
        self._axes = 0

    # -- arguments and axes -----------------------------------------------------------------

    def argument(self, buffer: LoweredBuffer, *, reads: bool = False, writes: bool = False) -> int:
        """The position of ``buffer``, or of its home, among the kernel's arguments."""
        buffer = buffer.home or buffer
        if buffer not in self.buffers:  # buffers are compared by identity
            self.buffers.append(buffer)
            self._access.append([False, False])
        position = self.buffers.index(buffer)
        access = self._access[position]
        access[0] |= reads
        access[1] |= writes
        return position

    def operand(self, buffer: LoweredBuffer) -> None:
        """Add ``buffer`` behind the arguments, of which it may be one already.

        For kernels that know their operands by position.
        """
        self.buffers.append(buffer.home or buffer)
        self._access.append([True, False])

    @property
    def args(self) -> tuple[Arg, ...]:
        return tuple(
            Arg(buffer.type.dtype, reads, writes)
            for buffer, (reads, writes) in zip(self.buffers, self._access, strict=True)
        )

    def axis(self, extent: Dim) -> Dim:
        """A new axis that runs over ``extent`` values; plain 0 where there is just one."""
        if extent == 1:
            return 0
        self._axes += 1
        return axis(f"i{self._axes - 1}", extent)

    def axes(self, shape: Sequence[Dim]) -> Indices:
        return tuple(self.axis(extent) for extent in shape)

    def temp(self, dtype: DType, elements: int) -> int:
        """A new row private to an outer point; negative until :meth:`finish` numbers it."""
        self.temps.append(Temp(dtype, elements))
        return -len(self.temps)

    def finish(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """``statements`` with temps numbered after the arguments."""
        if not self.temps:
            return tuple(statements)
        first = len(self.buffers)
        rewriter = Rewriter(buffer=lambda b: first - b - 1 if b < 0 else b)
        return tuple(rewriter.statement(s) for s in statements)

    def forget(self) -> None:
        """Forget computed scalars: what follows stands in another stage's loops."""
        self._memo.clear()

    # -- values -----------------------------------------------------------------------------

    def at(self, value: Value, indices: Indices) -> Scalar:
        """The element of ``value`` at ``indices``."""
        key = (value, indices)
        scalar = self._memo.get(key)
        if scalar is None:
            scalar = self._memo[key] = self._compute(value, indices)
        return scalar

    def bindings_of(self, *indices: Dim) -> tuple[Binding, ...]:
        """The bindings of the data symbols in ``indices``."""
        found = {s for index in indices for s in symbols(index) if s in self._bindings}
        return tuple(self._bindings[s] for s in sorted(found, key=lambda s: s.name))

    def data_index(self, value: Value, indices: Indices, size: Dim, *, wrap: bool) -> Dim:
        """An index read from ``value``, clamped to ``0 <= index < size``.

        Args:
            wrap: negative indices count from the end.
        """
        number = self.as_int64(self.at(value, indices))
        if isinstance(number, Number) and isinstance(size, int):
            offset = int(number.value)
            return min(max(offset + size if wrap and offset < 0 else offset, 0), max(size - 1, 0))
        if wrap:
            number = self.from_end(number, size)
        zero, last = Number(0, INT64), IndexValue(size - 1, INT64)
        clamped = Apply("maximum", (Apply("minimum", (number, last), INT64), zero), INT64)
        return self.bind(clamped, max(bounds(size)[1] - 1, 0), extent=size)

    def bind(self, number: Scalar, high: int, *, low: int = 0, extent: Dim | None = None) -> Dim:
        """A data symbol for ``number``, an int64 within ``low..high``."""
        symbol = Symbol(f"d{len(self._bindings)}", low, high, extent)
        self._bindings[symbol] = Binding(symbol, number)
        return Expr({(symbol,): 1}, 0)

    @staticmethod
    def from_end(number: Scalar, size: Dim) -> Scalar:
        """``number``, negative values counted from ``size``."""
        negative = Apply("less", (number, Number(0, INT64)), BOOL)
        shifted = Apply("add", (number, IndexValue(size, INT64)), INT64)
        return Apply("where", (negative, shifted, number), INT64)

    @staticmethod
    def as_int64(scalar: Scalar) -> Scalar:
        return cast(scalar, INT64)

    def _compute(self, value: Value, indices: Indices) -> Scalar:
        if value in self.results:
            return self.results[value]
        if value in self.kept:
            temp, offset = self.kept[value]
            return Load(temp, offset(indices), value.dtype)
        if value in self._stored:
            return self._load(value, indices)
        node = value.node
        if node.op.name in VIEWS:
            return self.at(*source_index(node, indices))
        if node.op.name == "constant" and node.attrs["array"].size == 1:
            return Number(node.attrs["array"].reshape(()).item(), value.dtype)
        if node.op.name in INDEX_OPS:
            return INDEX_OPS[node.op.name](self, node, indices)
        assert node in self._members, f"{node} is neither stored nor computed here"
        self.computed[node] = None
        return POINTWISE.get(node.op.name, _elementwise)(self, node, indices)

    def _load(self, value: Value, indices: Indices) -> Scalar:
        buffer = self._stored[value]
        position = self.argument(buffer, reads=True)
        index = buffer.offset(value.shape, indices)
        return Load(position, index, value.dtype, self.bindings_of(index))


def symbols_of(indices: Iterable[Dim]) -> tuple[Symbol, ...]:
    """The axes behind indices made by ``KernelBuilder.axes``."""
    found = []
    for index in indices:
        if isinstance(index, Expr):
            (symbol,) = index.terms[0][0]
            assert isinstance(symbol, Symbol)
            found.append(symbol)
    return tuple(found)


def in_memory_order(indices: Indices, buffer: LoweredBuffer) -> tuple[Symbol, ...]:
    """The axes behind ``indices`` into what ``buffer`` holds, outermost in memory first."""
    if buffer.layout is None:
        return symbols_of(indices)
    return symbols_of(indices[position] for position in buffer.layout.order)


def store_at(
    build: KernelBuilder,
    value: Value,
    buffer: LoweredBuffer,
    shape: Sequence[Dim],
    indices: Indices,
) -> Store:
    """Stores ``value``'s element that stands, in C order, where ``indices`` do in ``shape``."""
    at = reshape_index(value.shape, shape, indices)
    scalar = build.at(value, at)
    position = build.argument(buffer, writes=True)
    return Store(position, buffer.offset(value.shape, at), scalar)


def is_pointwise(node: Node) -> bool:
    """Whether an element of the node's result is a scalar expression of its operands' elements."""
    return isinstance(node.op, Elementwise) or node.op.name in POINTWISE


def cast(scalar: Scalar, dtype: DType) -> Scalar:
    """``scalar`` converted to ``dtype`` by the vocabulary's ``cast``."""
    if scalar.dtype == dtype:
        return scalar
    if isinstance(scalar, Number) and dtype.is_integer and scalar.dtype.is_integer:
        return Number(scalar.value, dtype)
    return Apply("cast", (scalar,), dtype, (("dtype", dtype),))


def _elementwise(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    op = node.op
    assert isinstance(op, Elementwise)
    wanted = op.operand_dtypes(*(v.dtype for v in node.inputs), **node.attrs)
    scalars = tuple(
        cast(build.at(v, broadcast_index(v.shape, indices)), dtype)
        for v, dtype in zip(node.inputs, wanted, strict=True)
    )
    return Apply(op.name, scalars, node.outputs[0].dtype, tuple(node.attrs.items()))


def _pad(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    (x,) = node.inputs
    conditions: list[Dim] = []
    inner: list[Dim] = []
    for size, before, after, index in zip(
        x.shape, node.attrs["before"], node.attrs["after"], indices, strict=True
    ):
        inner.append(index - before)
        if before:
            conditions.append(index - before)
        if after:
            conditions.append(size + before - 1 - index)
    body = build.at(x, tuple(inner))
    otherwise = Number(node.attrs["value"], x.dtype)
    if not conditions:
        return body
    bindings = build.bindings_of(*conditions)
    return Guard(tuple(conditions), body, otherwise, x.dtype, bindings)


def _take(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    x, ids = node.inputs
    axis_, rank = node.attrs["axis"], ids.ndim
    picked = indices[axis_ : axis_ + rank]
    index = build.data_index(ids, picked, x.shape[axis_], wrap=True)
    return build.at(x, (*indices[:axis_], index, *indices[axis_ + rank :]))


def _take_along_axis(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    x, ids = node.inputs
    axis_ = node.attrs["axis"]
    index = build.data_index(ids, broadcast_index(ids.shape, indices), x.shape[axis_], wrap=True)
    others = broadcast_index(x.shape, indices)
    return build.at(x, (*others[:axis_], index, *others[axis_ + 1 :]))


def _gather_nd(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    x, ids = node.inputs
    batch: int = node.attrs["batch_dims"]
    depth = ids.shape[-1]
    assert isinstance(depth, int)
    lead = ids.ndim - 1
    picked = tuple(
        build.data_index(ids, (*indices[:lead], j), x.shape[batch + j], wrap=True)
        for j in range(depth)
    )
    return build.at(x, (*indices[:batch], *picked, *indices[lead:]))


def _dynamic_slice(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    x, *starts = node.inputs
    shifted = []
    for size, taken, start, index in zip(
        x.shape, node.outputs[0].shape, starts, indices, strict=True
    ):
        shifted.append(index + build.data_index(start, (), size - taken + 1, wrap=False))
    return build.at(x, tuple(shifted))


def _rope(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    """A feature, turned together with the other one of its pair."""
    x, cos, sin = node.inputs
    pairs, features, acc = cos.shape[-1], x.shape[-1], x.dtype.accumulator
    if pairs == 0:
        return build.at(x, indices)
    *lead, j = indices
    if node.attrs["interleaved"]:
        pair, second = floor_div(j, 2), remainder(j, 2)
        other = j + 1 - 2 * second
    else:
        pair, second = remainder(j, pairs), floor_div(j, pairs)
        other = remainder(j + pairs, 2 * pairs)
    first = Apply("equal", (IndexValue(second, INT64), Number(0, INT64)), BOOL)
    angle = (*broadcast_index(cos.shape[:-1], tuple(lead)), pair)
    by_cos, by_sin = (
        Apply(
            "multiply",
            (cast(build.at(x, (*lead, at)), acc), cast(build.at(factor, angle), acc)),
            acc,
        )
        for at, factor in ((j, cos), (other, sin))
    )
    apart, together = (Apply(name, (by_cos, by_sin), acc) for name in ("subtract", "add"))
    turned = cast(Apply("where", (first, apart, together), acc), x.dtype)
    if features == 2 * pairs:
        return turned
    return Guard((2 * pairs - 1 - j,), turned, build.at(x, indices), x.dtype)


def _searchsorted(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    """A binary search written out: each step decides one bit of the position."""
    sequence, values = node.inputs
    size, bits = sequence.shape[-1], bounds(sequence.shape[-1])[1].bit_length()
    lead = indices[:-1] if sequence.ndim > 1 else ()
    wanted = build.at(values, indices)
    found: Scalar = Number(0, INT64)
    for bit in reversed(range(bits)):
        last = Apply("add", (found, Number((1 << bit) - 1, INT64)), INT64)
        at = build.bind(last, (1 << bits) - 1)
        precedes = _precedes(build.at(sequence, (*lead, at)), wanted, or_equal=node.attrs["right"])
        inside = (size - 1 - at,)
        moves = Guard(inside, precedes, Number(False, BOOL), BOOL, build.bindings_of(*inside))
        further = Apply("add", (found, Number(1 << bit, INT64)), INT64)
        found = Apply("where", (moves, further, found), INT64)
    return found


def _precedes(element: Scalar, value: Scalar, *, or_equal: bool) -> Scalar:
    """Whether an element of a sorted sequence comes before a value, NaN last."""
    if or_equal:
        last = Apply("not_equal", (value, value), BOOL)
        before = Apply("less_equal", (element, value), BOOL)
        return Apply("logical_or", (before, last), BOOL)
    number = Apply("equal", (element, element), BOOL)
    after = Apply("less_equal", (value, element), BOOL)
    return Apply("logical_and", (Apply("logical_not", (after,), BOOL), number), BOOL)


def _iota(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    index = indices[node.attrs["axis"]]
    return IndexValue(index, node.outputs[0].dtype, build.bindings_of(index))


def _dim_value(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    return IndexValue(node.attrs["dim"], node.outputs[0].dtype)


_Rule = Callable[[KernelBuilder, "Node", Indices], Scalar]

#: Ops besides the elementwise ones whose elements are scalar expressions.
POINTWISE: dict[str, _Rule] = {
    "pad": _pad,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "gather_nd": _gather_nd,
    "rope": _rope,
    "searchsorted": _searchsorted,
}

#: Ops that are computed from indices alone, or only move them: no kernel ever stores their result
#: unless it is asked for.
INDEX_OPS: dict[str, _Rule] = {
    "iota": _iota,
    "dim_value": _dim_value,
    "dynamic_slice": _dynamic_slice,
}
