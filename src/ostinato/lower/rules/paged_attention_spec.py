"""The algebra of paged attention, whichever way a device computes it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ostinato.lower.loopir.builder import cast, store_at, symbols_of
from ostinato.lower.loopir.dependences import reached
from ostinato.lower.loopir.nodes import Accumulator, Load, Store, extent_of, max_extent
from ostinato.lower.loopir.views import linear_index
from ostinato.ops.paged_attention import scales_and_sinks
from ostinato.records import dataclass
from ostinato.variables import Expr, axis, coefficient, floor_div, minimum

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program import LoweredBuffer
    from ostinato.variables import Dim, Symbol

__all__ = ["PagedAttentionSpec", "is_in_place", "paged_attention_spec"]

#: The axes, in order.
_AXES: Final = ("row", "shared", "member", "depth", "column", "block", "place", "owner", "page")


@dataclass(frozen=True, eq=False)
class PagedAttentionSpec:
    """The axes, elements and options of a ``paged_attention`` node.

    Attributes:
        row: the axis of rows.
        shared: the axis of key heads.
        member: the axis of the query heads that share one.
        depth: the axis that scores sum over.
        column: the axis of the values' features.
        block, place: the axes of the pools: blocks, and positions within one.
        owner, page: the axes of the table: sequences, and their blocks.
        q: the element of the queries at ``row``, ``shared``, ``member`` and ``depth``.
        k: the element of the keys at ``block``, ``place``, ``shared`` and ``depth``.
        v: the element of the values at ``block``, ``place``, ``shared`` and ``column``.
        table: the number of a block at ``owner`` and ``page``.
        sequence, position: the numbers of a ``row``.
        k_scale, v_scale: the factors of a key and of a value, at ``block``, ``place`` and
            ``shared``; ``None`` where there are none.
        sink: at ``shared`` and ``member``, a score that counts without a key, if there is one.
        scale, softcap, window: see the op ``attention``.
        store: over ``row``, ``shared``, ``member`` and ``column``; ``Accumulator`` is the result,
            before it is rounded to its dtype.
    """

    row: Symbol
    shared: Symbol
    member: Symbol
    depth: Symbol
    column: Symbol
    block: Symbol
    place: Symbol
    owner: Symbol
    page: Symbol
    q: Scalar
    k: Load
    v: Load
    table: Scalar
    sequence: Scalar
    position: Scalar
    k_scale: Scalar | None
    v_scale: Scalar | None
    sink: Scalar | None
    scale: float
    softcap: float | None
    window: int | None
    store: Store

    def describe(self, text: KernelText) -> None:
        """Write the axes, the elements and the options."""
        for name in _AXES:
            text.line(1, f"{name} {text.axis(getattr(self, name))}")
        for name in ("q", "k", "v", "table", "sequence", "position"):
            text.named(name, [getattr(self, name)])
        for name in ("k_scale", "v_scale", "sink"):
            if (scalar := getattr(self, name)) is not None:
                text.named(name, [scalar])
        options = f"softcap={self.softcap!r}, window={self.window}"
        text.line(1, f"accumulate {self.acc.short}, scale={self.scale!r}, {options}")
        text.statement(self.store)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The elements that are read."""
        optional = (self.k_scale, self.v_scale, self.sink)
        return (
            *(self.q, self.k, self.v, self.table, self.sequence, self.position),
            *(scalar for scalar in optional if scalar is not None),
        )

    @property
    def acc(self) -> DType:
        """The dtype of scores, weights and sums."""
        return self.q.dtype

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return max_extent(self.member)

    def elements(self, position: int) -> Dim | None:
        """Elements of a pool that rows attend to, at most; ``None`` for other arguments.

        Args:
            position: of the argument.
        """
        keys = minimum(extent_of(self.row), extent_of(self.owner)) * extent_of(self.page)
        keys = keys * extent_of(self.place) * max_extent(self.shared)
        found = [
            keys * features
            for load, features in (
                (self.k, extent_of(self.depth)),
                (self.v, extent_of(self.column)),
                (self.k_scale, 1),
                (self.v_scale, 1),
            )
            if load is not None and self._argument(load) == position
        ]
        return sum(found) if found else None

    @staticmethod
    def _argument(element: Scalar) -> int | None:
        """The argument that an element is loaded from, whatever is computed of it."""
        loads = [node.buffer for node in reached([element]) if isinstance(node, Load)]
        return loads[0] if len(loads) == 1 else None

    def result_index(self, result: Value) -> Dim:
        """The place of a feature in the result ``[N, H, Dv]``."""
        row, shared, member, column = (
            Expr({(symbol,): 1}, 0) for symbol in (self.row, self.shared, self.member, self.column)
        )
        return linear_index(result.shape, (row, shared * self.group + member, column))


def paged_attention_spec(
    build: KernelBuilder, node: Node, value: Value, buffer: LoweredBuffer
) -> PagedAttentionSpec:
    """The algebra of a node.

    Args:
        build: the builder of the kernel, for which the pools are in place.
        node: a ``paged_attention``.
        value: its result, or what the kernel's region makes of it.
        buffer: that ``store`` writes.
    """
    (result,) = node.outputs
    q, keys, values, table, sequence, position = node.inputs[:6]
    scales, sinks = scales_and_sinks(node.inputs)
    acc, attrs = q.dtype.accumulator, node.attrs
    rows, heads, features = q.shape
    blocks, places, groups = keys.shape[:3]
    row, shared, depth = axis("row", rows), axis("shared", groups), axis("d", features)
    member, column = axis("member", floor_div(heads, groups)), axis("n", values.shape[3])
    block, place = axis("block", blocks), axis("place", places)
    owner, page = axis("owner", table.shape[0]), axis("page", table.shape[1])
    head = shared * floor_div(heads, groups) + member
    k, v = (
        build.at(keys, (block, place, shared, depth)),
        build.at(values, (block, place, shared, column)),
    )
    assert isinstance(k, Load)
    assert isinstance(v, Load)
    assert isinstance(features, int)
    build.results[result] = Accumulator(acc)
    store = store_at(build, value, buffer, result.shape, (row, head, column))
    named = (row, shared, member, depth, column, block, place, owner, page)
    axes: dict[str, Any] = dict(zip(_AXES, symbols_of(named), strict=True))
    sink = cast(build.at(sinks[0], (head,)), acc) if sinks else None
    k_scale, v_scale = (
        [cast(build.at(x, (block, place, shared)), acc) for x in scales] if scales else (None, None)
    )
    return PagedAttentionSpec(
        **axes,
        q=cast(build.at(q, (row, head, depth)), acc),
        k=k,
        v=v,
        table=build.at(table, (owner, page)),
        sequence=build.at(sequence, (row,)),
        position=build.at(position, (row,)),
        k_scale=k_scale,
        v_scale=v_scale,
        sink=sink,
        scale=1.0 / math.sqrt(features) if attrs["scale"] is None else float(attrs["scale"]),
        softcap=attrs["softcap"],
        window=attrs["window"],
        store=store,
    )


def is_in_place(build: KernelBuilder, pool: Value) -> bool:
    """Whether the features of a pool are side by side in memory."""
    axes = [axis(f"p{number}", size) for number, size in enumerate(pool.shape)]
    element = build.at(pool, tuple(axes))
    if not isinstance(element, Load) or element.bindings:
        return False
    by_feature = coefficient(element.index, symbols_of(axes)[-1])
    return by_feature is not None and by_feature[0] == 1
