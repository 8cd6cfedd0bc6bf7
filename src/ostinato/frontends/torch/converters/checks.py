"""Converters of assertions: those about sizes become conditions that runs check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.guards import guard_facts
from ostinato.ir.facts import Fact
from ostinato.ir.graph import Value
from ostinato.variables import Expr

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter

__all__ = ["CONVERTERS"]


def _assert_scalar(call: Call, self: Any, assert_msg: str) -> None:
    """A condition on sizes, as an expression or already known."""
    if isinstance(self, Value):
        call.unsupported("an assertion about the contents of a tensor")
    if isinstance(self, str):
        found = guard_facts(self, (), call.symbols)
        call.facts.extend(fact._replace(node=call.node.name, problem=assert_msg) for fact in found)
    elif isinstance(self, Expr):
        _keep(call, self, 1, assert_msg)
    elif not self:
        call.unsupported(f"its assertion never holds: {assert_msg}")


def _constrain_range(call: Call, size: Any, *, min: Any = None, max: Any = None) -> None:
    """Bounds of a size."""
    if isinstance(size, Value):
        call.unsupported("bounds of the contents of a tensor")
    if isinstance(min, int):
        _keep(call, size, min, f"a size is at least {min}")
    if isinstance(max, int):
        _keep(call, max - size, 0, f"a size is at most {max}")


def _keep(call: Call, size: Any, least: int, problem: str) -> None:
    fact = Fact(size, least, problem, node=call.node.name)
    if fact.impossible:
        call.unsupported(f"its assertion never holds: {problem}")
    if not fact.certain:
        call.facts.append(fact)


CONVERTERS: dict[str, Converter] = {
    "aten._assert_scalar": _assert_scalar,
    "aten.sym_constrain_range": _constrain_range,
    "aten.sym_constrain_range_for_size": _constrain_range,
}
