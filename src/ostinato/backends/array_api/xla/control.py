"""Control flow within compiled code: nested graphs are traced as bodies of XLA's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.ops.control import LoopParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.array_api.evaluator import Evaluator
    from ostinato.ir.graph import Node

__all__ = ["cond", "loop"]


def cond(evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The outputs of the graph that the condition picks; the other one is not run."""
    import jax

    flag, *captured = operands

    def branch(name: str) -> Any:
        return lambda *arrays: tuple(evaluator.graph(attrs[name], arrays))

    return jax.lax.cond(flag, branch("then_graph"), branch("else_graph"), *captured)


def loop(evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The carried values after the last iteration, and the stacked results."""
    import jax

    lax, xp, parts = jax.lax, evaluator.xp, LoopParts(attrs)
    carried = list(operands[parts.first_carried : parts.first_scanned])
    scanned = operands[parts.first_scanned : parts.first_captured]
    captured = operands[parts.first_captured :]
    stacked = [
        xp.full([evaluator.dim(dim) for dim in value.shape], 0, value.dtype)
        for value in node.outputs[len(carried) :]
    ]
    trips = attrs["trips"]
    if trips == 0:
        return [*carried, *stacked]
    limit = None if trips is None else xp.asarray(trips, INT64)
    if parts.counted:
        limit = operands[0] if limit is None else xp.minimum(limit, operands[0])
    backwards = attrs["backwards"]

    def position(iteration: Any, number: int) -> Any:
        return trips - 1 - iteration if backwards[number] else iteration

    def goes_on(state: Any) -> Any:
        iteration, going, *_ = state
        return going if limit is None else xp.logical_and(going, iteration < limit)

    def body(state: Any) -> Any:
        iteration, going, carried, stacked = state
        slices = [
            lax.dynamic_index_in_dim(x, position(iteration, number), 0, keepdims=False)
            for number, x in enumerate(scanned)
        ]
        given = evaluator.graph(attrs["body"], [iteration, *carried, *slices, *captured])
        if parts.conditional:
            going = given.pop(0)
        carried, rows = given[: len(carried)], given[len(carried) :]
        stacked = [
            lax.dynamic_update_index_in_dim(x, row, position(iteration, number), 0)
            for number, (x, row) in enumerate(zip(stacked, rows, strict=True), len(scanned))
        ]
        return iteration + 1, going, carried, stacked

    going = operands[parts.counted] if parts.conditional else xp.asarray(True)
    state = (xp.asarray(0, INT64), going, carried, stacked)
    _, _, carried, stacked = lax.while_loop(goes_on, body, state)
    return [*carried, *stacked]
