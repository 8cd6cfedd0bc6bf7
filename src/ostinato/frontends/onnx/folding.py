"""Constant folding at import: nodes whose operands are all known are computed while loading.

Numbers go through the very rules that the reference evaluator uses: the node's converter builds a
scratch graph, which is evaluated at once. Sizes that are Variables have no number yet. Ops that
only move elements are then run on the elements' positions, and integer arithmetic has rules over
dims; what cannot be decided (is a Variable equal to 1?) is left to run time.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato import variables
from ostinato.dtypes import BOOL, INT64
from ostinato.frontends.onnx.known import Known, Leaves, Missing, Ratio, Strings, as_known, boxed
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from ostinato.ir.graph import Value
from ostinato.ops.base import normalize_axis
from ostinato.ops.builder import Graph
from ostinato.records import replace
from ostinato.variables import Expr, bounds, provably_less, provably_nonnegative

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.call import Call, Converter
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.variables import Dim

__all__ = ["fold"]

#: Nodes with more elements than this among their operands or results are left to the compiler.
_LARGEST = 2**20

#: Integers of this magnitude and beyond are not all exact in float32.
_INEXACT = 2**24

#: Sizes with more terms than this are computed at run time.
_MOST_TERMS = 64


def fold(call: Call, converter: Converter) -> Sequence[Tensor] | None:
    """The results of a node whose operands are all known; ``None`` when it must stay a node."""
    operands = call.operands
    if any(isinstance(o, Strings) for o in operands):
        return _move_strings(call, converter)
    if not operands or not all(o is None or isinstance(o, Known) for o in operands):
        return None
    known = [o for o in operands if isinstance(o, Known)]
    if sum(o.size for o in known) > _LARGEST:
        return None
    if any(o.symbolic for o in known):
        return _fold_symbolic(call, converter)
    return _evaluate(call, converter)


def _evaluate(call: Call, converter: Converter) -> tuple[Known | Strings, ...] | None:
    from ostinato.reference import evaluate

    g = Graph("folded")
    converted = converter(replace(call, g=g, leaves=Leaves(g, params=False)))
    results = converted if isinstance(converted, Sequence) else [converted]
    wanted: dict[str, Value] = {}
    for index, result in enumerate(results):
        if isinstance(result, Missing):
            return None
        if isinstance(result, Value):
            size = result.type.size
            if not isinstance(size, int) or size > _LARGEST:
                return None
            wanted[str(index)] = result
    arrays: list[Any] = []
    if wanted:
        if any(bounds(v.type.size)[1] > 8 * _LARGEST for v in g.values()):
            return None  # something in between is large: a matmul, a broadcast
        g.set_outputs(wanted)
        arrays = list(evaluate(g, {}, {}))
    computed = iter(arrays)
    names = (*call.outputs, *[""] * len(results))
    return tuple(
        result if isinstance(result, Known | Strings) else as_known(next(computed), name)
        for result, name in zip(results, names, strict=False)
    )


# -- symbolic ------------------------------------------------------------------------------------

#: Ops that only move elements, and which operands hold what is moved (``None``: all of them).
_MOVEMENT: dict[str, tuple[int, ...] | None] = {
    "Concat": None,
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Reshape": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}


def _fold_symbolic(call: Call, converter: Converter) -> tuple[Known, ...] | None:
    if call.domain:
        return None
    if call.op_type not in _MOVEMENT and call.dtype(0).is_float:
        return _whole_floats(call)
    if call.op_type in _MOVEMENT:
        return _move(call, converter, _MOVEMENT[call.op_type])
    if call.op_type in ("Cast", "CastLike"):
        return _cast(call)
    if call.op_type in _REDUCTIONS:
        return _reduce(call, _REDUCTIONS[call.op_type])
    if call.op_type in _ARITHMETIC:
        return _arithmetic(call, _ARITHMETIC[call.op_type], call.dtype(0))
    if call.op_type in _COMPARISONS:
        return _arithmetic(call, _COMPARISONS[call.op_type], BOOL)
    return None


def _move(
    call: Call, converter: Converter, which: tuple[int, ...] | None
) -> tuple[Known, ...] | None:
    """Run the op on the positions of its elements, then look the elements up."""
    operands = list(call.operands)
    moved = range(len(operands)) if which is None else which
    arguments = (o for index, o in enumerate(operands) if index not in moved)
    if any(isinstance(o, Known) and o.symbolic for o in arguments):
        return None  # the shape of a Reshape, the end of a Slice
    pool: list[Dim] = []
    for index in moved:
        known = call.known(index)
        if known is None:
            return None
        positions = np.arange(len(pool), len(pool) + known.array.size, dtype=np.int64)
        operands[index] = Known(positions.reshape(known.array.shape), INT64)
        pool += known.dims()
    results = _evaluate(replace(call, operands=tuple(operands)), converter)
    if results is None:
        return None
    dtype = call.dtype(moved[0])
    return tuple(
        as_known(boxed((pool[i] for i in r.array.reshape(-1)), r.array.shape), r.name, dtype)
        for r in results
        if isinstance(r, Known)
    )


def _move_strings(call: Call, converter: Converter) -> list[Tensor] | None:
    """Run an op that only moves elements on the positions of strings, then look these up."""
    if call.domain or call.op_type not in _MOVEMENT:
        return None
    which = _MOVEMENT[call.op_type]
    operands = list(call.operands)
    pool: list[str] = []
    for index in range(len(operands)) if which is None else which:
        texts = operands[index] if index < len(operands) else None
        if not isinstance(texts, Strings):
            return None
        positions = np.arange(len(pool), len(pool) + texts.array.size, dtype=np.int64)
        operands[index] = Known(positions.reshape(texts.array.shape), INT64)
        pool += texts.array.reshape(-1).tolist()
    for index, operand in enumerate(operands):
        if operand is not None and not isinstance(operand, Known):
            call.unknown(index, "it moves strings as data says")
    results = _evaluate(replace(call, operands=tuple(operands)), converter)
    if results is None:
        return None
    arrays = [r.array for r in results]
    return [Strings(boxed((pool[i] for i in a.reshape(-1)), a.shape)) for a in arrays]


def _cast(call: Call) -> tuple[Known, ...] | None:
    known = call.known(0)
    target = call.dtype(1) if call.has(1) else ELEMENT_TYPES.get(call.required("to"))
    if known is None or target is None or target.itemsize < 4:
        return None
    if target.is_integer:
        return _rounded(call, known, _divide, target)
    if target.is_float and all(map(_exact_float, known.sizes())):
        return (Known(known.array, target, call.outputs[0]),)
    return None


def _rounded(
    call: Call, known: Known, rounding: Callable[[Dim, Dim], Dim | None], dtype: DType
) -> tuple[Known, ...] | None:
    """Sizes and ratios of sizes, these rounded."""
    items = [
        rounding(item.size, item.divisor) if isinstance(item, Ratio) else _whole_item(item)
        for item in known.dims()
    ]
    if not all(map(_manageable, items)):
        return None
    return (as_known(boxed(items, known.array.shape), call.outputs[0], dtype),)


#: By op, the rounding of a ratio; that of a size is the size.
_ROUNDINGS: dict[str, Callable[[Dim, Dim], Dim | None]] = {
    "Ceil": variables.ceil_div,
    "Floor": variables.floor_div,
    "Round": lambda a, b: None,
}


def _whole_floats(call: Call) -> tuple[Known, ...] | None:
    """Arithmetic of sizes that a model does in float: the same numbers, if they are exact there.

    A size over a number is not, but what it is rounded to is.
    """
    if call.op_type in ("Cast", "CastLike"):
        return _cast(call)
    known = call.known(0)
    if known is None or known.dtype.itemsize < 4:
        return None
    if call.op_type in _ROUNDINGS:
        return _rounded(call, known, _ROUNDINGS[call.op_type], known.dtype)
    operands = [_whole(operand) for i in range(len(call.operands)) if (operand := call.known(i))]
    rule = _ARITHMETIC[call.op_type] if call.op_type in ("Add", "Mul", "Sub") else None
    if call.op_type == "Div":
        rule = _ratio
    elif call.op_type == "Mul" and (divisor := _power_of_two(call.known(1))) is not None:
        rule, operands[1] = _ratio, divisor
    if rule is None or None in operands:
        return None
    whole = _arithmetic(replace(call, operands=tuple(operands)), rule, known.dtype)
    if whole is None or not all(map(_exact_float, whole[0].sizes())):
        return None
    return whole


def _whole(operand: Known) -> Known | None:
    """A float operand of whole numbers and sizes, as integers; ``None`` if there are others."""
    if operand.symbolic:
        items = [_whole_item(item) for item in operand.dims()]
        return None if None in items else Known(boxed(items, operand.array.shape), INT64)
    array = operand.array
    if not (np.isfinite(array) & (array == np.floor(array)) & (abs(array) < _INEXACT)).all():
        return None
    return Known(array.astype(np.int64), INT64)


def _whole_item(item: Any) -> Dim | None:
    """A size or a number, as a dim; ``None`` for a number that is not whole, and a ratio."""
    if isinstance(item, float):
        return int(item) if item.is_integer() else None
    return item if isinstance(item, int | Expr) else None


def _power_of_two(factor: Known | None) -> Known | None:
    """The divisor 2, 4, … that a factor 0.5, 0.25, … stands for."""
    if factor is None or factor.symbolic or factor.size != 1:
        return None
    mantissa, exponent = math.frexp(factor.array.item())
    divisor = np.left_shift(1, np.full(factor.array.shape, 1 - exponent))
    return Known(divisor, INT64) if mantissa == 0.5 and -23 < exponent < 1 else None


def _ratio(a: Dim, b: Dim) -> Dim | Ratio | None:
    """``a / b`` of a positive number ``b``: a size where that is whole for all sizes."""
    if not isinstance(b, int) or b < 1 or not _exact_float(a):
        return None
    quotient = variables.floor_div(a, b)
    return quotient if quotient * b == a else Ratio(a, b)


def _exact_float(item: Any) -> bool:
    """Whether a size and all that it may be are exact in float32."""
    low, high = bounds(item) if isinstance(item, int | Expr) else (-_INEXACT, _INEXACT)
    return -_INEXACT < low <= high < _INEXACT


def _arithmetic(call: Call, rule: Callable[..., Any], dtype: DType) -> tuple[Known, ...] | None:
    arrays = [known.array for i in range(len(call.operands)) if (known := call.known(i))]
    if not all(a.dtype == object or a.dtype.kind in "iu" for a in arrays):
        return None
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    columns = [np.broadcast_to(a, shape).reshape(-1).tolist() for a in arrays]
    items = [rule(*row) for row in zip(*columns, strict=True)]
    if not all(map(_manageable, items)):
        return None
    return (as_known(boxed(items, shape), call.outputs[0], dtype),)


def _reduce(call: Call, rule: Callable[[Any, Any], Any]) -> tuple[Known, ...] | None:
    known = call.known(0)
    axes = call.axes()
    if known is None or (not axes and call.flag("noop_with_empty_axes", 0)):
        return None
    array = known.array
    chosen = (
        tuple(normalize_axis(a, array.ndim) for a in axes) if axes else tuple(range(array.ndim))
    )
    kept = [n for a, n in enumerate(array.shape) if a not in chosen]
    rows = np.moveaxis(array, chosen, range(len(chosen))).reshape(-1, math.prod(kept))
    if not len(rows):
        return None
    items = [functools.reduce(rule, column) for column in zip(*rows.tolist(), strict=True)]
    if not all(map(_manageable, items)):
        return None
    keepdims = call.flag("keepdims", 1)
    shape = [1 if a in chosen else n for a, n in enumerate(array.shape)] if keepdims else kept
    return (as_known(boxed(items, tuple(shape)), call.outputs[0], known.dtype),)


def _manageable(item: Any) -> bool:
    """Whether a result is decided, fits int64, and is no overly large polynomial."""
    if isinstance(item, Expr):
        low, high = item.bounds()
        return len(item.terms) <= _MOST_TERMS and -(2**63) <= low <= high < 2**63
    return item is not None


def _divide(a: Dim, b: Dim) -> Dim | None:
    """Integer division as ONNX has it, towards zero; its divisor has to be positive."""
    if not provably_less(0, b):
        return None
    if provably_nonnegative(a):
        return variables.floor_div(a, b)
    positive, negative = variables.maximum(a, 0), variables.maximum(-a, 0)
    return variables.floor_div(positive, b) - variables.floor_div(negative, b)


def _modulo(a: Dim, b: Dim) -> Dim | None:
    """The remainder of rounding down. By its quotient where that helps: a size that is padded to
    the next multiple of a number is then found to be one.
    """
    if not provably_less(0, b):
        return None
    quotient = variables.floor_div(a, b)
    if isinstance(b, int) or isinstance(quotient, int):
        return a - b * quotient
    return variables.remainder(a, b)


def _absolute(a: Dim) -> Dim | None:
    if provably_nonnegative(a):
        return a
    return -a if provably_nonnegative(-a) else None


def _equal(a: Dim, b: Dim) -> bool | None:
    if a == b:
        return True
    return False if provably_less(a, b) or provably_less(b, a) else None


def _less(a: Dim, b: Dim) -> bool | None:
    if provably_less(a, b):
        return True
    return False if provably_nonnegative(a - b) else None


def _variadic(rule: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *items: functools.reduce(rule, items)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Abs": _absolute,
    "Add": operator.add,
    "Div": _divide,
    "Max": _variadic(variables.maximum),
    "Min": _variadic(variables.minimum),
    "Mod": _modulo,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Sub": operator.sub,
    "Sum": _variadic(operator.add),
}

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": _equal,
    "Greater": lambda a, b: _less(b, a),
    "GreaterOrEqual": lambda a, b: _negate(_less(a, b)),
    "Less": _less,
    "LessOrEqual": lambda a, b: _negate(_less(b, a)),
}

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceMax": variables.maximum,
    "ReduceMin": variables.minimum,
    "ReduceProd": operator.mul,
    "ReduceSum": operator.add,
}


def _negate(decided: bool | None) -> bool | None:
    return None if decided is None else not decided
