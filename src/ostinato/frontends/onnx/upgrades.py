"""Nodes of operator sets 1 to 6, rewritten as those of operator set 7 while they are read.

Operator set 7 brought NumPy's broadcasting, and made operands of some attributes before; most other
changes only dropped attributes that meant nothing (``consumed_inputs``, ``is_test``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import INT64, DType
from ostinato.errors import GraphError
from ostinato.frontends.onnx.known import Known
from ostinato.frontends.onnx.messages import AttributeProto
from ostinato.frontends.onnx.tensors import element_number
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ostinato.frontends.onnx.call import Call
    from ostinato.frontends.onnx.known import Tensor

__all__ = ["upgraded"]

#: The first operator set whose nodes are read as they are.
_NEW = 7

# AttributeProto.AttributeType
_FLOAT, _INT, _STRING, _FLOATS, _INTS = 1, 2, 3, 6, 7


def upgraded(call: Call) -> Call:
    """``call``, or what its node would be in operator set 7."""
    if call.domain or call.opset >= _NEW:
        return call
    upgrade = _UPGRADES.get(call.op_type)
    return call if upgrade is None else upgrade(call)


def _with(call: Call, **attributes: Any) -> Call:
    """``call`` with other attributes; ``None`` removes one."""
    changed = {**call.attributes, **{name: a for name, a in attributes.items() if a is not None}}
    for name, attribute in attributes.items():
        if attribute is None:
            changed.pop(name, None)
    return replace(call, attributes=changed)


def _ints(name: str, values: Sequence[int]) -> AttributeProto:
    return AttributeProto(name=name, type=_INTS, ints=values)


def _known_ints(values: Sequence[int]) -> Known:
    return Known(np.asarray(values, np.int64), INT64)


def _broadcast(call: Call) -> Call:
    """Align the second operand of a binary op at ``axis``; without one it stands at the end."""
    axis = call.integer("axis", None)
    if not call.integer("broadcast", 0) or axis is None:
        return call
    first, second = call.rank(0), call.rank(1)
    start = axis + first if axis < 0 else axis
    missing = first - start - second
    if not 0 <= start <= first or missing < 0:
        call.malformed(f"its second operand {call.type(1)} does not fit {call.type(0)} at {axis}")
    return _reshaped(call, 1, missing)


def _reshaped(call: Call, index: int, ones: int) -> Call:
    """``call`` with dims of 1 after those of the operand at ``index``."""
    if ones == 0:
        return call
    operand = call.operand(index)
    shape = (*operand.shape, *(1,) * ones)
    wider: Tensor
    if isinstance(operand, Known):
        name = operand.name
        wider = Known(operand.array.reshape(shape), operand.dtype, name, operand.weight)
    else:
        wider = call.g.reshape(operand, shape)
    operands = (*call.operands[:index], wider, *call.operands[index + 1 :])
    return replace(call, operands=operands)


def _prelu(call: Call) -> Call:
    """Align a slope for each channel with axis 1."""
    ranks = call.rank(0), call.rank(1)
    return _reshaped(call, 1, max(ranks[0] - 2, 0)) if ranks[1] == 1 else call


def _reshape(call: Call) -> Call:
    if call.has(1):
        return call
    shape = call.integer_list("shape", None)
    if shape is None:
        call.malformed("the attribute 'shape' is missing")
    return replace(call, operands=(call.operands[0], _known_ints(shape)))


def _cast(call: Call) -> Call:
    """Number the element type, which operator sets before 6 name."""
    found = call.attributes.get("to")
    if found is None or found.type != _STRING:
        return call
    name = call.text("to", "").lower()
    try:
        dtype = DType.parse({"float": "float32", "double": "float64"}.get(name, name))
    except GraphError:
        call.unsupported(f"it casts to {name}")
    return _with(call, to=AttributeProto(name="to", type=_INT, i=element_number(dtype)))


def _concat(call: Call) -> Call:
    if call.integer("axis", None) is not None:
        return call
    return _with(call, axis=AttributeProto(name="axis", type=_INT, i=1))


def _pad(call: Call) -> Call:
    paddings = call.integer_list("paddings", None)
    return call if paddings is None else _with(call, pads=_ints("pads", paddings))


def _tile(call: Call) -> Call:
    """Spell the repeats of one axis out for all."""
    if not call.has(2):
        return call
    repeats = [1] * call.rank(0)
    (times,), (axis,) = call.integers(1, "tiles"), call.integers(2, "axis")
    if not 0 <= axis < len(repeats):
        call.malformed(f"axis {axis} is out of range for {len(repeats)} dimensions")
    repeats[axis] = times
    return replace(call, operands=(call.operands[0], _known_ints(repeats)))


def _upsample(call: Call) -> Call:
    height, width = call.real("height_scale", None), call.real("width_scale", None)
    if height is None or width is None:
        return call
    scales = AttributeProto(name="scales", type=_FLOATS, floats=[1.0, 1.0, height, width])
    return _with(call, scales=scales)


def _norm_order(call: Call) -> Call:
    """Make an int of the order of a norm, a float in operator set 1."""
    found = call.attributes.get("p")
    if found is None or found.type != _FLOAT:
        return call
    order = call.real("p", 2.0)
    if order != int(order):
        call.unsupported(f"the order of its norm is {order}")
    return _with(call, p=AttributeProto(name="p", type=_INT, i=int(order)))


_UPGRADES: Mapping[str, Callable[[Call], Call]] = {
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"),
        _broadcast,
    ),
    "Cast": _cast,
    "Concat": _concat,
    "GlobalLpPool": _norm_order,
    "LpPool": _norm_order,
    "PRelu": _prelu,
    "Pad": _pad,
    "Reshape": _reshape,
    "Tile": _tile,
    "Upsample": _upsample,
}
