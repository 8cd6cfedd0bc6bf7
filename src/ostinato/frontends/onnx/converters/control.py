"""The converter of ``If``: the branch that runs, or both if that is only known at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import GraphError
from ostinato.frontends.onnx.known import Known, Missing, Strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def convert_if(call: Call) -> Result:
    """A condition that is known picks its branch. Otherwise both run, and a choice between their
    results follows; the branches then have to give results of the same types.
    """
    condition = call.known(0)
    branches = call.graph("then_branch"), call.graph("else_branch")
    if condition is not None and not condition.symbolic:
        taken = branches[0] if call.scalar(0, "condition") else branches[1]
        return _checked(call, call.inline(taken))
    chosen = call.g.reshape(call.value(0), ())
    then, otherwise = (_checked(call, call.inline(branch)) for branch in branches)
    return [_choose(call, chosen, a, b) for a, b in zip(then, otherwise, strict=True)]


def _choose(call: Call, condition: Value, a: Tensor, b: Tensor) -> Tensor:
    if isinstance(a, Missing) or isinstance(b, Missing):
        return Missing()
    if isinstance(a, Strings) or isinstance(b, Strings):
        return Missing("strings are chosen by a condition that is not known when loading")
    if a.type != b.type:
        raise GraphError(
            f"its condition is not known when the model is loaded, and its branches give {a.type} "
            f"and {b.type}; fix what the condition depends on with dims= or constants="
        )
    x, y = (call.leaves.value(t) if isinstance(t, Known) else t for t in (a, b))
    return call.g.where(condition, x, y)


def _checked(call: Call, results: list[Tensor]) -> list[Tensor]:
    if len(results) < len(call.outputs):
        call.malformed(f"a branch gives {len(results)} of {len(call.outputs)} outputs")
    return results


CONVERTERS: Mapping[str, Converter] = {"If": convert_if}
