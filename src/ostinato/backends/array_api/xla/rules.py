"""XLA's own ways to compute ops."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.backends.array_api.xla.control import cond, loop
from ostinato.backends.array_api.xla.maxima import keeps_in_range
from ostinato.dtypes import INT32, INT64
from ostinato.ir.leaves import CONSTANT
from ostinato.ops.normalization import Softmax
from ostinato.ops.recurrent import RecurrentScan, scan_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.array_api.evaluator import Evaluator, NativeRule
    from ostinato.ir.graph import Node, Value

__all__ = ["RULES"]


def _matmul(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """16-bit floats are multiplied as they are, and summed in float32."""
    import jax.numpy as jnp

    x, y = operands
    sums = node.outputs[0].dtype.accumulator
    settings = {
        "precision": evaluator.xp.precision,
        "preferred_element_type": sums.numpy,
    }
    lead = x.shape[:-2]
    if x.ndim < 4 or lead != y.shape[:-2]:
        return jnp.matmul(x, y, **settings)
    # One axis for all matrices: with several, XLA's CPU copies an operand that is transposed.
    count = math.prod(lead)
    rows, columns = x.reshape((count, *x.shape[-2:])), y.reshape((count, *y.shape[-2:]))
    return jnp.matmul(rows, columns, **settings).reshape((*lead, x.shape[-2], y.shape[-1]))


def _divide(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """A true quotient: by numbers that are repeated, XLA multiplies with rounded reciprocals.

    What it cannot see to be repeated while it simplifies, it divides by. It is never in memory all
    the same: fusion comes later.
    """
    import jax

    x, y = operands
    shape = [evaluator.dim(dim) for dim in node.outputs[0].shape]
    if node.inputs[1].dtype.is_float and _repeats(node.inputs[1], y.size < math.prod(shape)):
        y = jax.lax.optimization_barrier(evaluator.xp.broadcast_to(y, shape))
    return evaluator.by_op(node, [x, y], attrs)


def _repeats(value: Value, smaller: bool) -> bool:
    """Whether the elements of a divisor are repeated, unless their reciprocals are exact.

    Args:
        value: the divisor.
        smaller: whether it has fewer elements than the quotient.
    """
    while value.node.op.name in ("broadcast_to", "cast", "reshape"):
        smaller |= value.node.op.name == "broadcast_to"
        value = value.node.inputs[0]
    if value.node.op is not CONSTANT:
        return smaller
    elements = value.node.attrs["array"]
    if elements.size != 1 and any(elements.strides):
        return smaller
    return bool(elements.size) and abs(math.frexp(float(elements.flat[0]))[0]) != 0.5


def _permute_dims(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """Without axes of one element, so that a product can take the transposition as its own."""
    (x,) = operands
    axes = attrs["axes"]
    kept = [axis for axis, size in enumerate(x.shape) if size != 1]
    order = [kept.index(axis) for axis in axes if axis in kept]
    moved = x.reshape([x.shape[axis] for axis in kept]).transpose(order)
    return moved.reshape([x.shape[axis] for axis in axes])


def _softmax(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """By the op's rule, on XLA's maximum: whatever it makes of NaN, their sum is NaN."""
    assert isinstance(node.op, Softmax)
    xp = evaluator.xp
    return node.op.rule(xp.unchecked, xp.widened(operands[0]), **attrs)


def _max(evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    xp = evaluator.xp
    if node.inputs[0].dtype.is_float and keeps_in_range(node, evaluator.readers):
        xp = xp.unchecked
    return node.op.evaluate(xp, xp.widened(operands[0]), **attrs)


def _conv(evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    import jax

    x, w, *bias = [evaluator.xp.widened(operand) for operand in operands]
    whole = evaluator.xp.whole_convolutions or node.outputs[0].dtype.is_float
    if 0 in x.shape or 0 in w.shape or not whole:
        return node.op.evaluate(evaluator.xp, x, w, *bias, **attrs)
    result = jax.lax.conv_general_dilated(
        x,
        w,
        attrs["stride"],
        attrs["padding"],
        rhs_dilation=attrs["dilation"],
        feature_group_count=attrs["groups"],
        precision=evaluator.xp.precision,
        preferred_element_type=x.dtype,
    )
    if bias:
        result = result + bias[0].reshape((-1, *(1,) * (x.ndim - 2)))
    return result


def _integer_conv(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    wide = [evaluator.xp.cast(operand, INT32) for operand in operands]
    if not evaluator.xp.whole_convolutions:
        return node.op.evaluate(evaluator.xp, *wide, **attrs)
    return _conv(evaluator, node, wide, attrs)


def _dynamic_slice(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    import jax

    x, *starts = operands
    at = [_from_zero(evaluator, start) for start in starts]
    return jax.lax.dynamic_slice(x, at, attrs["sizes"])


def _dynamic_update_slice(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """By XLA's own, unless the update is computed from the array itself.

    Where the array is another shape of a buffer, XLA's CPU would compute such an update while it
    writes to that buffer.
    """
    import jax

    x, update, *starts = operands
    if _derives(node.inputs[1], _origin(node.inputs[0])):
        return node.op.evaluate(evaluator.xp, *operands, **attrs)
    at = [_from_zero(evaluator, start) for start in starts]
    return jax.lax.dynamic_update_slice(x, update, at)


#: Ops whose result may be their first operand's buffer.
_VIEWS = frozenset(
    {"reshape", "permute_dims", "broadcast_to", "slice", "cast", "pad", "flip", "tile", "concat"}
)


def _origin(value: Value) -> Value:
    """The value whose buffer a value may be."""
    while value.node.op.name in _VIEWS:
        value = value.node.inputs[0]
    return value


def _derives(value: Value, source: Value) -> bool:
    """Whether a value is computed from another one."""
    seen, pending = {value}, [value]
    while pending:
        found = pending.pop()
        if found is source:
            return True
        new = {v for v in found.node.inputs if v.id >= source.id} - seen
        seen |= new
        pending += new
    return False


def _from_zero(evaluator: Evaluator, start: Any) -> Any:
    """A start that is not negative; XLA has it fit the other end."""
    return evaluator.xp.maximum(evaluator.xp.cast(start, INT64), 0)


def _scatter_nd(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """Slices are written whole."""
    xp = evaluator.xp
    x, indices, updates = operands
    depth = indices.shape[-1]
    if 0 in x.shape or 0 in updates.shape or not depth:
        return node.op.evaluate(xp, x, indices, updates, **attrs)
    points = []
    for axis in range(depth):
        size = x.shape[axis]
        index = xp.cast(indices[..., axis], INT64)
        index = xp.where(index < 0, index + size, index)
        points.append(xp.where(index < 0, size, index))
    wide = [xp.widened(array) for array in (x, updates)] if attrs["mode"] != "set" else (x, updates)
    return xp.scatter_rows(wide[0], points, wide[1], attrs["mode"])


def _recurrent_scan(
    evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any]
) -> Any:
    """A loop of XLA's: the code of one step serves all."""
    import jax

    xp = evaluator.xp
    assert isinstance(node.op, RecurrentScan)
    named = node.op.named([xp.widened(operand) for operand in operands], attrs)
    xproj, lens = named["xproj"], named.get("sequence_lens")

    def step(state: Any, given: Any) -> Any:
        t, x = given
        new = scan_step(xp, x, state, named, attrs)
        if lens is None:
            return new, new[0]
        live = xp.reshape(lens > t, (-1, 1))
        kept = tuple(xp.where(live, n, s) for n, s in zip(new, state, strict=True))
        return kept, xp.where(live, new[0], 0.0)

    first = (named["h0"], named["c0"]) if attrs["kind"] == "lstm" else (named["h0"],)
    line = xp.iota((xproj.shape[0],), 0, INT64)
    last, rows = jax.lax.scan(step, first, (line, xproj), reverse=attrs["reverse"])
    return (rows, *last)


RULES: Mapping[str, NativeRule] = MappingProxyType(
    {
        "divide": _divide,
        "matmul": _matmul,
        "max": _max,
        "permute_dims": _permute_dims,
        "softmax": _softmax,
        "log_softmax": _softmax,
        "conv": _conv,
        "integer_conv": _integer_conv,
        "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice,
        "scatter_nd": _scatter_nd,
        "cond": cond,
        "loop": loop,
        "recurrent_scan": _recurrent_scan,
    }
)
