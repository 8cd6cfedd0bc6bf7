"""Recovery of gelu, exact and by tanh, from the arithmetic that exporters spell it in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ostinato.passes.base import Pass, PassReport
from ostinato.passes.polynomial import arithmetic_below, equals, expand, is_arithmetic, power
from ostinato.passes.recovery import (
    Finding,
    Match,
    Refusal,
    is_private,
    rewrite_matches,
    values_above,
)
from ostinato.passes.rewrite import Uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["RecoverGelu"]

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


class RecoverGelu(Pass):
    """Turns ``0.5·x·(1 + erf(x/√2))`` and ``0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`` to gelu.

    Every association and distribution of the products is recognised; the constants must be right
    to the precision of the dtype, and nothing else may read what depends on the erf or tanh.
    """

    name: ClassVar[str] = "recover_gelu"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        uses = Uses(graph)
        curves = [node for node in uses.nodes if node.op.name in ("erf", "tanh")]
        findings = [found for node in curves for found in _find(uses, node)]
        return rewrite_matches(graph, findings, self, report)


def _find(uses: Uses, curve: Node) -> Iterator[Finding]:
    """Find the gelu around one erf or tanh; nothing when its argument is no gelu's."""
    x = _argument(curve)
    if x is None:
        return
    (t,) = curve.outputs
    approximate = curve.op.name == "tanh"
    wanted = {power((x, 1.0)): 0.5, power((x, 1.0), (t, 1.0)): 0.5}
    for value in values_above(uses, t, is_arithmetic, limit=8):
        if value.type != x.type or not equals(
            expand(value, lambda v: v is x or v is t), wanted, x.dtype
        ):
            continue
        if is_private(uses, value, (x,), t):
            yield Match(value.node, "gelu", lambda g, new: g.gelu(new[x], approximate=approximate))
        else:
            yield Refusal(value.node, "gelu", "an intermediate has other readers")
        return
    yield Refusal(curve, "gelu", f"{curve.op.name} is not followed by 0.5 * x * (1 + ...)")


def _argument(curve: Node) -> Value | None:
    """The ``x`` of which the curve's operand is gelu's argument."""
    (argument,) = curve.inputs
    for x in arithmetic_below(argument):
        if curve.op.name == "erf":
            wanted = {power((x, 1.0)): math.sqrt(0.5)}
        else:
            wanted = {
                power((x, 1.0)): _SQRT_2_OVER_PI,
                power((x, 3.0)): _SQRT_2_OVER_PI * 0.044715,
            }
        if equals(expand(argument, lambda v: v is x), wanted, x.dtype):  # noqa: B023
            return x
    return None
