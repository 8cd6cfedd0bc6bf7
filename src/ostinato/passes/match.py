"""Pattern matching on values: the node that makes them, and the constants they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.ir.leaves import CONSTANT

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node, Value

__all__ = [
    "array_of",
    "made_by",
    "near",
    "uniform_of",
]

#: Ops that show the same elements in another arrangement: a uniform operand stays uniform.
_REARRANGING = ("reshape", "broadcast_to", "permute_dims", "slice", "flip")

#: Constants up to this many elements are looked through for being uniform.
_MAX_UNIFORM = 1 << 16


def made_by(value: Value, *ops: str) -> Node | None:
    """The node that makes ``value``, if its op is one of ``ops``."""
    node = value.node
    return node if node.op.name in ops else None


def array_of(value: Value) -> np.ndarray[Any, Any] | None:
    """The array of a constant."""
    array: np.ndarray[Any, Any] | None = (
        value.node.attrs["array"] if value.node.op is CONSTANT else None
    )
    return array


def uniform_of(value: Value) -> float | int | bool | None:
    """The number that every element of a constant equals, as its dtype holds it."""
    while value.node.op.name in _REARRANGING:
        value = value.node.inputs[0]
    array = array_of(value)
    if array is None or not 0 < array.size <= _MAX_UNIFORM:
        return None
    first = array.reshape(-1)[:1]
    if array.size > 1 and not (array == first).all():
        return None
    if value.dtype.is_float:
        number = float(first.astype(np.float64)[0])
        # -0.0 == 0.0, yet they are different elements.
        if number == 0 and array.size > 1 and len(set(np.signbit(array).reshape(-1))) > 1:
            return None
        return number
    result: int | bool = first[0].item()
    return result


def near(number: float | None, expected: float, dtype: DType) -> bool:
    """Whether ``number`` is ``expected`` as an exporter would have rounded it to ``dtype``."""
    if number is None:
        return False
    return abs(number - expected) <= _TOLERANCE.get(dtype.name, 0.0) * abs(expected)


#: A few units in the last place: constants are often computed in another order or precision.
_TOLERANCE = {"float64": 1e-7, "float32": 4e-6, "float16": 2e-3, "bfloat16": 1e-2}
