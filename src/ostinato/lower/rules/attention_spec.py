"""The algebra of attention, whichever way a device computes it.

The query heads that share a key head are stacked, one below the other, into *rows*: keys and values
are the same for all of them.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.lower.loopir.builder import KernelBuilder, cast, symbols_of
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.nodes import Accumulator, Load, Scalar, Store
from ostinato.lower.loopir.views import Indices, broadcast_index, linear_index, unravel
from ostinato.lower.rules.matmul_spec import separable
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis, floor_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.builder import Outputs
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.text import KernelText

__all__ = ["AttentionSpec", "Queries", "attention_spec"]


@dataclass(frozen=True, eq=False)
class AttentionSpec:
    """``softmax(masked(scale · q kᵀ)) v``.

    Attributes:
        batch: outer axes, outermost first: of the batch, of the key heads.
        m: the axis of query rows: every query head of the group, one below the other.
        key: the axis of keys.
        depth: the axis that scores sum over.
        column: the axis of the values' features.
        q: the element of the queries at ``batch``, ``m`` and ``depth``.
        k: the element of the keys at ``batch``, ``key`` and ``depth``.
        v: the element of the values at ``batch``, ``key`` and ``column``.
        mask: at ``batch``, ``m`` and ``key``, true where a row attends to a key, or a number to
            add to the score; ``None`` where there is none.
        sink: at ``batch`` and ``m``, a score that counts without a key; ``None``: there is none.
        scale: a factor on the scores.
        softcap: see the op.
        length: positions of a query head: row ``m`` stands at ``m % length``.
        causal, window: see the op.
        store: over ``batch``, ``m`` and ``column``; ``Accumulator`` is the result.
        acc: the dtype of scores, weights and sums.
    """

    batch: tuple[Symbol, ...]
    m: Symbol
    key: Symbol
    depth: Symbol
    column: Symbol
    q: Scalar
    k: Scalar
    v: Scalar
    mask: Scalar | None
    sink: Scalar | None
    scale: float
    softcap: float | None
    length: Dim
    causal: bool
    window: int | None
    store: Store
    acc: DType

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The elements that it reads."""
        every = (self.q, self.k, self.v, self.mask, self.sink)
        return tuple(scalar for scalar in every if scalar is not None)

    def describe_axes(self, text: KernelText) -> None:
        """Write the axes."""
        for symbol in self.batch:
            text.line(1, f"for {text.axis(symbol)}")
        text.line(1, f"rows {text.axis(self.m)}, heads of {text.dim(self.length)}")
        text.line(1, f"keys {text.axis(self.key)}")
        text.line(1, f"sum over {text.axis(self.depth)}")
        text.line(1, f"columns {text.axis(self.column)}")

    def describe_elements(self, text: KernelText) -> None:
        """Write the operands, the settings and the store."""
        text.named("q", [self.q])
        text.named("k", [self.k])
        text.named("v", [self.v])
        if self.mask is not None:
            text.named("mask", [self.mask])
        if self.sink is not None:
            text.named("sink", [self.sink])
        text.line(1, f"accumulate {self.acc.short}, scale={self.scale!r}")
        options = f"softcap={self.softcap!r}, causal={self.causal}, window={self.window}"
        text.line(1, options)
        text.statement(self.store)

    def accesses(self) -> Iterator[Access]:
        """The elements that are read and written."""
        yield from accesses_of_scalars(self.operands)
        yield from accesses_of_statements((self.store,))


class Queries:
    """The axes of an ``attention`` node's rows, how a kernel reads the queries, and its results."""

    def __init__(self, build: KernelBuilder, node: Node) -> None:
        q, k, v = node.inputs[:3]
        self._build, self._node = build, node
        self.group = floor_div(q.shape[1], k.shape[1])
        self.length = q.shape[2] if q.shape[2] != 0 else 1  # of no rows, whatever divides
        self.batch = build.axes((q.shape[0], k.shape[1]))
        self.m, self.depth = axis("m", self.group * q.shape[2]), axis("d", q.shape[3])
        self.column = axis("n", v.shape[3])

    @cached_property
    def element(self) -> Scalar:
        """The element of the queries."""
        return self._build.at(self._node.inputs[0], (*self.place, self.depth))

    @property
    def place(self) -> Indices:
        """The batch, the query head and the position of a row."""
        image, key_head = self.batch
        head, position = unravel((self.group, self.length), self.m)
        return image, key_head * self.group + head, position

    @property
    def in_place(self) -> bool:
        """Whether the queries are in memory in a form that a kernel can walk."""
        element = self.element
        if not isinstance(element, Load) or element.bindings:
            return False
        return separable(element.index, symbols_of([self.depth]))

    def result_index(self, result: Value) -> Dim:
        """The offset of the element at the row and ``column`` of the result, or a transpose."""
        at: Indices = (*self.place, self.column)
        if result.node is not self._node:
            at = tuple(at[axis_] for axis_ in result.node.attrs["axes"])
        return linear_index(result.shape, at)


def attention_spec(build: KernelBuilder, node: Node, outputs: Outputs) -> AttentionSpec:
    """The algebra of a node ``attention`` or ``sink_attention``.

    Args:
        build: the kernel under construction.
        node: the node.
        outputs: what to store: the node's result, or a transpose of it.
    """
    q, k, v, *mask = node.inputs
    sinks = mask.pop(0) if node.op.name == "sink_attention" else None
    acc, attrs = q.dtype.accumulator, node.attrs
    queries = Queries(build, node)
    element, key = queries.element, axis("key", k.shape[2])
    ((result, buffer),) = outputs
    target = build.argument(buffer, writes=True)
    axes = symbols_of((queries.m, key, queries.depth, queries.column))
    m_symbol, key_symbol, depth_symbol, column_symbol = axes
    depth = q.shape[3]
    assert isinstance(depth, int)
    scale = 1.0 / math.sqrt(depth) if attrs["scale"] is None else float(attrs["scale"])
    k_element = build.at(k, (*queries.batch, key, queries.depth))
    v_element = build.at(v, (*queries.batch, key, queries.column))
    mask_element = _mask(build, mask[0], (*queries.place, key), acc) if mask else None
    return AttentionSpec(
        symbols_of(queries.batch),
        m_symbol,
        key_symbol,
        depth_symbol,
        column_symbol,
        element,
        k_element,
        v_element,
        mask_element,
        None if sinks is None else cast(build.at(sinks, queries.place[1:2]), acc),
        scale,
        attrs["softcap"],
        queries.length,
        attrs["causal"],
        attrs["window"],
        Store(target, queries.result_index(result), Accumulator(acc)),
        acc,
    )


def _mask(build: KernelBuilder, mask: Value, at: Indices, acc: DType) -> Scalar:
    element = build.at(mask, broadcast_index(mask.shape, at))
    return element if mask.dtype.is_bool else cast(element, acc)
