"""Recovery of attention from matmuls around a softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.ir.leaves import PARAM
from ostinato.ops.attention import ATTENTION
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import array_of, made_by, near, uniform_of
from ostinato.passes.recovery import Finding, Match, Refusal, is_private, rewrite_matches
from ostinato.passes.rewrite import Rewriter, Uses
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["RecoverAttention"]

#: A fill this low swallows any score that is added to it, so that ``where(m, s, fill)`` and
#: ``s + where(m, 0, fill)`` are the same float32.
_SWALLOWING = -1e30

#: A fill this low leaves a masked key no weight, as long as some key of the row is not masked.
_FORBIDDING = -1e4

_MAX_CHAIN = 12


class RecoverAttention(Pass):
    """Turns ``softmax(q @ kᵀ · scale + mask) @ v`` to attention.

    The scale may be a factor or divisor of the scores, of q, of k, or shared between the two; a
    softcap, additive masks and ``where`` masks may follow it; a constant triangular mask becomes
    ``causal``; keys and values repeated per group of query heads are taken unrepeated. Nothing else
    may read the scores or the weights. A query that may attend to nothing because of a mask of
    minus infinities gives zeros, where the formula gives NaN.
    """

    name: ClassVar[str] = "recover_attention"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        uses = Uses(graph)
        softmaxes = [node for node in uses.nodes if node.op.name == "softmax"]
        findings = [found for node in softmaxes for found in _find(uses, node)]
        return rewrite_matches(graph, findings, self, report)


@dataclass(frozen=True)
class _Mask:
    """A mask between queries and keys.

    Attributes:
        value: a float that is added, or a bool.
        fill: for a bool, what a score becomes where it does not hold.
        inverted: for a bool, whether it holds where a query does *not* attend.
    """

    value: Value
    fill: float = 0.0
    inverted: bool = False


@dataclass(frozen=True)
class _Scores:
    """The operand of a softmax, taken apart from the outside in, down to the matmul."""

    matmul: Node
    scale: float = 1.0
    softcap: float | None = None
    masks: tuple[_Mask, ...] = ()


class _Unlike(Exception):
    """The scores are not those of an attention; the message says why."""


def _find(uses: Uses, softmax: Node) -> Iterator[Finding]:
    """The attention around one softmax; nothing unless its scores and weights are matmuls."""
    weighted = _weighted(uses, softmax)
    if weighted is None or not _leads_to_matmul(softmax.inputs[0]):
        return
    root, v = weighted
    try:
        if softmax.attrs["axis"] != softmax.outputs[0].ndim - 1:
            raise _Unlike("the softmax is not over the last axis")
        scores = _scores(softmax.inputs[0])
        q, scale = _without_factor(scores.matmul.inputs[0], scores.scale)
        k, axes, scale = _keys(scores.matmul.inputs[1], scale)
        _check(scores.matmul, v, scale)
        masks = _combinable(scores.masks, scores.matmul.outputs[0].shape[-2:])
    except _Unlike as reason:
        yield Refusal(softmax, "attention", str(reason))
        return
    boundary = (*scores.matmul.inputs, v, *(mask.value for mask in scores.masks))
    if not is_private(uses, root.outputs[0], boundary, scores.matmul.outputs[0]):
        yield Refusal(softmax, "attention", "the scores or weights have other readers")
        return
    parts = _Parts(q, k, axes, v, root.outputs[0], scale, scores.softcap, masks)
    yield Match(root, "attention", parts.build)


def _weighted(uses: Uses, softmax: Node) -> tuple[Node, Value] | None:
    """The matmul that weighs ``v`` by the softmax, and ``v``."""
    weights = softmax.outputs[0]
    readers = uses.readers(weights)
    while (
        len(readers) == 1 and readers[0].op.name == "cast" and readers[0].outputs[0].dtype.is_float
    ):
        weights = readers[0].outputs[0]
        readers = uses.readers(weights)
    matmuls = [n for n in readers if n.op.name == "matmul" and n.inputs[0] is weights]
    return (matmuls[0], matmuls[0].inputs[1]) if matmuls else None


# -- the scores ----------------------------------------------------------------------------------


def _leads_to_matmul(value: Value) -> bool:
    """Whether scaling, masking and conversions alone lead from a matmul to ``value``."""
    for _ in range(_MAX_CHAIN):
        node = value.node
        if node.op.name == "matmul":
            return True
        following = _next(node)
        if following is None:
            return False
        value = following
    return False


def _next(node: Node) -> Value | None:
    """The operand of a link in the chain from scores to softmax that continues it."""
    name, operands = node.op.name, node.inputs
    if name in ("cast", "tanh"):
        return operands[0]
    if name == "divide":
        return operands[0] if uniform_of(operands[1]) is not None else None
    if name == "multiply":
        return next((x for x, c in _pairs(operands) if uniform_of(c) is not None), None)
    if name == "where":
        return next((x for x, c in _pairs(operands[1:]) if uniform_of(c) is not None), None)
    if name == "add":
        leading = [x for x in operands if x.shape == node.outputs[0].shape and _leads_to_matmul(x)]
        return leading[0] if len(leading) == 1 else None
    return None


def _scores(value: Value) -> _Scores:
    """The chain from the matmul to the softmax's operand ``value``.

    Raises:
        _Unlike: the links do not come in attention's order.
    """
    shape = value.shape
    masks: list[_Mask] = []
    factor = 1.0
    softcap: float | None = None
    while (node := value.node).op.name != "matmul":
        inner = _next(node)
        assert inner is not None  # _leads_to_matmul went this way
        if inner.shape != shape:
            raise _Unlike(f"{node.op.name} broadcasts the scores")
        if node.op.name in ("add", "where"):
            if factor != 1.0 or softcap is not None:
                raise _Unlike("the mask comes before the scale")
            masks.append(_mask(node, inner))
        elif node.op.name in ("multiply", "divide"):
            factor *= _factor(node, inner)
        elif node.op.name == "tanh":
            if softcap is not None or not factor > 0:
                raise _Unlike("a tanh that is no softcap")
            softcap = factor  # which stays in the factor: the tanh is of scores over the cap
        value = inner
    return _Scores(value.node, factor, softcap, tuple(masks))


def _mask(node: Node, scores: Value) -> _Mask:
    if node.op.name == "add":
        (other,) = [x for x in node.inputs if x is not scores] or [scores]
        return _Mask(other)
    condition, x, y = node.inputs
    fill = uniform_of(y if scores is x else x)
    assert fill is not None
    return _Mask(condition, float(fill), inverted=scores is y)


def _pairs(operands: tuple[Value, ...]) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    x, y = operands
    return (x, y), (y, x)


def _factor(node: Node, scores: Value) -> float:
    (number,) = [uniform_of(x) for x in node.inputs if x is not scores]
    assert number is not None
    if node.op.name == "multiply":
        return float(number)
    if number == 0:
        raise _Unlike("the scores are divided by zero")
    return 1.0 / number


def _keys(kt: Value, scale: float) -> tuple[Value, tuple[int, ...], float]:
    """Keys, the axes by which they are to be permuted, and the scale with their factor."""
    kt, scale = _without_factor(kt, scale)
    axes = (*range(kt.ndim - 2), kt.ndim - 1, kt.ndim - 2)
    if (node := made_by(kt, "permute_dims")) is None:
        return kt, axes, scale
    k, scale = _without_factor(node.inputs[0], scale)
    return k, tuple(node.attrs["axes"][axis] for axis in axes), scale


def _without_factor(value: Value, scale: float) -> tuple[Value, float]:
    while (node := made_by(value, "multiply", "divide")) is not None:
        inner = _next(node)
        if inner is None or inner.type != value.type:
            break
        value, scale = inner, scale * _factor(node, inner)
    return value, scale


def _check(matmul: Node, v: Value, scale: float) -> None:
    """Raise :class:`_Unlike` for operands that attention does not take."""
    q, kt = matmul.inputs
    shapes = {value.shape[:-2] for value in (q, kt, v)}
    if not 2 <= q.ndim <= 4 or len(shapes) != 1:
        shown = ", ".join(str(value.type) for value in (q, kt, v))
        raise _Unlike(f"q, kᵀ and v do not have the same heads: {shown}")
    if kt.node.op is PARAM or v.node.op is PARAM:
        raise _Unlike("keys or values are a param: better two matmuls with a weight")
    depth = q.shape[-1]
    if not isinstance(depth, int) or depth == 0 or v.dtype != q.dtype:
        raise _Unlike("the head dimension is symbolic or the dtypes of q and v differ")
    if not math.isfinite(scale):
        raise _Unlike(f"the scale is {scale}")


# -- masks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Masks:
    """Masks that attention can take: causal or not, one bool, or a sum of floats."""

    causal: bool = False
    masks: tuple[_Mask, ...] = ()


def _combinable(masks: tuple[_Mask, ...], lengths: tuple[Dim, ...]) -> _Masks:
    """The masks as attention takes them.

    Raises:
        _Unlike: a finite fill would matter for rows that are masked everywhere.
    """
    alone = len(masks) == 1
    kept: list[_Mask] = []
    causal = False
    for mask in masks:
        dtype = mask.value.dtype
        if _is_causal(mask, lengths, alone):
            causal = True
            continue
        if not (dtype.is_bool or dtype.is_float):
            raise _Unlike(f"a mask of {dtype}")
        if dtype.is_bool and not mask.fill <= _SWALLOWING and not _never_empty(mask, alone):
            raise _Unlike(f"a row that is masked everywhere with {mask.fill} would change")
        kept.append(mask)
    return _Masks(causal, tuple(kept))


def _is_causal(mask: _Mask, lengths: tuple[Dim, ...], alone: bool) -> bool:
    """Whether a constant mask is the lower triangle, and a triangle says all that it says."""
    array = array_of(mask.value)
    if array is None or array.shape[-2:] != lengths or lengths[0] != lengths[1]:
        return False
    if array.size != array.shape[-1] * array.shape[-2] or array.size < 2:
        return False
    table = array.reshape(array.shape[-2:])
    allowed = np.tril(np.ones(table.shape, np.bool_))
    if mask.value.dtype.is_bool:
        fill: float = mask.fill
        matches = bool(((table != mask.inverted) == allowed).all())
    else:
        numbers = table.astype(np.float64)
        fill = float(numbers[~allowed].max())
        matches = not numbers[allowed].any()
    return matches and fill <= (_FORBIDDING if alone else -math.inf)


def _never_empty(mask: _Mask, alone: bool) -> bool:
    """Whether a constant mask leaves every query some key, so that its low fill weighs nothing."""
    array = array_of(mask.value)
    if array is None or not alone or mask.fill > _FORBIDDING:
        return False
    return bool((array != mask.inverted).any(axis=-1).all())


# -- building ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """All that an attention node needs, as values of the old graph."""

    q: Value
    k: Value
    axes: tuple[int, ...]
    v: Value
    result: Value
    scale: float
    softcap: float | None
    masks: _Masks

    def build(self, g: Graph, new: Rewriter) -> Value:
        q, k, v = self._operands(g, new)
        usual = near(self.scale, 1.0 / math.sqrt(self.q.shape[-1]), self.q.dtype)  # type: ignore[arg-type]
        attrs = {
            "causal": self.masks.causal,
            "window": None,
            "scale": None if usual else self.scale,
            "softcap": self.softcap,
        }
        operands = [_heads(g, x) for x in (q, k, v)]
        mask = self._mask(g, new)
        if mask is not None:
            operands.append(mask)
        (result,) = g.apply(ATTENTION, operands, attrs)
        if result.dtype != self.result.dtype:
            result = g.cast(result, self.result.dtype)
        return result if result.shape == self.result.shape else g.reshape(result, self.result.shape)

    def _operands(self, g: Graph, new: Rewriter) -> tuple[Value, Value, Value]:
        """q, k and v, k the right way round, repeated heads taken once."""
        turned = self.axes != tuple(range(self.k.ndim))
        if not turned:
            key, value = _unrepeated(self.k), _unrepeated(self.v)
            if key is not None and value is not None and key.shape[1] == value.shape[1]:
                return new[self.q], new[key], new[value]
        k = g.permute_dims(new[self.k], self.axes) if turned else new[self.k]
        return new[self.q], k, new[self.v]

    def _mask(self, g: Graph, new: Rewriter) -> Value | None:
        masks = self.masks.masks
        if len(masks) == 1 and masks[0].value.dtype.is_bool:
            (mask,) = masks
            if mask.fill == -math.inf or mask.fill > _SWALLOWING:
                return self._aligned(g, _allowed(g, new, mask))
        total: Value | None = None
        for mask in masks:
            added = new[mask.value]
            if mask.value.dtype.is_bool:
                zero, fill = (g.constant(c, self.q.dtype.accumulator) for c in (0.0, mask.fill))
                added = g.where(_allowed(g, new, mask), zero, fill)
            total = added if total is None else g.add(total, added)
        return None if total is None else self._aligned(g, total)

    def _aligned(self, g: Graph, mask: Value) -> Value:
        """The mask of three-dimensional scores, with the head axis that they lack."""
        if self.q.ndim == 3 and mask.ndim == 3:
            return g.reshape(mask, (mask.shape[0], 1, *mask.shape[1:]))
        return mask


def _allowed(g: Graph, new: Rewriter, mask: _Mask) -> Value:
    return g.logical_not(new[mask.value]) if mask.inverted else new[mask.value]


def _heads(g: Graph, value: Value) -> Value:
    """``value`` as ``[batch, heads, length, depth]``."""
    if value.ndim == 4:
        return value
    lead = (value.shape[0], 1) if value.ndim == 3 else (1, 1)
    return g.reshape(value, (*lead, *value.shape[-2:]))


def _unrepeated(value: Value) -> Value | None:
    """``x`` of ``x[:, :, None]`` broadcast along the new axis and merged with the heads."""
    merged = made_by(value, "reshape")
    repeated = made_by(merged.inputs[0], "broadcast_to") if merged else None
    opened = made_by(repeated.inputs[0], "reshape") if repeated else None
    if repeated is None or opened is None or value.ndim != 4:
        return None
    (x,) = opened.inputs
    if x.ndim != 4:
        return None
    batch, heads, *rest = x.shape
    wide = repeated.outputs[0].shape
    fits = (
        opened.outputs[0].shape == (batch, heads, 1, *rest)
        and len(wide) == 5
        and wide == (batch, heads, wide[2], *rest)
        and value.shape == (batch, heads * wide[2], *rest)
    )
    return x if fits else None
