"""Properties of a value's elements that follow from the graph alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.ir.leaves import CONSTANT
from ostinato.passes.match import uniform_of

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Value

__all__ = ["casts_exactly", "never_negative"]

#: Ops whose results are never below +0.0, whatever they read (NaN aside).
_POSITIVE = frozenset({"abs", "cosh", "exp", "exp2", "sigmoid", "softmax", "square", "var"})

#: Ops that are never below +0.0 when none of their operands is.
_PRESERVING = frozenset(
    {"add", "multiply", "divide", "maximum", "minimum", "sqrt", "sum", "mean", "prod", "max", "min"}
    | {"cumsum", "reshape", "broadcast_to", "permute_dims", "slice", "flip", "concat"}
)

#: Constants are read element by element up to this size.
_MAX_READ = 1 << 16


def never_negative(value: Value, depth: int = 8) -> bool:
    """Whether every element of a float tensor is +0.0, positive, or NaN: never -0.0 or below."""
    node = value.node
    if not value.dtype.is_float or depth == 0:
        return False
    if node.op is CONSTANT:
        array = node.attrs["array"]
        return array.size <= _MAX_READ and not np.signbit(array.astype(np.float64)).any()
    name, operands = node.op.name, node.inputs
    if name in _POSITIVE:
        return True
    if name == "multiply" and operands[0] is operands[1]:
        return True
    if name == "maximum" and any(_positive_constant(v) for v in operands):
        return True
    if name == "clip":
        least = node.attrs["min"]
        return least is not None and least > 0
    if name == "where":
        operands = operands[1:]
    elif name == "cast":
        return operands[0].dtype.is_float and never_negative(operands[0], depth - 1)
    elif name not in _PRESERVING:
        return False
    return all(never_negative(v, depth - 1) for v in operands)


def casts_exactly(source: DType, target: DType) -> bool:
    """Whether ``target`` holds every value of ``source``."""
    if source == target or source.is_bool:
        return True
    if target.is_bool:
        return False
    if source.is_float:
        return target.is_float and target.itemsize > source.itemsize
    if target.is_float:
        magnitude_bits = source.bits - source.is_signed
        return magnitude_bits <= _SIGNIFICAND_BITS[target.name]
    if source.is_signed and not target.is_signed:
        return False
    return target.itemsize > source.itemsize or (
        target.itemsize == source.itemsize and source.is_signed == target.is_signed
    )


_SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def _positive_constant(value: Value) -> bool:
    number = uniform_of(value)
    return number is not None and number > 0
