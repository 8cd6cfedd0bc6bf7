"""Recovery of layer_norm and rms_norm from means, squares and roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ostinato.ops.normalization import LAYER_NORM, RMS_NORM
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import made_by, near, uniform_of
from ostinato.passes.polynomial import Monomial, Polynomial, expand, power
from ostinato.passes.recovery import (
    Finding,
    Match,
    Refusal,
    is_private,
    rewrite_matches,
    values_above,
)
from ostinato.passes.rewrite import Rewriter, Uses
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["RecoverNorms"]

#: The normalised value, its mean if that is taken off, the axes, and the first intermediates.
_Moment: TypeAlias = "tuple[Value, Value | None, tuple[int, ...], tuple[Value, ...]]"


class RecoverNorms(Pass):
    """Turns ``(x - mean) / sqrt(mean((x - mean)²) + eps) · w + b`` to layer_norm, and the same
    without the mean to rms_norm.

    The variance may be spelled by square, pow or a product; the division by sqrt, rsqrt, reciprocal
    or a power; weight and bias may be absent or multiplied out. Means are over the last axes, and
    nothing else may read an intermediate.
    """

    name: ClassVar[str] = "recover_norms"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        uses = Uses(graph)
        roots = [node for node in uses.nodes if node.op.name in ("sqrt", "rsqrt", "pow")]
        findings = [found for node in roots for found in _find(uses, node)]
        return rewrite_matches(graph, findings, self, report)


@dataclass(frozen=True)
class _Statistics:
    """The operand of a root: ``mean((x - mean)²) + eps``, or without ``mean``.

    Attributes:
        x: what is normalised.
        mean: its mean, for layer_norm.
        spread: the value under the root.
        eps: what was added.
        axis: the first of the axes.
        starts: the first intermediate values.
    """

    x: Value
    mean: Value | None
    spread: Value
    eps: float
    axis: int
    starts: tuple[Value, ...]

    @property
    def what(self) -> str:
        return "rms_norm" if self.mean is None else "layer_norm"

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of weight and bias."""
        return self.x.shape[self.axis :]

    def is_vector(self, value: Value) -> bool:
        """Whether ``value`` could be a weight or bias: it is as large as the normalised axes."""
        shape = list(value.shape)
        while len(shape) > len(self.shape) and shape[0] == 1:
            shape.pop(0)
        return tuple(shape) == self.shape and value.dtype == self.x.dtype


@dataclass(frozen=True)
class _Affine:
    """The scale and shift of a normalised value."""

    weight: Value | None
    bias: Value | None

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(v for v in (self.weight, self.bias) if v is not None)


def _find(uses: Uses, node: Node) -> Iterator[Finding]:
    """The largest norm that is built on one root."""
    found = _statistics(uses, node)
    if found is None or isinstance(found, Refusal):
        if found is not None:
            yield found
        return
    candidates = _candidates(uses, found, node.outputs[0])
    for value, affine in candidates:
        if is_private(uses, value, (found.x, *affine.operands), *found.starts):
            yield Match(value.node, found.what, _builder(found, affine))
            return
    if candidates:
        yield Refusal(node, found.what, "an intermediate has other readers")
    else:
        yield Refusal(node, found.what, "the root does not divide what it is the deviation of")


def _builder(found: _Statistics, affine: _Affine) -> Callable[[Graph, Rewriter], Value]:
    def build(g: Graph, new: Rewriter) -> Value:
        operands = [new[found.x]]
        for value in affine.operands:
            vector = new[value]
            if vector.shape != found.shape:
                vector = g.reshape(vector, found.shape)
            operands.append(vector)
        op = RMS_NORM if found.mean is None else LAYER_NORM
        return g.apply(op, operands, {"axis": found.axis, "eps": found.eps})[0]

    return build


# -- below the root ------------------------------------------------------------------------------


def _statistics(uses: Uses, node: Node) -> _Statistics | Refusal | None:
    spread = node.inputs[0]
    if node.op.name == "pow" and uniform_of(node.inputs[1]) not in (0.5, -0.5):
        return None
    added = made_by(spread, "add")
    if added is None:
        return None
    for moment, other in (added.inputs, added.inputs[::-1]):
        eps = uniform_of(other)
        found = None if eps is None else _variance(uses, moment) or _mean_square(moment)
        if eps is None or found is None:
            continue
        x, centre, axes, starts = found
        what = "rms_norm" if centre is None else "layer_norm"
        if axes != tuple(range(axes[0], x.ndim)):
            return Refusal(node, what, f"axes {axes} are not the last of {x.ndim}")
        if not 0 <= eps < 1:
            return Refusal(node, what, f"eps is {eps}")
        return _Statistics(x, centre, spread, float(eps), axes[0], starts)
    return None


def _variance(uses: Uses, value: Value) -> _Moment | None:
    """The ``var`` op, beside a mean of the same."""
    node = made_by(value, "var")
    if node is None or node.attrs["correction"] != 0 or not node.attrs["keepdims"]:
        return None
    (x,), axes = node.inputs, node.attrs["axis"]
    for reader in uses.readers(x):
        if _mean(reader.outputs[0]) == (x, axes):
            return x, reader.outputs[0], axes, (value, reader.outputs[0])
    return None


def _mean_square(value: Value) -> _Moment | None:
    """A mean of squares: of what is centred, or as it is."""
    mean = _mean(value)
    deviation = _squared(mean[0]) if mean else None
    if mean is None or deviation is None or not mean[1]:
        return None
    squared, axes = mean
    centred = _centred(deviation, axes)
    if centred is None:
        return deviation, None, axes, (squared,)
    x, centre = centred
    return x, centre, axes, (centre,)


def _mean(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """``(x, axes)`` of a mean that keeps its dims: as such, or as a sum over a count."""
    node = made_by(value, "mean")
    if node is not None:
        return (node.inputs[0], node.attrs["axis"]) if node.attrs["keepdims"] else None
    node = made_by(value, "multiply", "divide")
    if node is None:
        return None
    for total, other in (node.inputs, node.inputs[::-1]):
        summed, number = made_by(total, "sum"), uniform_of(other)
        if summed is None or number is None or not summed.attrs["keepdims"]:
            continue
        x, axes = summed.inputs[0], summed.attrs["axis"]
        count: Dim = 1
        for axis in axes:
            count = count * x.shape[axis]
        divided = node.op.name == "divide" and total is node.inputs[0]
        factor = 1.0 / number if divided and number else float(number)
        if isinstance(count, int) and count and (divided or node.op.name == "multiply"):
            return (x, axes) if near(factor, 1.0 / count, x.dtype) else None
    return None


def _squared(value: Value) -> Value | None:
    node = made_by(value, "square", "multiply", "pow")
    if node is None:
        return None
    base = node.inputs[0]
    if node.op.name == "multiply" and node.inputs[1] is not base:
        return None
    if node.op.name == "pow" and uniform_of(node.inputs[1]) != 2:
        return None
    return base


def _centred(value: Value, axes: tuple[int, ...]) -> tuple[Value, Value] | None:
    """``(x, mean(x))`` of ``x - mean(x)``."""
    node = made_by(value, "subtract")
    if node is None:
        return None
    x, centre = node.inputs
    mean = _mean(centre)
    return (x, centre) if mean == (x, axes) else None


# -- above the root ------------------------------------------------------------------------------


def _candidates(uses: Uses, found: _Statistics, root: Value) -> list[tuple[Value, _Affine]]:
    """The values that are this norm, those with weight and bias first."""
    inner = (found.x, found.mean, found.spread)

    def is_atom(value: Value) -> bool:
        return value in inner or (found.is_vector(value) and value is not root)

    def is_inside(value: Value) -> bool:
        """Whether ``value`` is made of nothing but what norms are made of."""
        terms = expand(value, is_atom)
        atoms = [atom for monomial in terms or () for atom, _ in monomial]
        return bool(atoms) and all(atom in inner or found.is_vector(atom) for atom in atoms)

    candidates = []
    for value in values_above(uses, root, is_inside, limit=16):
        affine = _affine(found, expand(value, is_atom)) if value.type == found.x.type else None
        if affine is not None:
            candidates.append((value, affine))
    return sorted(candidates, key=lambda candidate: -len(candidate[1].operands))


def _affine(found: _Statistics, terms: Polynomial | None) -> _Affine | None:
    """Weight and bias, if the terms are ``x·r·w - mean·r·w + b`` with ``r = spread^-0.5``."""
    if terms is None or not all(near(abs(c), 1.0, found.x.dtype) for c in terms.values()):
        return None
    rest = dict(terms)
    weight = next((w for w in _vectors(found, rest) if _scaled(found, w) in rest), None)
    if rest.pop(_scaled(found, weight), 0.0) <= 0:
        return None
    if found.mean is not None:
        centre = power((found.mean, 1.0), (found.spread, -0.5), *_factor(weight))
        if rest.pop(centre, 0.0) >= 0:
            return None
    if not rest:
        return _Affine(weight, None)
    (monomial, c), *more = rest.items()
    if more or c < 0 or found.mean is None or weight is None or len(monomial) != 1:
        return None
    bias, exponent = monomial[0]
    return _Affine(weight, bias) if exponent == 1 and found.is_vector(bias) else None


def _vectors(found: _Statistics, terms: Polynomial) -> Iterator[Value]:
    for monomial in terms:
        for atom, exponent in monomial:
            if exponent == 1 and atom not in (found.x, found.mean) and found.is_vector(atom):
                yield atom


def _scaled(found: _Statistics, weight: Value | None) -> Monomial:
    return power((found.x, 1.0), (found.spread, -0.5), *_factor(weight))


def _factor(weight: Value | None) -> tuple[tuple[Value, float], ...]:
    return () if weight is None else ((weight, 1.0),)
