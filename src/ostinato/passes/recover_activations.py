"""Recovery of the activations built on the sigmoid and its relatives."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import made_by, near, uniform_of
from ostinato.passes.polynomial import (
    arithmetic_below,
    equals,
    expand,
    power,
)
from ostinato.passes.recovery import (
    Finding,
    Match,
    Refusal,
    is_private,
    rewrite_matches,
)
from ostinato.passes.rewrite import Uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["RecoverActivations"]

_Finder: TypeAlias = "Callable[[Uses, Node], Iterator[Finding]]"


class RecoverActivations(Pass):
    """Recovers sigmoid, softplus and hard_sigmoid, then silu, mish and hard_swish on top of them.

    ``log(1 + exp(x))`` overflows where softplus does not: there the recovered op is the more
    accurate one. Everywhere else results are the same within rounding.
    """

    name: ClassVar[str] = "recover_activations"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        for finders in (_CURVES, _GATES):
            uses = Uses(graph)
            findings = [
                finding
                for node in uses.nodes
                if node.op.name in finders
                for finding in finders[node.op.name](uses, node)
            ]
            graph = rewrite_matches(graph, findings, self, report)
        return graph


# -- curves of one value -------------------------------------------------------------------------


def _sigmoid(uses: Uses, node: Node) -> Iterator[Finding]:
    """``1 / (1 + exp(-x))``, and ``x / (1 + exp(-x))``, by the division."""
    numerator, denominator = (None, node.inputs[0]) if len(node.inputs) == 1 else node.inputs
    found = _one_plus_exp(denominator)
    if found is None:
        return
    exponential, argument = found
    negated = made_by(argument, "neg")
    x = negated.inputs[0] if negated else None
    if x is None or x.type != node.outputs[0].type:
        return
    if numerator is x:
        what = "silu"
    elif numerator is None or uniform_of(numerator) == 1:
        what = "sigmoid"
    else:
        return
    yield from _private(
        uses, node, what, x, exponential, lambda g, v: g.silu(v) if what == "silu" else g.sigmoid(v)
    )


def _softplus(uses: Uses, node: Node) -> Iterator[Finding]:
    """``log(1 + exp(x))`` and ``log1p(exp(x))``."""
    (argument,) = node.inputs
    if node.op.name == "log1p":
        inner = made_by(argument, "exp")
        found = (argument, inner.inputs[0]) if inner else None
    else:
        found = _one_plus_exp(argument)
    if found is not None:
        exponential, x = found
        yield from _private(uses, node, "softplus", x, exponential, lambda g, v: g.softplus(v))


def _softplus_of_logaddexp(uses: Uses, node: Node) -> Iterator[Finding]:
    """``logaddexp(x, 0)``, as JAX spells it."""
    for x, other in (node.inputs, node.inputs[::-1]):
        if uniform_of(other) == 0 and x.type == node.outputs[0].type and x.dtype.is_float:
            yield Match(node, "softplus", lambda g, new: g.softplus(new[x]))  # noqa: B023
            return


def _hard_sigmoid(uses: Uses, node: Node) -> Iterator[Finding]:
    """``clip(x + 3, 0, 6) / 6``, by the division (or the product with 1/6)."""
    for limited in node.inputs:
        x = _shifted(limited)
        if x is None or x.type != node.outputs[0].type:
            continue
        terms = expand(node.outputs[0], lambda v: v is limited)  # noqa: B023
        if equals(terms, {power((limited, 1.0)): 1 / 6}, x.dtype):
            yield from _private(
                uses, node, "hard_sigmoid", x, limited, lambda g, v: g.hard_sigmoid(v, 1 / 6, 0.5)
            )
            return


def _one_plus_exp(value: Value) -> tuple[Value, Value] | None:
    """``(exp(y), y)`` of ``1 + exp(y)``."""
    node = made_by(value, "add")
    if node is not None:
        for term, other in (node.inputs, node.inputs[::-1]):
            inner = made_by(term, "exp")
            if inner and uniform_of(other) == 1:
                return term, inner.inputs[0]
    return None


def _shifted(value: Value) -> Value | None:
    """The ``x`` of ``clip(x + 3, 0, 6)`` and ``relu6(x + 3)``."""
    node = made_by(value, "clip", "relu6")
    if node is None or not value.dtype.is_float:
        return None
    if node.op.name == "clip" and (node.attrs["min"], node.attrs["max"]) != (0, 6):
        return None
    inner = made_by(node.inputs[0], "add")
    if inner is not None:
        for x, other in (inner.inputs, inner.inputs[::-1]):
            if uniform_of(other) == 3:
                return x
    return None


# -- a value times a curve of it -----------------------------------------------------------------


def _silu(uses: Uses, node: Node) -> Iterator[Finding]:
    """``x * sigmoid(x)``, ``x * hard_sigmoid(x)`` and ``x * tanh(softplus(x))``."""
    for x, curve in (node.inputs, node.inputs[::-1]):
        gate = _GATED.get(curve.node.op.name)
        if gate is None or _gated_by(curve) is not x or x.type != node.outputs[0].type:
            continue
        what, build = gate
        yield from _private(uses, node, what, x, curve, build)
        return
    yield from _hard_swish(uses, node)


def _hard_swish(uses: Uses, node: Node) -> Iterator[Finding]:
    """``x * clip(x + 3, 0, 6) / 6`` in every association."""
    (root,) = node.outputs
    for limited in arithmetic_below(root, limit=6):
        x = _shifted(limited)
        if x is None or x.type != root.type:
            continue
        terms = expand(root, lambda v: v in (x, limited))  # noqa: B023
        if equals(terms, {power((x, 1.0), (limited, 1.0)): 1 / 6}, x.dtype):
            yield from _private(uses, node, "hard_swish", x, limited, lambda g, v: g.hard_swish(v))
            return


def _gated_by(curve: Value) -> Value | None:
    """The gated value of a curve that gates: its own operand, or softplus's."""
    node = curve.node
    operand = node.inputs[0]
    if node.op.name == "hard_sigmoid":
        usual = near(node.attrs["alpha"], 1 / 6, operand.dtype) and node.attrs["beta"] == 0.5
        return operand if usual else None
    if node.op.name == "tanh":
        inner = made_by(operand, "softplus")
        return inner.inputs[0] if inner else None
    return operand


def _private(
    uses: Uses,
    node: Node,
    what: str,
    x: Value,
    start: Value,
    build: Callable[[Graph, Value], Value],
) -> Iterator[Finding]:
    if is_private(uses, node.outputs[0], (x,), start):
        yield Match(node, what, lambda g, new: build(g, new[x]))
    else:
        yield Refusal(node, what, "an intermediate has other readers")


_GATED: Mapping[str, tuple[str, Callable[[Graph, Value], Value]]] = {
    "sigmoid": ("silu", lambda g, v: g.silu(v)),
    "hard_sigmoid": ("hard_swish", lambda g, v: g.hard_swish(v)),
    "tanh": ("mish", lambda g, v: g.mish(v)),
}

_CURVES: Mapping[str, _Finder] = {
    "divide": lambda uses, node: chain(_sigmoid(uses, node), _hard_sigmoid(uses, node)),
    "reciprocal": _sigmoid,
    "log": _softplus,
    "log1p": _softplus,
    "logaddexp": _softplus_of_logaddexp,
    "multiply": _hard_sigmoid,
}

_GATES: Mapping[str, _Finder] = {"multiply": _silu, "divide": _hard_swish}
