"""Integer arithmetic for graphs that spell quantisation as ``dequantize -> op -> quantize``.

A matmul or convolution of dequantised bytes is one of the bytes themselves, exact in int32, and the
scales are a factor of its result. Where that result is quantised, both steps are one
``requantize``: a product and a rounding in place of two products, a division and the roundings of
the float sum. So results may differ from the literal graph's by one step, where a number lies near
the middle of two integers; they are those of ONNX's ``QLinearConv`` and ``QLinearMatMul``.

Everything else that the pass does is exact: it moves ``dequantize`` behind ops that only move or
select elements, so that these touch bytes; it moves limits behind ``quantize``, which is monotonic;
and it turns int8 into uint8 with 128 added, the form that products of bytes take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np

from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.ops.base import broadcast_shapes
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import array_of, made_by, uniform_of
from ostinato.passes.rewrite import Rewriter, noted
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.passes.rewrite import Rule

__all__ = ["IntegerArithmetic"]

Array: TypeAlias = np.ndarray[Any, Any]

_BYTES: Final = (INT8, UINT8)

#: The distance between the zero points of int8 and uint8 that stand for the same numbers.
_HALF_RANGE: Final = 128

#: Ops that only move or select elements of their first operand.
_MOVING: Final = ("permute_dims", "reshape", "slice", "flip", "broadcast_to", "take", "max_pool")

#: Scales by which no number that integers stand for overflows, or loses digits.
_LEAST_SCALE: Final = float(np.finfo(np.float32).tiny)
_GREATEST_SCALE: Final = 1e28

#: The relative distance of a bias's scale from the product of the others, as quantisers round it.
_TOLERANCE: Final = 1e-6


class IntegerArithmetic(Pass):
    """Computes matmuls and convolutions of dequantised bytes in integers."""

    name: ClassVar[str] = "integer_arithmetic"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rules: dict[str, Rule] = {
            "conv": _conv,
            "matmul": _matmul,
            "add": _add_bias,
            "concat": _concat,
            "pad": _pad,
            "quantize": _quantize,
            "dequantize": _dequantize,
            "requantize": _requantize,
            "affine_conv": _unsigned_operand,
            "affine_matmul": _unsigned_operand,
            **dict.fromkeys(_MOVING, _move),
        }
        noting = {name: noted(self, report, rule) for name, rule in rules.items()}
        return Rewriter(graph).run(noting)


@dataclass(frozen=True)
class _Dequantized:
    """Numbers that integers stand for, their scale and zero point known.

    Attributes:
        q: the integers.
        scale: positive throughout.
        zero_point: in the dtype of ``q``.
    """

    q: Value
    scale: Array
    zero_point: Array

    @property
    def whole(self) -> bool:
        """Whether one scale and one zero point hold for all elements."""
        return self.scale.size == 1 and self.zero_point.size == 1

    @property
    def is_bytes(self) -> bool:
        return self.q.dtype in _BYTES

    @property
    def is_sum(self) -> bool:
        """Whether the integers are sums of products, or added to such."""
        return self.q.dtype == INT32 and not self.zero_point.any()

    def shown(self, g: Graph, q: Value) -> Value:
        """``q`` dequantised in the same way."""
        return g.dequantize(q, g.constant(self.scale), g.constant(self.zero_point))

    def across(self, ndim: int, axis: int) -> tuple[Array, Array] | None:
        """Scale and zero point as rows along ``axis``, if they differ along no other."""
        found: list[Array] = []
        for array in (self.scale, self.zero_point):
            if array.size == 1:
                found.append(array.reshape(()))
            elif array.ndim == ndim and array.size == array.shape[axis]:
                found.append(array.reshape(-1))
            else:
                return None
        scale, zero_point = found
        return scale, zero_point


def _dequantized(value: Value) -> _Dequantized | None:
    """The integers behind ``value``, if it is their ``dequantize`` to float32."""
    node = made_by(value, "dequantize")
    if node is None or value.dtype != FLOAT32:
        return None
    q, scale, zero_point = node.inputs
    numbers, zeros = array_of(scale), array_of(zero_point)
    if numbers is None or zeros is None or zero_point.dtype != q.dtype:
        return None
    if not ((numbers >= _LEAST_SCALE) & (numbers <= _GREATEST_SCALE)).all():
        return None
    return _Dequantized(q, numbers, zeros)


# -- matmuls and convolutions ----------------------------------------------------------------------


def _conv(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, w = _dequantized(operands[0]), _dequantized(operands[1])
    if x is None or w is None or not (x.is_bytes and w.is_bytes and x.whole):
        return None
    found = w.across(w.q.ndim, 0)
    if found is None:
        return None
    w_scale, w_zero = found
    by_filter = (1, -1, *(1,) * (w.q.ndim - 2))
    sums = g.affine_conv(
        x.q, w.q, g.constant(x.zero_point.reshape(())), g.constant(w_zero), **node.attrs
    )
    scale = x.scale.reshape(()) * w_scale
    scale = scale.reshape(by_filter) if scale.ndim else scale
    if len(operands) == 2:
        return _scaled(g, sums, scale)
    bias = _integer_bias(operands[2], scale.reshape(-1))
    if bias is not None:
        return _scaled(g, g.add(sums, g.reshape(bias, by_filter)), scale)
    return g.add(_scaled(g, sums, scale), g.reshape(operands[2], by_filter))


def _matmul(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    a, b = _dequantized(operands[0]), _dequantized(operands[1])
    if a is None or b is None or not (a.is_bytes and b.is_bytes and a.whole):
        return None
    if a.q.ndim < 2 or b.q.ndim < 2 or not isinstance(a.q.shape[-1], int):
        return None
    found = b.across(b.q.ndim, -1)
    if found is None:
        return None
    b_scale, b_zero = found
    columns = (*(1,) * (b.q.ndim - 1), -1)
    zero_point = g.constant(b_zero.reshape(columns) if b_zero.ndim else b_zero)
    sums = g.affine_matmul(a.q, b.q, g.constant(a.zero_point.reshape(())), zero_point)
    return _scaled(g, sums, a.scale.reshape(()) * b_scale)


def _scaled(g: Graph, sums: Value, scale: Array) -> Value:
    return g.dequantize(sums, g.constant(scale), g.constant(0, INT32))


def _integer_bias(bias: Value, scale: Array) -> Value | None:
    """The integers of a bias whose scale is that of the sums."""
    found = _dequantized(bias)
    if found is None or not found.is_sum:
        return None
    own = found.scale.reshape(-1)
    alike = own.size in (1, scale.size) or scale.size == 1
    return found.q if alike and np.allclose(own, scale, rtol=_TOLERANCE, atol=0) else None


def _add_bias(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """A bias joins the sums of a matmul before they are scaled."""
    for sums, bias in (operands, operands[::-1]):
        found = _dequantized(sums)
        if found is None or not found.is_sum or made_by(found.q, "affine_matmul") is None:
            continue
        added = _integer_bias(bias, found.scale.reshape(-1))
        if added is not None and broadcast_shapes(found.q.shape, added.shape) == found.q.shape:
            return found.shown(g, g.add(found.q, added))
    return None


# -- rounding --------------------------------------------------------------------------------------


def _quantize(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, scale, zero_point = operands
    numbers, zeros = array_of(scale), array_of(zero_point)
    if numbers is None or zeros is None or numbers.size != 1 or zeros.size != 1:
        return None
    if zero_point.dtype == INT8:
        # Not of floats: a NaN gives 0, whichever number that stands for.
        unsigned = _quantized_bytes(g, x, numbers, g.constant(_moved(zeros)))
        if unsigned is not None:
            return _signed(g, unsigned)
    return _quantized_bytes(g, x, numbers, zero_point)


def _quantized_bytes(g: Graph, x: Value, scale: Array, zero_point: Value) -> Value | None:
    """``quantize`` of integers that were dequantised, and limited or rearranged since."""
    source, steps = x, []
    while (step := _step_of(source)) is not None:
        steps.append(step)
        (source,) = source.node.inputs
    found = _dequantized(source)
    zeros = array_of(zero_point)
    if found is None or zeros is None or not float(scale.reshape(())) > 0:
        return None
    same = found.q.dtype == zero_point.dtype and found.whole
    if same and found.scale.item() == scale.item() and found.zero_point.item() == zeros.item():
        codes = found.q
    elif found.is_sum:
        factor = g.constant((found.scale / scale.reshape(())).astype(np.float32))
        codes = g.requantize(found.q, factor, g.constant(zeros.reshape(())))
    else:
        return None
    for step in reversed(steps):
        codes = step(g, codes, scale, zeros)
    return codes


#: Applies to codes what an op does to the numbers that they stand for.
_Step: TypeAlias = "Callable[[Graph, Value, Array, Array], Value]"


def _step_of(value: Value) -> _Step | None:
    """The op that makes ``value``, if it limits or rearranges its only operand."""
    node = value.node
    match node.op.name:
        case "relu":
            return _limits(0.0, None)
        case "relu6":
            return _limits(0.0, 6.0)
        case "clip":
            return _limits(node.attrs["min"], node.attrs["max"])
        case "reshape" | "permute_dims":
            return lambda g, codes, scale, zeros: g.apply(node.op, (codes,), node.attrs)[0]
    return None


def _limits(least: float | None, most: float | None) -> _Step:
    """Limits of numbers as limits of codes: rounding keeps their order."""

    def limited(g: Graph, codes: Value, scale: Array, zeros: Array) -> Value:
        info = np.iinfo(codes.dtype.numpy)

        def code(number: float) -> int:
            rounded = np.rint(np.float32(number) / scale.reshape(())) + zeros.reshape(())
            return int(np.clip(np.nan_to_num(rounded), info.min, info.max))

        if least is not None and code(least) > info.min:
            codes = g.maximum(codes, code(least))
        if most is not None and code(most) < info.max:
            codes = g.minimum(codes, code(most))
        return codes

    return limited


# -- unsigned bytes --------------------------------------------------------------------------------


def _signed(g: Graph, unsigned: Value) -> Value:
    """The int8 codes of uint8 ones with 128 added."""
    return g.cast(g.bitwise_xor(unsigned, _HALF_RANGE), INT8)


def _behind_signed(q: Value) -> Value | None:
    """The uint8 codes that ``q`` was made of by :func:`_signed`."""
    cast = made_by(q, "cast") if q.dtype == INT8 else None
    flipped = made_by(cast.inputs[0], "bitwise_xor") if cast is not None else None
    if flipped is None or uniform_of(flipped.inputs[1]) != _HALF_RANGE:
        return None
    return flipped.inputs[0] if flipped.inputs[0].dtype == UINT8 else None


def _moved_zero(g: Graph, zero_point: Value) -> Value | None:
    zeros = array_of(zero_point)
    if zeros is None:
        return None
    return g.constant(_moved(zeros))


def _moved(zeros: Array) -> Array:
    """The uint8 zero points that stand for int8 ones."""
    return (zeros.astype(np.int32) + _HALF_RANGE).astype(np.uint8)


def _dequantize(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Integers that were made signed are dequantised as they were before."""
    q, scale, zero_point = operands
    unsigned = _behind_signed(q)
    moved = _moved_zero(g, zero_point) if unsigned is not None else None
    return None if moved is None else g.dequantize(unsigned, scale, moved)


def _requantize(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Signed results are rounded as unsigned ones."""
    sums, scale, zero_point = operands
    moved = _moved_zero(g, zero_point) if zero_point.dtype == INT8 else None
    return None if moved is None else _signed(g, g.requantize(sums, scale, moved))


def _unsigned_operand(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """The left operand of a matmul or convolution as it was before it was made signed."""
    left, right, left_zero, right_zero = operands
    unsigned = _behind_signed(left)
    moved = _moved_zero(g, left_zero) if unsigned is not None else None
    if unsigned is None or moved is None:
        return None
    return g.apply(node.op, (unsigned, right, moved, right_zero), node.attrs)[0]


# -- movement --------------------------------------------------------------------------------------


def _move(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """``dequantize`` behind an op that moves or selects elements."""
    found = _dequantized(operands[0])
    if found is None or not found.is_bytes:
        return None
    rest = operands[1:]
    if found.whole:
        moved = g.apply(node.op, (found.q, *rest), node.attrs)[0]
        return _Dequantized(moved, *_numbers(found)).shown(g, moved)
    if node.op.name != "permute_dims" or not _have_rank(found, found.q.ndim):
        return None
    axes: Sequence[int] = node.attrs["axes"]
    arrays = [
        array.transpose(axes) if array.ndim else array for array in (found.scale, found.zero_point)
    ]
    moved = g.apply(node.op, (found.q,), node.attrs)[0]
    return _Dequantized(moved, *arrays).shown(g, moved)


def _numbers(found: _Dequantized) -> tuple[Array, Array]:
    """The one scale and the one zero point as scalars, which broadcast against any shape."""
    return found.scale.reshape(()), found.zero_point.reshape(())


def _have_rank(found: _Dequantized, ndim: int) -> bool:
    return all(array.ndim in (0, ndim) for array in (found.scale, found.zero_point))


def _concat(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """Parts with one scale and one zero point are joined as integers."""
    parts = [_dequantized(operand) for operand in operands]
    first = parts[0]
    if first is None or not first.is_bytes or not first.whole:
        return None
    key = (first.q.dtype, *(array.item() for array in _numbers(first)))
    for part in parts[1:]:
        if part is None or not part.whole:
            return None
        if (part.q.dtype, *(array.item() for array in _numbers(part))) != key:
            return None
    joined = g.apply(node.op, [part.q for part in parts if part is not None], node.attrs)[0]
    return _Dequantized(joined, *_numbers(first)).shown(g, joined)


def _pad(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    """A border of zeros is one of zero points."""
    found = _dequantized(operands[0])
    if found is None or not found.is_bytes or not found.whole or node.attrs["value"] != 0:
        return None
    attrs = {**node.attrs, "value": found.zero_point.item()}
    padded = g.apply(node.op, (found.q,), attrs)[0]
    return _Dequantized(padded, *_numbers(found)).shown(g, padded)
