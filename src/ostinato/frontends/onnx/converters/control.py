"""The converters of ``If``, ``Loop`` and ``Scan``.

What is known when the model is loaded decides: a known condition picks its branch, and a loop
whose values change their types, or whose sizes depend on the iteration, is unrolled if the number
of its iterations is known.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError
from ostinato.frontends.onnx.call import NotSupported
from ostinato.frontends.onnx.data_sizes import follows_from_integers, open_count
from ostinato.frontends.onnx.known import (
    Known,
    Missing,
    NestedLeaves,
    OptionalOf,
    SequenceOf,
    Strings,
    as_known,
)
from ostinato.frontends.onnx.structured import flattened
from ostinato.ir.graph import Value
from ostinato.variables import Expr, maximum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import GraphProto

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ops.builder import NestedGraph
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]

#: Trip counts from here on mean that a condition ends the loop.
_ENDLESS = 2**31

#: The most iterations that a loop is unrolled to.
_MOST_UNROLLED = 1024


# -- If ------------------------------------------------------------------------------------------


def convert_if(call: Call) -> Result:
    """The branch that a known condition picks; otherwise both, of which a run takes one."""
    condition = call.known(0)
    branches = call.graph("then_branch"), call.graph("else_branch")
    if condition is not None and not condition.symbolic:
        taken = branches[0] if call.scalar(0, "condition") else branches[1]
        return _checked(call, call.inline(taken, ()))
    graphs = call.g.nest("then"), call.g.nest("else")
    then, other = (
        _checked(call, call.nested(branch, graph, ()))
        for branch, graph in zip(branches, graphs, strict=True)
    )
    if any(isinstance(tensor, Missing) for tensor in (*then, *other)):
        return [Missing() for _ in call.outputs]
    for a, b in zip(then, other, strict=True):
        if _kind(a) != _kind(b) or (isinstance(a, Strings) and not _alike(a, b)):
            call.unknown(
                0,
                "its condition is not known when the model is loaded, and its branches give "
                f"{_kind(a)} and {_kind(b)}; fix what the condition depends on with dims= or "
                "constants=",
            )
    parts = [_tensors(found) for found in (then, other)]
    open_ = [i for i, (a, b) in enumerate(zip(*parts, strict=True)) if not _alike(a, b)]
    results = parts[0]
    if open_:
        values = [
            [_value_in(call, graph, found[i]) for i in open_]
            for graph, found in zip(graphs, parts, strict=True)
        ]
        flag = call.g.cast(call.g.reshape(call.value(0), ()), "bool")
        for i, value in zip(open_, call.g.join(flag, graphs, values), strict=True):
            results[i] = value
    rest = iter(results)
    return [_rebuilt(tensor, rest) for tensor in then]


def _tensors(found: Sequence[Tensor]) -> list[Value | Known]:
    """The tensors of a branch's results, those in sequences one by one."""
    return [
        part
        for tensor in found
        for _, part in flattened("", tensor)
        if isinstance(part, Value | Known)
    ]


def _rebuilt(like: Tensor, parts: Iterator[Value | Known]) -> Tensor:
    """A tensor, or a sequence or optional of as many tensors as ``like`` has."""
    if isinstance(like, Strings):
        return like
    if isinstance(like, SequenceOf):
        return SequenceOf(tuple(next(parts) for _ in like.items), like.dtype)
    if isinstance(like, OptionalOf):
        inside = None if like.item is None else _rebuilt(like.item, parts)
        assert not isinstance(inside, Missing | OptionalOf)
        return OptionalOf(inside)
    return next(parts)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether both branches give the same tensor, which then does not depend on the condition."""
    if isinstance(a, Strings) and isinstance(b, Strings):
        return bool(np.array_equal(a.array, b.array))
    if isinstance(a, Known) and isinstance(b, Known):
        return a.type == b.type and bool(np.array_equal(a.array, b.array))
    return a is b


def _kind(tensor: Tensor) -> str:
    """The type of a branch's result, in words."""
    if isinstance(tensor, SequenceOf):
        return f"the sequence ({', '.join(str(item.type) for item in tensor.items)})"
    if isinstance(tensor, OptionalOf):
        return "an empty optional" if tensor.item is None else f"optional {_kind(tensor.item)}"
    if isinstance(tensor, Strings):
        return "strings"
    return "nothing" if isinstance(tensor, Missing) else str(tensor.type)


def _checked(call: Call, results: list[Tensor]) -> list[Tensor]:
    if len(results) < len(call.outputs):
        call.malformed(f"a branch gives {len(results)} of {len(call.outputs)} outputs")
    return results[: len(call.outputs)]


def _value_in(call: Call, graph: NestedGraph, tensor: Tensor) -> Value:
    """A result of a subgraph as a value of its nested graph."""
    if isinstance(tensor, Known):
        return NestedLeaves(graph, call.leaves).value(tensor)
    assert isinstance(tensor, Value)
    return graph.local(tensor)


# -- Loop ----------------------------------------------------------------------------------------


def convert_loop(call: Call) -> Result:
    """A ``while_loop``; unrolled where that alone is possible."""
    body = call.graph("body")
    carried = list(call.operands[2:])
    if len(body.input) != len(carried) + 2:
        call.malformed(f"its body takes {len(body.input)} inputs, expected {len(carried) + 2}")
    if len(body.output) < len(carried) + 1:
        call.malformed(f"its body gives {len(body.output)} of {len(carried) + 1} results")
    started = call.known(1) if call.has(1) else as_known(np.array(True))
    if started is not None and not started.symbolic and not started.array.any():
        return _no_iteration(call, body, carried)
    trips = _trips(call)
    if any(isinstance(tensor, SequenceOf | OptionalOf) for tensor in carried):
        if not isinstance(trips, int) or started is None:
            call.unknown(
                0 if isinstance(trips, Value) else 1,
                "it carries a sequence, and the number of its iterations is not known when the "
                "model is loaded",
            )
        return _unrolled(call, body, carried, trips)
    looped = call.attempt(partial(_looped, call, body, carried, trips, started is not None))
    if looped is not None:
        return list(looped)
    if isinstance(trips, int) and trips <= _MOST_UNROLLED and started is not None:
        unrolled = call.attempt(partial(_unrolled, call, body, carried, trips))
        if unrolled is not None:
            return list(unrolled)
    try:
        return _looped(call, body, carried, trips, started is not None, open_=True)
    except (GraphError, NotSupported) as error:
        # Known, they would let it be unrolled.
        if isinstance(trips, Value):
            call.unknown(0, f"{error}; its trip count is not known when the model is loaded")
        if started is None:
            call.unknown(1, f"{error}; its condition is not known when the model is loaded")
        raise


def _trips(call: Call) -> Dim | Value | None:
    """The trip count: a size, an int64 scalar, or ``None`` if there is none."""
    if not call.has(0):
        return None
    known = call.known(0)
    if known is None:
        count = call.value(0)
        if count.type.size != 1:
            call.malformed(f"its trip count is {count.type}, expected a scalar")
        return call.g.cast(call.g.reshape(count, ()), "int64")
    if known.size != 1:
        call.malformed(f"its trip count has the shape {list(known.shape)}, expected a scalar")
    (dim,) = known.dims()
    if isinstance(dim, Expr):
        return maximum(dim, 0)
    return max(int(dim), 0) if dim < _ENDLESS else None


def _looped(
    call: Call,
    body: GraphProto,
    carried: Sequence[Tensor | None],
    trips: Dim | Value | None,
    started: bool,
    *,
    open_: bool = False,
) -> list[Tensor]:
    """The results of a loop.

    Args:
        started: whether the first iteration is known to begin.
        open_: whether scan outputs may have as many parts as the data has iterations.
    """
    g = call.g
    initial = [call.value(2 + i) for i in range(len(carried))]
    nested, (iteration, *values) = g.begin_loop(initial)
    # An iteration runs only if its condition holds.
    found = call.nested(body, nested, [iteration, as_known(np.array(True)), *values])
    if any(isinstance(tensor, Missing) for tensor in found):
        call.unsupported("a node of its body is not supported")
    going, *rest = found
    always = isinstance(going, Known) and not going.symbolic and bool(going.array.all())
    conditional = not (started and always)
    results = [_value_in(call, nested, tensor) for tensor in rest]
    exact = not conditional and isinstance(trips, int | Expr)
    bound: Dim | None = None
    if len(results) > len(carried) and not exact:
        if not open_ or (isinstance(trips, Value) and follows_from_integers(trips)):
            call.unsupported(
                "its scan outputs have as many parts as there are iterations, which depends on data"
            )
        bound = min(open_count(part.type.size) for part in results[len(carried) :])
    condition: Any = None
    if conditional:
        results.insert(0, nested.reshape(_value_in(call, nested, going), ()))
        condition = g.reshape(call.value(1), ()) if call.has(1) else g.constant(np.array(True))
    elif trips is None:
        call.malformed("it has neither a trip count nor a condition, and would never end")
    return list(g.end_loop(nested, results, initial, trips=trips, condition=condition, bound=bound))


def _unrolled(
    call: Call, body: GraphProto, carried: Sequence[Tensor | None], trips: int
) -> list[Tensor]:
    """The results of a loop whose iterations are converted one by one."""
    values = [call.operand(2 + i) if t is None else t for i, t in enumerate(carried)]
    parts: list[list[Value | Known]] = [[] for _ in body.output[len(carried) + 1 :]]
    for number in range(trips):
        iteration = as_known(np.array(number, np.int64))
        found = call.inline(body, [iteration, as_known(np.array(True)), *values])
        if any(isinstance(tensor, Missing) for tensor in found):
            call.unsupported("a node of its body is not supported")
        going = found[0]
        if not isinstance(going, Known) or going.symbolic:
            call.unsupported("its condition depends on data")
        values = found[1 : len(carried) + 1]
        for whole, part in zip(parts, found[len(carried) + 1 :], strict=True):
            if not isinstance(part, Value | Known):
                call.malformed("a scan output is no tensor")
            whole.append(part)
        if not going.array.all():
            break
    if any(not whole for whole in parts):
        call.unsupported("it has no iteration that its scan outputs could take their types from")
    stacked = [call.g.stack([call.as_value(part) for part in whole]) for whole in parts]
    return [*values, *stacked]


def _no_iteration(call: Call, body: GraphProto, carried: Sequence[Tensor | None]) -> list[Tensor]:
    """The results of a loop that never begins: scan outputs are empty."""
    first = [call.operand(2 + i) if t is None else t for i, t in enumerate(carried)]
    if len(body.output) == len(carried) + 1:
        return first
    return [*first, *_looped(call, body, carried, 0, started=True)[len(carried) :]]


# -- Scan ----------------------------------------------------------------------------------------


def convert_scan(call: Call) -> Result:
    """A ``scan``; up to operator set 8, one for each element of a batch."""
    body, scanned = call.graph("body"), call.required("num_scan_inputs")
    batched = call.opset < 9
    if batched and call.has(0):
        call.unsupported("its sequences have lengths of their own")
    operands = [call.value(i) for i in range(int(batched), len(call.operands))]
    carried = len(operands) - scanned
    if scanned < 1 or carried < 0 or len(body.input) != len(operands):
        call.malformed(
            f"it scans {scanned} of {len(operands)} operands, and its body takes {len(body.input)}"
        )
    stacked = len(body.output) - carried
    if stacked < 0:
        call.malformed(f"its body gives {len(body.output)} of {carried} states")
    run = _scan_batch if batched else _scan
    return list(run(call, body, operands[:carried], operands[carried:], stacked))


def _scan(
    call: Call,
    body: GraphProto,
    carried: Sequence[Value],
    scanned: Sequence[Value],
    stacked: int,
) -> tuple[Value, ...]:
    return call.g.scan(
        partial(_scan_body, call, body),
        carried,
        scanned,
        axes=_integers(call, "scan_input_axes", len(scanned)),
        reverse=_flags(call, "scan_input_directions", len(scanned)),
        result_axes=_integers(call, "scan_output_axes", stacked),
        result_reverse=_flags(call, "scan_output_directions", stacked),
    )


def _scan_batch(
    call: Call,
    body: GraphProto,
    carried: Sequence[Value],
    scanned: Sequence[Value],
    stacked: int,
) -> tuple[Value, ...]:
    """A scan over the second axis of each element of a batch."""
    reverse = _flags(call, "directions", len(scanned))

    def element(b: NestedGraph, *values: Value) -> tuple[Value, ...]:
        inner = partial(_scan_body, call, body)
        return b.scan(inner, values[: len(carried)], values[len(carried) :], reverse=reverse)

    return call.g.scan(element, [], [*carried, *scanned])


def _scan_body(call: Call, body: GraphProto, b: NestedGraph, *values: Value) -> list[Value]:
    found = call.nested(body, b, values)
    if any(isinstance(tensor, Missing) for tensor in found):
        call.unsupported("a node of its body is not supported")
    return [_value_in(call, b, tensor) for tensor in found]


def _integers(call: Call, name: str, count: int) -> tuple[int, ...]:
    found = call.integer_list(name, None)
    if found is None:
        return (0,) * count
    if len(found) != count:
        call.malformed(f"{name} is {list(found)}, expected {count} numbers")
    return found


def _flags(call: Call, name: str, count: int) -> tuple[bool, ...]:
    return tuple(number != 0 for number in _integers(call, name, count))


CONVERTERS: Mapping[str, Converter] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}
