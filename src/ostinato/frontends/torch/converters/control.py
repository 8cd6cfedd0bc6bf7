"""Converters of ops of higher order, whose operands are programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL
from ostinato.frontends.torch.call import Complex, SizeCondition
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.frontends.torch.program import Program
    from ostinato.ops.builder import NestedGraph

__all__ = ["CONVERTERS"]


def _values(call: Call, operands: Sequence[Any]) -> list[Value]:
    """Operands that a nested graph carries from iteration to iteration."""
    if any(isinstance(operand, Complex) for operand in operands):
        call.unsupported("complex operands")
    return [call.value(operand) for operand in operands]


def _results(call: Call, program: Program, g: NestedGraph, arguments: Sequence[Any]) -> list[Value]:
    """The results of a program, as values of the nested graph ``g``."""
    given = [g.local(a) if isinstance(a, Value) else a for a in arguments]
    results = []
    for result in call.nested(program, g, given):
        if isinstance(result, Complex) or result is None:
            call.unsupported(f"{program.name!r} gives no tensor")
        results.append(g.local(result) if isinstance(result, Value) else g.constant(result))
    return results


def _cond(
    call: Call, pred: Any, true_fn: Program, false_fn: Program, operands: Sequence[Any] = ()
) -> Any:
    if isinstance(pred, SizeCondition):
        pred = call.g.greater_equal(call.g.dim_value(pred.excess), 0)
    if isinstance(pred, bool):
        chosen = true_fn if pred else false_fn
        return tuple(call.nested(chosen, call.g, operands))  # type: ignore[arg-type]
    condition = call.g.cast(call.g.reshape(pred, ()), BOOL)
    return call.g.cond(
        condition,
        lambda g: _results(call, true_fn, g, operands),
        lambda g: _results(call, false_fn, g, operands),
    )


def _while_loop(
    call: Call,
    cond_fn: Program,
    body_fn: Program,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    g = call.g
    first = _values(call, carried_inputs)

    def goes_on(graph: Any, carried: Sequence[Value]) -> Value:
        (flag,) = _results(call, cond_fn, graph, [*carried, *additional_inputs])
        return graph.reshape(flag, ())  # type: ignore[no-any-return]

    def body(graph: NestedGraph, iteration: Value, *carried: Value) -> list[Value]:
        after = _results(call, body_fn, graph, [*carried, *additional_inputs])
        return [goes_on(graph, after), *after]

    (begins,) = call.nested(cond_fn, g, [*first, *additional_inputs])  # type: ignore[arg-type]
    condition = g.reshape(call.value(begins), ())
    return g.while_loop(body, first, condition=condition)


def _scan(
    call: Call,
    combine_fn: Program,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    def body(graph: NestedGraph, *carried: Value) -> list[Value]:
        return _results(call, combine_fn, graph, [*carried, *additional_inputs])

    return call.g.scan(body, _values(call, init), _values(call, xs))


def _map(call: Call, f: Program, xs: Sequence[Any], pos_args: Sequence[Any] = ()) -> Any:
    def body(graph: NestedGraph, *parts: Value) -> list[Value]:
        return _results(call, f, graph, [*parts, *pos_args])

    return call.g.scan(body, (), _values(call, xs))


def _call(call: Call, body: Program, *operands: Any, **kwargs: Any) -> Any:
    """The results of a program in place."""
    return tuple(call.nested(body, call.g, operands))  # type: ignore[arg-type]


def _call_named(call: Call, body: Program, name: str, *operands: Any, **kwargs: Any) -> Any:
    return _call(call, body, *operands)


CONVERTERS: dict[str, Converter] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "higher_order.scan": _scan,
    "higher_order.map_impl": _map,
    "higher_order.tag_activation_checkpoint": _call,
    "higher_order.invoke_subgraph": _call_named,
}
