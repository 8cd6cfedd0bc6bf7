"""Nodes to draw: operands and attributes of each op that are likely to fit each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.frontends.differential.drawing import Drawing, Value

__all__ = ["RECIPES"]

RECIPES: dict[str, Callable[[Drawing], Any]] = {}

Recipe = Callable[[Drawing], Any]


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    """Register a recipe under its function's name, or under several."""

    def register(function: Recipe) -> Recipe:
        for name in names or (function.__name__,):
            RECIPES[name] = function
        return function

    return register


# -- elementwise ---------------------------------------------------------------------------------

#: Ops that round, and those that compute exactly or decide.
_SMOOTH = (
    "Sigmoid", "Tanh", "Erf", "Softplus", "Gelu", "HardSwish", "HardSigmoid", "Elu", "Selu", "Celu",
    "LeakyRelu", "Sin", "Cos", "Atan", "Asinh", "Softsign", "Mish", "ThresholdedRelu", "Exp",
)  # fmt: skip
_EXACT = ("Abs", "Neg", "Relu", "Identity")
_STEPS = ("Floor", "Ceil", "Round", "Sign", "IsNaN")


@recipe("smooth", "smooth again")
def smooth(d: Drawing) -> Any:
    op_type = d.one(*_SMOOTH)
    return d.node(op_type, [d.value("f", exact=op_type == "ThresholdedRelu")])


@recipe("exact", "steps")
def exact(d: Drawing) -> Any:
    if d.chance(0.5):
        return d.node(d.one(*_EXACT), [d.value("f")], exact=True)
    return d.node(d.one(*_STEPS), [d.value("f", exact=True)], exact=True)


@recipe()
def positive_part(d: Drawing) -> Any:
    (size,) = d.node("Abs", [d.value("f")], exact=True) or [None]
    if size is None:
        return None
    one = d.stored(np.asarray(1.0, size.dtype))
    (shifted,) = d.node("Add", [size, one]) or [None]
    return shifted and d.node(d.one("Sqrt", "Log", "Reciprocal"), [shifted])


def _partner(d: Drawing, value: Value) -> Value:
    """A second operand that broadcasts with ``value``."""
    fitting = [v for v in d.values if v.dtype == value.dtype and _broadcasts(v, value)]
    if fitting and d.chance(0.6):
        return d.one(*fitting)
    kept = value.rank - d.integer(0, value.rank)
    sizes = [value.size(a) for a in range(kept, value.rank)]
    return d.weight(value.dtype, *(1 if n is None or d.chance(0.3) else n for n in sizes))


def _broadcasts(a: Value, b: Value) -> bool:
    try:
        for mine, theirs in zip(a.arrays, b.arrays, strict=True):
            np.broadcast_shapes(mine.shape, theirs.shape)
    except ValueError:
        return False
    return True


@recipe("arithmetic", "arithmetic again", "sums")
def arithmetic(d: Drawing) -> Any:
    value = d.value(d.one("f", "f", "fi"))
    operands = [value, _partner(d, value)]
    if d.chance(0.5):
        operands.reverse()
    op_type = d.one("Add", "Sub", "Mul", "Min", "Max", "Sum", "Mean")
    integers = value.kind == "i"
    if integers and value.dtype not in ("int64", "int32"):
        op_type = d.one("Min", "Max")
    return d.node(op_type, operands, exact=op_type in ("Min", "Max") or integers)


@recipe()
def quotient(d: Drawing) -> Any:
    if d.chance(0.4):
        value = d.value("i")
        divisor = d.stored(np.asarray(d.integer(1, 7), value.dtype))
        return d.node(d.one("Div", "Mod"), [value, divisor], exact=True)
    value = d.value("f")
    divisor = d.stored(np.abs(d.weight(value.dtype, value.rank and 1).arrays[0]) + 0.5)
    return d.node(d.one("Div", "PRelu", "Pow"), [value, divisor])


@recipe()
def bits(d: Drawing) -> Any:
    value = d.value("i")
    op_type = d.one("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
    operands = [value] if op_type == "BitwiseNot" else [value, _partner(d, value)]
    return d.node(op_type, operands, exact=True)


@recipe()
def comparison(d: Drawing) -> Any:
    value = d.value("fi", exact=True)
    op_type = d.one("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
    other = _partner(d, value)
    return other.exact and d.node(op_type, [value, other], exact=True)


@recipe()
def logic(d: Drawing) -> Any:
    value = d.value("b")
    op_type = d.one("And", "Or", "Xor", "Not")
    return d.node(op_type, [value] if op_type == "Not" else [value, _partner(d, value)], exact=True)


@recipe()
def choice(d: Drawing) -> Any:
    value = d.value("fi")
    conditions = [v for v in d.values if v.kind == "b" and _broadcasts(v, value)]
    condition = d.one(*conditions) if conditions else d.stored(d.chance(0.5))
    return d.node("Where", [condition, value, _partner(d, value)], exact=True)


@recipe()
def cast(d: Drawing) -> Any:
    value = d.value("fib", exact=True)
    target = d.one("float32", "float32", "float64", "int64", "int32", "bool")
    number = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    return d.node("Cast", [value], to=number, exact=True)


@recipe()
def clip(d: Drawing) -> Any:
    value = d.value("f")
    low, high = sorted(d.rng.standard_normal(2))
    limits = [d.stored(np.asarray(x, value.dtype)) if d.chance(0.8) else None for x in (low, high)]
    return d.node("Clip", [value, *limits], exact=True)


# -- reductions ----------------------------------------------------------------------------------


@recipe("reduction", "reduction again")
def reduction(d: Drawing) -> Any:
    value = d.value("f", (1, 5))
    if _is_empty(value):
        return None
    names = ("Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp", "Prod")
    name = d.one(*names)
    axes = [int(a) for a in d.rng.permutation(value.rank)[: d.integer(1, value.rank)]]
    operands = [value] if d.chance(0.1) else [value, d.integers(*axes)]
    exact_ = name in ("Max", "Min")
    return d.node(f"Reduce{name}", operands, keepdims=d.integer(0, 1), exact=exact_)


def _is_empty(value: Value) -> bool:
    """Whether it may have no elements: ONNX Runtime then keeps the axes that it reduces."""
    return any(array.size == 0 for array in value.arrays)


@recipe()
def integer_reduction(d: Drawing) -> Any:
    value = d.value("i", (1, 5))
    if _is_empty(value):
        return None
    axes = d.integers(d.axis(value))
    name = d.one("ReduceSum", "ReduceMax", "ReduceMin")
    return d.node(name, [value, axes], keepdims=d.integer(0, 1), exact=True)


@recipe()
def position(d: Drawing) -> Any:
    value = d.value("fi", (1, 4), exact=True)
    if _is_empty(value):
        return None
    return d.node(
        d.one("ArgMax", "ArgMin"),
        [value],
        axis=d.axis(value),
        keepdims=d.integer(0, 1),
        select_last_index=d.integer(0, 1),
        exact=True,
    )


@recipe()
def top(d: Drawing) -> Any:
    value = d.value("f", (1, 4), exact=True)
    axis = d.axis(value)
    k = d.integers(d.integer(1, value.least(axis)) if value.least(axis) else 0)
    return d.node("TopK", [value, k], outputs=2, axis=axis, largest=d.integer(0, 1), exact=True)


@recipe()
def running_sum(d: Drawing) -> Any:
    value = d.value("f", (1, 4))
    axis = d.stored(np.asarray(d.axis(value)))
    return d.node("CumSum", [value, axis], exclusive=d.integer(0, 1), reverse=d.integer(0, 1))


@recipe()
def softmax(d: Drawing) -> Any:
    value = d.value("f", (1, 4))
    return d.node(d.one("Softmax", "LogSoftmax"), [value], axis=d.axis(value))


@recipe()
def layer_norm(d: Drawing) -> Any:
    value = d.value("f", (1, 4))
    width = value.size(-1)
    if width is None or value.dtype != "float32":  # ONNX Runtime computes it so
        return None
    operands = [value, d.weight(value.dtype, width), d.weight(value.dtype, width)]
    return d.node("LayerNormalization", operands[: d.integer(2, 3)], axis=-1, epsilon=1e-3)


# -- contractions --------------------------------------------------------------------------------


@recipe("matmul", "matmul again")
def matmul(d: Drawing) -> Any:
    value = d.value("f", (1, 4))
    others = [v for v in d.values if v.dtype == value.dtype and v.rank > 1]
    if others and d.chance(0.3):
        return d.node("MatMul", [value, d.one(*others)])
    depth = value.size(-1)
    return depth and d.node("MatMul", [value, d.weight(value.dtype, depth, d.integer(1, 20))])


@recipe()
def gemm(d: Drawing) -> Any:
    value = d.value("f", (2, 2))
    flipped, turned = d.integer(0, 1), d.integer(0, 1)
    depth = value.size(0 if flipped else 1)
    if depth is None:
        return None
    width = d.integer(1, 20)
    shape = (width, depth) if turned else (depth, width)
    operands = [value, d.weight(value.dtype, *shape), d.weight(value.dtype, width)]
    scales = {"alpha": d.one(1.0, 0.5), "beta": d.one(1.0, -0.25)}
    return d.node("Gemm", operands[: d.integer(2, 3)], transA=flipped, transB=turned, **scales)


@recipe()
def einsum(d: Drawing) -> Any:
    value = d.value("f", (2, 3))
    letters = "abc"[: value.rank]
    order = "".join(d.rng.permutation(list(letters)))
    operands, equation = [value], letters
    if d.chance(0.6):
        operands, equation = [value, value], f"{letters},{letters}"
    return d.node("Einsum", operands, equation=f"{equation}->{order[: d.integer(0, len(order))]}")


@recipe("convolution", "convolution again")
def convolution(d: Drawing) -> Any:
    value = d.value("f", (3, 4))
    channels, axes = value.size(1), value.rank - 2
    if not channels:
        return None
    group = d.one(1, 1, channels)
    filters = group * d.integer(1, 3) if group > 1 else d.integer(1, 9)
    kernel = _kernel(d, value)
    operands = [value, d.weight(value.dtype, filters, channels // group, *kernel)]
    bias = [d.weight(value.dtype, filters)] if d.chance(0.5) else []
    return d.node("Conv", operands + bias, group=group, **_window(d, axes))


def _kernel(d: Drawing, value: Value) -> list[int]:
    """A window that fits: of one that does not, ONNX Runtime computes more than the standard."""
    return [d.integer(1, min(3, max(value.least(axis), 1))) for axis in range(2, value.rank)]


def _window(d: Drawing, axes: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if d.chance(0.6):
        attributes["pads"] = [d.integer(0, 2) for _ in range(2 * axes)]
    elif d.chance(0.3):
        attributes["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER", "VALID")
    if d.chance(0.5):
        attributes["strides"] = [d.integer(1, 3) for _ in range(axes)]
    if d.chance(0.3) and "pads" in attributes:
        attributes["dilations"] = [d.integer(1, 2) for _ in range(axes)]
    return attributes


@recipe()
def transposed_convolution(d: Drawing) -> Any:
    value = d.value("f", (3, 4))
    channels, axes = value.size(1), value.rank - 2
    if not channels:
        return None
    kernel = [d.integer(1, 3) for _ in range(axes)]
    operands = [value, d.weight(value.dtype, channels, d.integer(1, 5), *kernel)]
    strides = [d.integer(1, 2) for _ in range(axes)]
    return d.node("ConvTranspose", operands, strides=strides)


@recipe()
def pooling(d: Drawing) -> Any:
    value = d.value("f", (3, 4))
    axes = value.rank - 2
    window: dict[str, Any] = {"kernel_shape": _kernel(d, value)}
    if d.chance(0.5):
        window["pads"] = [d.integer(0, k - 1) for k in window["kernel_shape"]] * 2
    if d.chance(0.6):
        window["strides"] = [d.integer(1, 3) for _ in range(axes)]
    if d.chance(0.3):
        window["ceil_mode"] = 1
    op_type = d.one("MaxPool", "AveragePool")
    if op_type == "AveragePool" and d.chance(0.4):
        window["count_include_pad"] = 1
    return d.node(op_type, [value], exact=op_type == "MaxPool", **window)


@recipe()
def global_pooling(d: Drawing) -> Any:
    op_type = d.one("GlobalAveragePool", "GlobalMaxPool")
    return d.node(op_type, [d.value("f", (3, 4))], exact=op_type == "GlobalMaxPool")


@recipe()
def normalization(d: Drawing) -> Any:
    value = d.value("f", (3, 4))
    channels = value.size(1)
    if not channels or value.dtype != "float32":  # ONNX Runtime computes it so
        return None
    gain, shift, mean = (d.weight(value.dtype, channels) for _ in range(3))
    if d.chance(0.5):
        spread = d.stored(np.abs(d.weight(value.dtype, channels).arrays[0]) + 0.5)
        return d.node("BatchNormalization", [value, gain, shift, mean, spread])
    if d.chance(0.5):
        return d.node("InstanceNormalization", [value, gain, shift], epsilon=0.1)
    groups = d.one(1, channels)
    return d.node("GroupNormalization", [value, gain, shift], num_groups=groups, epsilon=0.1)


@recipe()
def recurrent(d: Drawing) -> Any:
    value = d.value("f", (3, 3))
    width = value.size(2)
    if value.dtype != "float32" or not width:
        return None
    op_type = d.one("LSTM", "GRU", "RNN")
    hidden, gates = d.integer(1, 6), {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    direction = d.one("forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    weights = [d.weight("float32", ways, gates * hidden, n) for n in (width, hidden)]
    bias = [d.weight("float32", ways, 2 * gates * hidden)] if d.chance(0.5) else []
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op_type == "GRU":
        attributes["linear_before_reset"] = d.integer(0, 1)
    outputs = 3 if op_type == "LSTM" else 2
    return d.node(op_type, [value, *weights, *bias], outputs=outputs, **attributes)


# -- movement ------------------------------------------------------------------------------------


@recipe()
def transposition(d: Drawing) -> Any:
    value = d.value("fib")
    order = [int(a) for a in d.rng.permutation(value.rank)]
    if not order:
        return None
    return d.node("Transpose", [value], perm=order, exact=True)


@recipe("reshape", "reshape again")
def reshape(d: Drawing) -> Any:
    value = d.value("fi", (1, 5))
    sizes = [value.size(a) for a in range(value.rank)]
    if d.chance(0.3):
        at = d.integer(0, value.rank)
        return d.node("Unsqueeze", [value, d.integers(at)], exact=True)
    if d.chance(0.3):
        return d.node("Flatten", [value], axis=d.integer(0, value.rank), exact=True)
    shape = [0 if n is None else n for n in sizes]
    if d.chance(0.5) and value.rank > 1:  # merge two axes
        at = d.integer(0, value.rank - 2)
        known = sizes[at] is not None and sizes[at + 1] is not None
        merged = (sizes[at] or 0) * (sizes[at + 1] or 0) if known else -1
        if any(n == 0 for n in shape[at + 2 :]):
            return None
        shape[at : at + 2] = [merged]
    elif shape and (shape[-1] or 1) % 2 == 0:  # split the last
        shape[-1:] = [2, shape[-1] // 2]
    return d.node("Reshape", [value, d.integers(*shape)], exact=True)


@recipe()
def squeeze(d: Drawing) -> Any:
    value = d.value("fib", (1, 5))
    ones = [a for a in range(value.rank) if value.size(a) == 1]
    return ones and d.node("Squeeze", [value, d.integers(d.one(*ones))], exact=True)


@recipe("concatenation", "concatenation again")
def concatenation(d: Drawing) -> Any:
    value = d.value("fi", (1, 4))
    axis = d.axis(value)
    fitting = [
        v
        for v in d.values
        if v.dtype == value.dtype
        and v.rank == value.rank
        and all(
            a.shape[i] == b.shape[i]
            for a, b in zip(v.arrays, value.arrays, strict=True)
            for i in range(v.rank)
            if i != axis % v.rank
        )
    ]
    return d.node("Concat", [value, d.one(*fitting)], axis=axis, exact=True)


@recipe()
def split(d: Drawing) -> Any:
    value = d.value("fi", (1, 4))
    axis = d.axis(value)
    size = value.size(axis)
    if not size:
        return None
    if size % 2 == 0 and d.chance(0.5):
        return d.node("Split", [value], outputs=2, axis=axis, num_outputs=2, exact=True)
    first = d.integer(0, size)
    parts = d.integers(first, size - first)
    return d.node("Split", [value, parts], outputs=2, axis=axis, exact=True)


@recipe("slicing", "slicing again")
def slicing(d: Drawing) -> Any:
    value = d.value("fib", (1, 4))
    axes = [int(a) for a in d.rng.permutation(value.rank)[: d.integer(1, min(2, value.rank))]]
    steps = [d.one(1, 1, 2, -1) for _ in axes]
    starts = [d.one(-1, 1000) if s < 0 else d.integer(-2, 1) for s in steps]
    ends = [d.one(-1000, 0) if s < 0 else d.one(-1, 1, 2, 3, 1 << 62) for s in steps]
    return d.node(
        "Slice", [value, *(d.integers(*x) for x in (starts, ends, axes, steps))], exact=True
    )


@recipe()
def repetition(d: Drawing) -> Any:
    value = d.value("fi", (1, 4))
    return d.node(
        "Tile", [value, d.integers(*(d.one(1, 1, 2, 3) for _ in range(value.rank)))], exact=True
    )


@recipe()
def expansion(d: Drawing) -> Any:
    value = d.value("fi", (0, 3))
    sizes = [d.one(1, 3) if value.size(a) == 1 else 1 for a in range(value.rank)]
    extra = [d.integer(1, 3)] * d.integer(0, 1)
    return d.node("Expand", [value, d.integers(*extra, *sizes)], exact=True)


@recipe()
def padding(d: Drawing) -> Any:
    value = d.value("f", (1, 4))
    mode = d.one("constant", "constant", "edge", "reflect", "wrap")
    most = 2 if mode in ("constant", "edge") else 1
    pads = [d.integer(0, most) for _ in range(2 * value.rank)]
    if mode == "constant" and d.chance(0.3):
        pads[0] = -1
    operands = [value, d.integers(*pads)]
    if mode == "constant" and d.chance(0.5):
        operands.append(d.stored(np.asarray(1.5, value.dtype)))
    return d.node("Pad", operands, mode=mode, exact=True)


@recipe()
def blocks(d: Drawing) -> Any:
    value = d.value("f", (4, 4))
    if d.chance(0.5):
        return d.node("SpaceToDepth", [value], blocksize=d.one(1, 2), exact=True)
    return d.node(
        "DepthToSpace", [value], blocksize=d.one(1, 2), mode=d.one("DCR", "CRD"), exact=True
    )


@recipe()
def resize(d: Drawing) -> Any:
    value = d.value("f", (4, 4))
    if value.dtype != "float32":
        return None
    mode, where = d.one("nearest", "linear"), d.one("half_pixel", "asymmetric", "align_corners")
    factors = (1.0, 2.0, 0.5, 1.5)
    if where == "align_corners":  # of sizes that are no whole numbers, it has a rule of its own
        factors = (1.0, 2.0, 3.0)
    scales = d.stored(np.array([1, 1, d.one(*factors), d.one(*factors)], np.float32))
    return d.node("Resize", [value, None, scales], mode=mode, coordinate_transformation_mode=where)


@recipe()
def triangle(d: Drawing) -> Any:
    value = d.value("f", (2, 4))
    operands = [value] if d.chance(0.5) else [value, d.stored(np.asarray(d.integer(-3, 3)))]
    return d.node("Trilu", operands, upper=d.integer(0, 1), exact=True)


# -- indices -------------------------------------------------------------------------------------


@recipe("gather", "gather again")
def gather(d: Drawing) -> Any:
    value = d.value("fib", (1, 4))
    axis = d.axis(value)
    least = value.least(axis)
    if not least:
        return None
    shape = [d.integer(1, 3) for _ in range(d.integer(0, 2))]
    indices = d.stored(d.rng.integers(-least, least, shape))
    return d.node("Gather", [value, indices], axis=axis, exact=True)


@recipe()
def gather_elements(d: Drawing) -> Any:
    value = d.value("fi", (1, 3))
    axis = d.axis(value)
    least = value.least(axis)
    if not least or any(value.size(a) is None for a in range(value.rank)):
        return None
    shape = [d.integer(1, max(value.least(a), 1)) for a in range(value.rank)]
    indices = d.stored(d.rng.integers(-least, least, shape))
    return d.node("GatherElements", [value, indices], axis=axis, exact=True)


@recipe()
def scatter(d: Drawing) -> Any:
    value = d.value("f", (1, 3))
    if any(not value.size(a) for a in range(value.rank)):
        return None
    sizes = [value.least(a) for a in range(value.rank)]
    mode = d.one("none", "add", "max", "mul")
    if d.chance(0.5):
        count = d.integer(1, sizes[0])
        rows = d.stored(d.rng.permutation(sizes[0])[:count].reshape(-1, 1))
        new = d.weight(value.dtype, count, *sizes[1:])
        return d.node("ScatterND", [value, rows, new], reduction=mode)
    axis = d.integer(0, value.rank - 1)
    order = np.argsort(d.rng.random(sizes), axis=axis)
    return d.node(
        "ScatterElements",
        [value, d.stored(order), d.weight(value.dtype, *sizes)],
        axis=axis,
        reduction=mode,
    )


@recipe()
def one_hot(d: Drawing) -> Any:
    value = d.value("i", (1, 3))
    if value.dtype not in ("int64", "int32"):
        return None
    levels = d.stored(np.array([-0.5, 1.5], np.float32))
    depth = d.stored(np.asarray(d.integer(1, 9)))
    return d.node(
        "OneHot", [value, depth, levels], axis=d.integer(-value.rank - 1, value.rank), exact=True
    )


# -- sizes ---------------------------------------------------------------------------------------


@recipe("by shape", "by shape again")
def by_shape(d: Drawing) -> Any:
    """Shapes computed from a value's own, as exporters write them."""
    value = d.value("fi", (1, 4))
    (shape,) = d.node("Shape", [value], exact=True, keep=False)
    axis = d.integer(0, value.rank - 1)
    size = d.node("Gather", [shape, d.integers(axis)], axis=0, exact=True, keep=False)
    if not size:
        return None
    kind = d.integer(0, 3)
    if kind == 0:
        sizes = d.node("Concat", [*size, d.integers(-1)], axis=0, exact=True, keep=False)
        return d.node("Reshape", [value, *sizes], exact=True)
    if kind == 1:
        fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [0.5])
        return d.node("ConstantOfShape", size, value=fill, exact=True)
    if kind == 2:
        half = d.node("Div", [*size, d.integers(2)], exact=True, keep=False)
        zero, at = d.integers(0), d.integers(axis)
        return d.node("Slice", [value, zero, *half, at], exact=True)
    limit = d.node("Squeeze", size, exact=True, keep=False)
    return d.node("Range", [d.stored(0), *limit, d.stored(d.one(1, 2))], exact=True)


# -- quantised -----------------------------------------------------------------------------------


@recipe("quantised", "quantised again")
def quantised(d: Drawing) -> Any:
    """A value through 8 bits: its quantisation decides, so it starts from exact values."""
    value = d.value("f", (1, 4), exact=True)
    if value.dtype != "float32":
        return None
    zero = d.stored(
        np.asarray(d.integer(100, 140), np.uint8) if d.chance(0.5) else np.int8(d.integer(-9, 9))
    )
    scale = d.stored(np.float32(0.037))
    (small,) = d.node("QuantizeLinear", [value, scale, zero], exact=True, keep=False) or [None]
    if small is None:
        return None
    depth = value.size(-1)
    if depth and value.rank > 1 and d.chance(0.5):
        weight = d.stored(d.rng.integers(-127, 128, (depth, d.integer(1, 17))).astype(np.int8))
        return d.node("MatMulInteger", [small, weight, zero], exact=True)
    return d.node("DequantizeLinear", [small, scale, zero], exact=True)
