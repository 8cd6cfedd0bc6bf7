"""Recovery of softmax and log_softmax from exponentials and their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import made_by
from ostinato.passes.recovery import Finding, Match, Refusal, is_private, rewrite_matches
from ostinato.passes.rewrite import Uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph

__all__ = ["RecoverSoftmax"]


class RecoverSoftmax(Pass):
    """Turns ``exp(x - max(x)) / sum(exp(x - max(x)))`` to softmax, and its logarithm
    ``x - max(x) - log(sum(exp(x - max(x))))`` to log_softmax.

    Maximum and sum are over one and the same axis and keep it; nothing else may read an
    intermediate. Without the maximum the formula overflows where softmax does not: it stays.
    """

    name: ClassVar[str] = "recover_softmax"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        uses = Uses(graph)
        finders = {"divide": _softmax, "multiply": _softmax, "subtract": _log_softmax}
        findings = [
            found
            for node in uses.nodes
            if node.op.name in finders
            for found in finders[node.op.name](uses, node)
        ]
        return rewrite_matches(graph, findings, self, report)


def _softmax(uses: Uses, node: Node) -> Iterator[Finding]:
    for exponential, other in (node.inputs, node.inputs[::-1]):
        total: Value | None = other
        if node.op.name == "multiply":
            inverse = made_by(other, "reciprocal")
            total = inverse.inputs[0] if inverse else None
        if total is None or not _is_sum_of(total, exponential) or not made_by(exponential, "exp"):
            if node.op.name == "divide":
                return
            continue
        shifted = exponential.node.inputs[0]
        yield from _found(uses, node, "softmax", shifted, total, lambda g, x, a: g.softmax(x, a))
        return


def _log_softmax(uses: Uses, node: Node) -> Iterator[Finding]:
    shifted, logarithm = node.inputs
    log = made_by(logarithm, "log")
    total = log.inputs[0] if log else None
    if total is None or not (summed := made_by(total, "sum")):
        return
    exponential = made_by(summed.inputs[0], "exp")
    if exponential is None or exponential.inputs[0] is not shifted:
        return
    yield from _found(
        uses, node, "log_softmax", shifted, total, lambda g, x, a: g.log_softmax(x, a)
    )


def _is_sum_of(total: Value, value: Value) -> bool:
    node = made_by(total, "sum")
    return node is not None and node.inputs[0] is value


def _found(
    uses: Uses,
    node: Node,
    what: str,
    shifted: Value,
    total: Value,
    build: Callable[[Graph, Value, int], Value],
) -> Iterator[Finding]:
    """The op, if ``shifted`` is ``x - max(x)`` over the axis of the sum."""
    axes = total.node.attrs["axis"]
    subtract = made_by(shifted, "subtract")
    peak = made_by(subtract.inputs[1], "max") if subtract else None
    if subtract is None or peak is None or peak.inputs[0] is not subtract.inputs[0]:
        yield Refusal(node, what, "the exponent is not shifted by its maximum")
        return
    if len(axes) != 1 or peak.attrs["axis"] != axes:
        yield Refusal(node, what, f"the maximum is over {peak.attrs['axis']}, the sum over {axes}")
    elif not (peak.attrs["keepdims"] and total.node.attrs["keepdims"]):
        yield Refusal(node, what, "the maximum or the sum drops its axis")
    elif not is_private(uses, node.outputs[0], (subtract.inputs[0],), peak.outputs[0]):
        yield Refusal(node, what, "an intermediate has other readers")
    else:
        x = subtract.inputs[0]
        yield Match(node, what, lambda g, new: build(g, new[x], axes[0]))
