"""Quantisation: a graph whose matmuls read narrow weights in place of wide ones.

Not a pass of the pipeline: it changes results, so it runs only where it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ostinato.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32, DType
from ostinato.errors import InputError
from ostinato.ir.leaves import CONSTANT, PARAM
from ostinato.ops.builder import Graph
from ostinato.ops.quant import GROUPS, MAX_DEPTH
from ostinato.passes.rewrite import Rewriter, live_nodes
from ostinato.passes.weight_rounding import float8_columns, int4_groups, int8_columns
from ostinato.records import dataclass, replace
from ostinato.reference import evaluate_node
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["FORMATS", "QuantizedGraph", "QuantizedWeight", "SkippedProduct", "quantize_graph"]

Array = np.ndarray[Any, Any]

#: The formats of narrow weights.
FORMATS: Final = ("int8", "int4", "float8_e4m3fn", "bfloat16", "float16")

#: Ops that may stand between a param and the matmul that it is a weight of.
_LOOKED_THROUGH: Final = frozenset({"cast", "permute_dims", "reshape", "slice", "flip"})

_ACTIVATIONS: Final = (FLOAT32, FLOAT16, BFLOAT16)


@dataclass(frozen=True)
class QuantizedWeight:
    """A matmul whose weight was made narrow.

    Attributes:
        label: the matmul's label.
        weight: the name of the param (or the label of the constant) that held the weight.
        params: the names of the params that hold it now.
        before: bytes of the weight as it was.
        after: bytes of what stands for it, scales included.
        error: root mean square of what the weights changed by, relative to that of the weights.
    """

    label: str
    weight: str
    params: tuple[str, ...]
    before: int
    after: int
    error: float


@dataclass(frozen=True)
class SkippedProduct:
    """A matmul that was left as it was.

    Attributes:
        label: the matmul's label.
        why: the reason.
    """

    label: str
    why: str


class QuantizedGraph(Graph):
    """A graph made by :func:`ostinato.quantize`, with a record of its changes.

    Attributes:
        format: one of :data:`FORMATS`.
        quantized: the matmuls that read narrow weights now.
        skipped: the matmuls that do not, and why.
    """

    format: str
    quantized: tuple[QuantizedWeight, ...] = ()
    skipped: tuple[SkippedProduct, ...] = ()

    def quantization(self) -> str:
        """A table of the matmuls that were changed, and of those that were not."""
        before, after = (sum(getattr(w, k) for w in self.quantized) for k in ("before", "after"))
        lines = [
            f"{self.name} in {self.format}: {len(self.quantized)} matmuls, "
            f"{before / 1e6:.1f} MB of weights in {after / 1e6:.1f} MB"
        ]
        lines += [
            f"  {w.label:32} {w.weight} -> {', '.join(w.params)} (error {w.error:.2%})"
            for w in self.quantized
        ]
        lines += [f"  {s.label:32} left: {s.why}" for s in self.skipped]
        return "\n".join(lines)


def quantize_graph(
    graph: BaseGraph,
    format: str,
    *,
    group: int = 32,
    min_elements: int = 4096,
    skip: Collection[str] = (),
) -> QuantizedGraph:
    """A copy of ``graph`` with narrow weights; see :func:`ostinato.quantize`."""
    if format not in FORMATS:
        raise InputError(f"weights become one of {', '.join(FORMATS)}, not {format!r}")
    if group not in GROUPS:
        raise InputError(f"group is one of {GROUPS}, got {group!r}")
    if isinstance(skip, str):
        raise InputError(f"skip is a collection of names, got the string {skip!r}")
    known = {*graph.params, *(node.label for node in graph.nodes)}
    unknown = [repr(name) for name in skip if name not in known]
    if unknown:
        raise InputError(f"skip: the graph has no param or matmul {', '.join(unknown)}")
    quantizer = _Quantizer(graph, _ROUNDING[format], format, group, min_elements, skip)
    return quantizer.run()


class _Skip(Exception):
    """The reason why a matmul stays as it is."""


#: The matmul of a value with the params that hold a narrow weight.
_Apply: TypeAlias = "Callable[[Graph, Value, list[Value]], Value]"


@dataclass(frozen=True)
class _Narrow:
    """A weight's narrow form.

    Attributes:
        arrays: what to store, by the suffix of its param.
        stands_for: the weights as they are now, in float32.
        apply: see there.
    """

    arrays: dict[str, Array]
    stands_for: Array
    apply: _Apply


@dataclass(frozen=True)
class _Made:
    """A narrow weight in the new graph."""

    weight: QuantizedWeight
    values: list[Value]
    apply: _Apply


class _Quantizer:
    def __init__(
        self,
        graph: BaseGraph,
        rounding: Callable[[Array, int], _Narrow],
        format: str,
        group: int,
        min_elements: int,
        skip: Collection[str],
    ) -> None:
        self.source = graph
        self.rounding = rounding
        self.group = group
        self.min_elements = min_elements
        self.skip = frozenset(skip)
        self.target = QuantizedGraph(graph.name)
        self.target.format = format
        self.quantized: list[QuantizedWeight] = []
        self.skipped: list[SkippedProduct] = []
        #: by the source of a weight and the views of it that were taken
        self._made: dict[tuple[object, ...], _Made] = {}

    def run(self) -> QuantizedGraph:
        chosen = self._choose()
        rewriter = Rewriter(self.source, self.target)
        kept = self._kept(chosen)
        for node in rewriter.nodes():
            if node in chosen:
                x = rewriter[node.inputs[0]]
                rewriter.replace(node, self._matmul(node, x, chosen[node]))
            elif node in kept:
                rewriter.copy(node)
        rewriter.finish(force=True)
        self.target.quantized, self.target.skipped = tuple(self.quantized), tuple(self.skipped)
        return self.target

    # -- which matmuls -------------------------------------------------------------------------

    def _choose(self) -> dict[Node, Node]:
        """The matmuls to change, each with the leaf that its weight comes from."""
        chosen: dict[Node, Node] = {}
        for node in live_nodes(self.source):
            if node.op.name != "matmul":
                continue
            try:
                chosen[node] = self._leaf_of(node)
            except _Skip as why:
                self.skipped.append(SkippedProduct(node.label, str(why)))
        return chosen

    def _leaf_of(self, node: Node) -> Node:
        x, weight = node.inputs
        leaf = _source(weight)
        if leaf is None:
            left = _source(x) is not None
            raise _Skip("the weight is its left operand" if left else "no operand is a weight")
        name = _name(leaf)
        if name in self.skip or node.label in self.skip:
            raise _Skip("named in skip")
        if weight.ndim != 2:
            raise _Skip(f"the weight is no matrix but {weight.type}")
        if weight.dtype not in _ACTIVATIONS:
            raise _Skip(f"a matmul of {weight.dtype}")
        depth, columns = bounds(weight.shape[0])[1], bounds(weight.shape[1])[1]
        if depth * columns < self.min_elements:
            raise _Skip(f"fewer than {self.min_elements} weights")
        if not 0 < depth <= MAX_DEPTH:
            raise _Skip(f"sums of {depth} products do not surely fit int32")
        if leaf.op is PARAM and name not in self.source.param_values:
            raise _Skip(f"param {name!r} holds no values yet")
        if not np.isfinite(self._elements(leaf).astype(np.float32, copy=False)).all():
            raise _Skip("the weight holds a NaN or an infinity")
        return leaf

    def _elements(self, leaf: Node) -> Array:
        if leaf.op is PARAM:
            return self.source.param_values[leaf.attrs["name"]]
        array: Array = leaf.attrs["array"]
        return array

    def _kept(self, chosen: dict[Node, Node]) -> set[Node]:
        """The nodes that are still needed once the weights of ``chosen`` are not."""
        weights = set(chosen.values())
        needed = {n for n in self.source.nodes if not n.inputs and n not in weights}
        stack = [value.node for value in self.source.results()]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                read = node.inputs[:1] if node in chosen else node.inputs
                stack.extend(value.node for value in read)
        return needed | seen

    # -- narrow weights ------------------------------------------------------------------------

    def _matmul(self, node: Node, x: Value, leaf: Node) -> Value:
        made = self._weight(node, leaf)
        self.quantized.append(replace(made.weight, label=node.label))
        with self.target.labelled(node.label):
            return made.apply(self.target, x, made.values)

    def _weight(self, node: Node, leaf: Node) -> _Made:
        """The params for a matmul's weight, made once however many matmuls share it."""
        views = tuple(
            (n.op, tuple(n.attrs.items()), n.outputs[0].type) for n in _views(node.inputs[1])
        )
        key = (leaf, views)
        if key not in self._made:
            weights = self._seen_through(node.inputs[1]).astype(np.float32)
            narrow = self.rounding(weights, self.group)
            name = self._free_name(_name(leaf), narrow)
            params = {
                f"{name}{suffix}": self.target.param(
                    f"{name}{suffix}", array.shape, array.dtype, value=array
                )
                for suffix, array in narrow.arrays.items()
            }
            after = sum(array.nbytes for array in narrow.arrays.values())
            before = node.inputs[1].type.max_bytes
            error = _relative(narrow.stands_for - weights, weights)
            weight = QuantizedWeight(node.label, _name(leaf), tuple(params), before, after, error)
            self._made[key] = _Made(weight, list(params.values()), narrow.apply)
        return self._made[key]

    def _free_name(self, name: str, narrow: _Narrow) -> str:
        """``name``, with a number if params of the source or of another view have taken it."""
        taken = {*self.source.inputs, *self.source.params, *self.source.states}
        taken |= {*self.target.params}
        free, number = name, 1
        while any(f"{free}{suffix}" in taken for suffix in narrow.arrays):
            number += 1
            free = f"{name}_{number}"
        return free

    def _seen_through(self, value: Value) -> Array:
        """The elements of a weight: those of its leaf, through the views taken of them."""
        node = value.node
        if not node.inputs:
            return self._elements(node)
        return evaluate_node(node, [self._seen_through(node.inputs[0])])[0]


def _views(value: Value) -> list[Node]:
    """The nodes between a weight's leaf and the matmul, last first."""
    found = []
    while value.node.inputs:
        found.append(value.node)
        value = value.node.inputs[0]
    return found


def _source(value: Value) -> Node | None:
    """The param or constant that ``value`` is a view of, if it is."""
    node = value.node
    while node.op.name in _LOOKED_THROUGH and len(node.inputs) == 1:
        node = node.inputs[0].node
    return node if node.op in (PARAM, CONSTANT) else None


def _name(leaf: Node) -> str:
    name: str = leaf.attrs["name"] if leaf.op is PARAM else leaf.label
    return name


def _relative(error: Array, weights: Array) -> float:
    size = float(np.linalg.norm(weights))
    return float(np.linalg.norm(error)) / size if size else 0.0


# -- the formats ---------------------------------------------------------------------------------


def _int8(weights: Array, group: int) -> _Narrow:
    codes, scales = int8_columns(weights)
    return _Narrow(
        {".int8": codes, ".scale": scales},
        codes * scales,
        lambda g, x, params: g.quantized_matmul(x, *params),
    )


def _int4(weights: Array, group: int) -> _Narrow:
    codes, scales = int4_groups(weights, group)
    whole = np.stack([codes & 15, codes >> 4], 1).reshape(-1, codes.shape[1])[: len(weights)]
    wide = np.repeat(scales.astype(np.float32), group, axis=0)[: len(weights)]
    return _Narrow(
        {".int4": codes, ".scale": scales},
        (whole.astype(np.float32) - 8) * wide,
        lambda g, x, params: g.int4_matmul(x, *params, group=group),
    )


def _float8(weights: Array, group: int) -> _Narrow:
    codes, scales = float8_columns(weights, FLOAT8_E4M3FN)

    def apply(g: Graph, x: Value, params: list[Value]) -> Value:
        rows, row_scales = g.quantize_rows(x, FLOAT8_E4M3FN)
        return g.scaled_matmul(rows, params[0], row_scales, params[1], x.dtype)

    return _Narrow({".f8": codes, ".scale": scales}, codes.astype(np.float32) * scales, apply)


def _as_float(dtype: DType, suffix: str) -> Callable[[Array, int], _Narrow]:
    def rounding(weights: Array, group: int) -> _Narrow:
        with np.errstate(over="ignore"):
            narrow = weights.astype(dtype.numpy)
        if not np.isfinite(narrow.astype(np.float32)).all():
            limit = float(np.finfo(np.float16).max)
            narrow = np.clip(weights, -limit, limit).astype(dtype.numpy)
        return _Narrow(
            {suffix: narrow},
            narrow.astype(np.float32),
            lambda g, x, params: g.matmul(x, g.cast(params[0], x.dtype)),
        )

    return rounding


_ROUNDING: Final[dict[str, Callable[[Array, int], _Narrow]]] = {
    "int8": _int8,
    "int4": _int4,
    "float8_e4m3fn": _float8,
    "bfloat16": _as_float(BFLOAT16, ".bf16"),
    "float16": _as_float(FLOAT16, ".f16"),
}
