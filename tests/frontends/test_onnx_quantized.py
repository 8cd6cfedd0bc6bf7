"""Quantised ops next to ONNX Runtime: odd sizes, zero points, scales per channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

Array = np.ndarray[Any, Any]

MICROSOFT = "com.microsoft"
TYPES = (np.uint8, np.int8)


class Case:
    """Random operands of one node: its inputs, and what the file stores."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs: dict[str, Array] = {}
        self.stored: dict[str, Array] = {}
        self.names: list[str] = []

    def integers(self, shape: Sequence[int], dtype: type, *, stored: bool = False) -> Array:
        info = np.iinfo(dtype)
        return self.put(self.rng.integers(info.min, info.max + 1, shape, dtype), stored=stored)

    def narrow(
        self, shape: Sequence[int], dtype: type, bits: int = 7, *, stored: bool = True
    ) -> Array:
        """Integers of fewer bits: without VNNI, ONNX Runtime's 16-bit sums saturate."""
        half = 1 << (bits - 1)
        middle = 128 if dtype is np.uint8 else 0
        values = self.rng.integers(middle - half, middle + half, shape).astype(dtype)
        return self.put(values, stored=stored)

    def floats(self, shape: Sequence[int], *, stored: bool = False) -> Array:
        return self.put(self.rng.standard_normal(shape).astype(np.float32), stored=stored)

    def scale(self, shape: Sequence[int] = (), low: float = 0.01, high: float = 0.05) -> Array:
        return self.put(self.rng.uniform(low, high, shape).astype(np.float32), stored=True)

    def zero(self, dtype: type, shape: Sequence[int] = (), spread: int = 20) -> Array:
        middle = 128 if dtype is np.uint8 else 0
        low, high = middle - spread, middle + spread
        return self.put(self.rng.integers(low, high, shape).astype(dtype), stored=True)

    def put(self, array: Any, *, stored: bool = True) -> Array:
        array = np.asarray(array)
        name = f"v{len(self.names)}"
        (self.stored if stored else self.inputs)[name] = array
        self.names.append(name)
        return array

    def skip(self) -> None:
        """Leave an optional operand out."""
        self.names.append("")

    def model(self, op: str, domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        results = [f"y{i}" for i in range(outputs)]
        node = helper.make_node(op, self.names, results, domain=domain, **attributes)
        graph = helper.make_graph(
            [node],
            op,
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in self.inputs.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in results],
            [numpy_helper.from_array(array, name) for name, array in self.stored.items()],
        )
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)


def expected(model: Any, inputs: dict[str, Array]) -> list[Array]:
    """The results of ONNX Runtime, each op by itself."""
    return list(onnxruntime_session(model, rewrites=False).run(None, inputs))


def check(
    case: Case, model: Any, *, steps: int = 0, share: float = 0.02, rtol: float = 1e-5
) -> None:
    """Compare: floats closely, integers to so many steps, and most to none."""
    wanted = expected(model, case.inputs)
    graph = ost.load_onnx(model)
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize, verify=True)
        found = ost.Session("cpu", threads=2).compile(graph, options=options).run(case.inputs)
        for actual, exact in zip(found, wanted, strict=True):
            assert actual.dtype == exact.dtype
            if exact.dtype.kind == "f":
                atol = rtol * float(np.abs(exact).max(initial=0))
                np.testing.assert_allclose(actual, exact, rtol=rtol, atol=atol)
            elif steps:
                distance = np.abs(actual.astype(np.int64) - exact.astype(np.int64))
                assert distance.max(initial=0) <= steps
                assert np.count_nonzero(distance) <= max(1, distance.size * share)
            else:
                np.testing.assert_array_equal(actual, exact)


# -- the default domain ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "dtype"),
    [*product(("tensor", "axis", "block"), TYPES), ("axis", np.uint16), ("block", np.int16)],
)
def test_quantize_and_dequantize(dtype: type, by: str) -> None:
    attributes = {"tensor": {}, "axis": {"axis": 1}, "block": {"axis": 1, "block_size": 3}}[by]
    shape = {"tensor": (), "axis": (7,), "block": (5, 3, 3)}[by]
    for op in ("QuantizeLinear", "DequantizeLinear"):
        case = Case(len(op) + len(by))
        if op == "QuantizeLinear":
            case.floats((5, 7, 3))
        else:
            case.integers((5, 7, 3), dtype)
        case.scale(shape)
        case.integers(shape, dtype, stored=True)
        check(case, case.model(op, **attributes))


@pytest.mark.parametrize("seed", range(3))
def test_dynamic_quantize(seed: int) -> None:
    case = Case(seed)
    case.put(case.rng.standard_normal((3, 37)).astype(np.float32) + seed - 1, stored=False)
    check(case, case.model("DynamicQuantizeLinear", outputs=3))


#: Signs of both operands that ONNX Runtime has kernels for; every shape is tried with the first.
SIGNS = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]


def with_signs(forms: Sequence[Any], every: int) -> list[tuple[type, type, Any]]:
    """Each form with the first pair of signs, and one in ``every`` with each other pair."""
    return [
        (*signs, form)
        for number, signs in enumerate(SIGNS)
        for form in (forms[number - 1 :: every] if number else forms)
    ]


@pytest.mark.parametrize(
    ("left", "right", "shape"), with_signs([(1, 1, 1), (5, 31, 17), (33, 64, 3)], 2)
)
def test_matmul_integer(left: type, right: type, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for stored, by_column in ((True, True), (False, False)):
        case = Case(k)
        case.integers((2, m, k), left)
        case.narrow((k, n) if stored else (2, k, n), right, stored=stored)
        case.zero(left)
        case.zero(right, (n,) if by_column else ())
        check(case, case.model("MatMulInteger"))


@pytest.mark.parametrize(("left", "right"), SIGNS)
def test_qlinear_matmul(left: type, right: type) -> None:
    for shape in ((7, 19), (3, 7, 19)):
        case = Case(len(shape))
        case.integers(shape, left)
        case.scale()
        case.zero(left)
        case.narrow((19, 23), right)
        case.scale((23,) if right is np.int8 else ())
        case.zero(right, (23,) if right is np.int8 else ())
        case.scale((), 0.3, 0.6)
        case.zero(left)
        check(case, case.model("QLinearMatMul"))


#: Channels, filters, groups, kernel, and attributes.
CONVOLUTIONS = [
    (3, 5, 1, (3, 3), {"pads": [1, 1, 1, 1]}),
    (16, 17, 1, (1, 1), {"strides": [2, 2]}),
    (19, 20, 1, (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    (16, 16, 16, (3, 3), {"pads": [1, 1, 1, 1]}),
    (12, 24, 4, (3, 2), {"dilations": [2, 1]}),
    (32, 64, 2, (1, 1), {}),
    (1, 4, 1, (5, 5), {"auto_pad": "SAME_UPPER"}),
    (8, 9, 1, (7,), {"pads": [3, 3]}),
]


@pytest.mark.parametrize(("left", "right", "form"), with_signs(CONVOLUTIONS, 3))
def test_qlinear_conv(left: type, right: type, form: tuple[Any, ...]) -> None:
    channels, filters, groups, kernel, attributes = form
    case = Case(filters)
    case.integers((2, channels, *(13, 11)[: len(kernel)]), left)
    case.scale()
    case.zero(left)
    case.narrow((filters, channels // groups, *kernel), right)
    by_filter = right is np.int8
    case.scale((filters,) if by_filter else ())
    case.put(np.zeros(filters, np.int8)) if by_filter else case.zero(right)
    case.scale((), 0.5, 1.0)
    case.zero(left)
    case.put(case.rng.integers(-3000, 3000, filters).astype(np.int32))
    check(case, case.model("QLinearConv", group=groups, **attributes))


@pytest.mark.parametrize("channels,filters,groups,kernel,attributes", CONVOLUTIONS)
def test_conv_integer(
    channels: int, filters: int, groups: int, kernel: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    for zero_point_stored in (True, False) if channels > 12 else (True,):
        case = Case(filters)
        case.integers((1, channels, *(13, 11)[: len(kernel)]), np.uint8)
        case.narrow((filters, channels // groups, *kernel), np.uint8)
        case.put(np.uint8(93), stored=zero_point_stored)
        case.zero(np.uint8)
        check(case, case.model("ConvInteger", group=groups, **attributes))


# -- ONNX Runtime's own ----------------------------------------------------------------------------


def _unary(case: Case, dtype: type, shape: Sequence[int] = (2, 5, 7)) -> None:
    case.integers(shape, dtype)
    case.scale()
    case.zero(dtype)
    case.scale((), 0.01, 0.03)
    case.zero(dtype)


UNARY: dict[str, tuple[dict[str, Any], Callable[[Case, type], None]]] = {
    "QLinearLeakyRelu": ({"alpha": 0.2}, _unary),
    "QLinearSigmoid": ({}, _unary),
    "QLinearSoftmax": ({"axis": -1, "opset": 13}, _unary),
    "QLinearAveragePool": (
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]},
        lambda case, dtype: _unary(case, dtype, (2, 5, 9, 7)),
    ),
    "QLinearGlobalAveragePool": ({}, lambda case, dtype: _unary(case, dtype, (2, 5, 9, 7))),
}


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", TYPES)
def test_ops_of_one_tensor(op: str, dtype: type) -> None:
    attributes, operands = UNARY[op]
    case = Case(len(op))
    operands(case, dtype)
    # ONNX Runtime's softmax sums exponentials from a table of rounded ones.
    share = 0.15 if op == "QLinearSoftmax" else 0.02
    check(case, case.model(op, MICROSOFT, **attributes), steps=1, share=share)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", TYPES)
def test_ops_of_two_tensors(op: str, dtype: type) -> None:
    for shapes in (((2, 5, 7), (2, 5, 7)), ((2, 5, 7), (7,))):
        case = Case(len(op))
        for shape in shapes:
            case.integers(shape, dtype)
            case.scale()
            case.zero(dtype)
        case.scale((), 0.05, 0.2)
        case.zero(dtype)
        check(case, case.model(op, MICROSOFT), steps=1)


@pytest.mark.parametrize("dtype", TYPES)
def test_concat_and_where(dtype: type) -> None:
    case = Case(1)
    case.scale((), 0.03, 0.06)
    case.zero(dtype)
    for width in (3, 1, 4):
        case.integers((2, width), dtype)
        case.scale()
        case.zero(dtype)
    check(case, case.model("QLinearConcat", MICROSOFT, axis=1), steps=1)

    case = Case(2)
    case.put(case.rng.random((3, 5)) < 0.5, stored=False)
    for shape in ((3, 5), (1, 5)):
        case.integers(shape, dtype)
        case.scale()
        case.zero(dtype)
    case.scale((), 0.03, 0.06)
    case.zero(dtype)
    check(case, case.model("QLinearWhere", MICROSOFT), steps=1)


@pytest.mark.parametrize(("left", "right"), SIGNS)
@pytest.mark.parametrize("rounded", [True, False])
def test_qgemm(left: type, right: type, rounded: bool) -> None:
    for transposed in (0, 1):
        case = Case(transposed)
        case.integers((7, 19), left)
        case.scale()
        case.zero(left)
        case.narrow((23, 19) if transposed else (19, 23), right)
        case.scale((23,))
        case.put(np.full(23, 128 if right is np.uint8 else 0, right))
        case.put(case.rng.integers(-3000, 3000, 23).astype(np.int32))
        if rounded:
            case.scale((), 0.3, 0.6)
            case.zero(left)
        model = case.model("QGemm", MICROSOFT, transB=transposed, alpha=1.0)
        check(case, model)


@pytest.mark.parametrize("right", TYPES)
def test_matmuls_to_float(right: type) -> None:
    case = Case(3)
    case.integers((2, 7, 19), np.uint8)
    case.narrow((19, 23), right)
    case.scale()
    case.scale((23,))
    case.zero(np.uint8)
    case.zero(right, (23,))
    case.floats((23,), stored=True)
    check(case, case.model("MatMulIntegerToFloat", MICROSOFT))

    case = Case(4)
    case.floats((2, 7, 19))
    case.narrow((19, 23), right)
    case.scale((23,))
    case.zero(right, (23,))
    case.floats((23,), stored=True)
    check(case, case.model("DynamicQuantizeMatMul", MICROSOFT))


@pytest.mark.parametrize(
    ("mask", "right"),
    [*product(("none", "lengths", "keys", "pairs"), [np.uint8]), ("none", np.int8)],
)
def test_qattention(mask: str, right: type) -> None:
    batch, length, heads, size = 2, 5, 3, 8
    hidden = heads * size
    case = Case(len(mask))
    case.integers((batch, length, hidden), np.uint8)
    case.narrow((hidden, 3 * hidden), right)
    case.floats((3 * hidden,), stored=True)
    case.scale()
    case.scale()
    if mask == "none":
        case.skip()
    else:
        shape = {"lengths": (batch,), "keys": (batch, length), "pairs": (batch, length, length)}
        values = case.rng.integers(0, 2, shape[mask]) | (np.arange(shape[mask][-1]) == 0)
        lengths = case.rng.integers(1, length + 1, batch)
        case.put((lengths if mask == "lengths" else values).astype(np.int32), stored=False)
    case.zero(np.uint8)
    case.zero(right)
    check(case, case.model("QAttention", MICROSOFT, num_heads=heads), rtol=1e-4)


def test_dynamic_quantize_lstm() -> None:
    """The state of each step stays a float here; ONNX Runtime rounds it to 8 bits."""
    steps, batch, size, hidden = 5, 1, 11, 9
    case = Case(5)
    case.floats((steps, batch, size))
    case.narrow((2, size, 4 * hidden), np.int8)
    case.narrow((2, hidden, 4 * hidden), np.int8)
    case.floats((2, 8 * hidden), stored=True)
    for _ in range(4):
        case.skip()
    for _ in range(2):
        case.scale((2,), 0.003, 0.006)
        case.put(np.zeros(2, np.int8))
    model = case.model(
        "DynamicQuantizeLSTM", MICROSOFT, outputs=3, direction="bidirectional", hidden_size=hidden
    )
    check(case, model, rtol=2e-2)


def test_a_scale_of_the_wrong_size_is_refused() -> None:
    case = Case(6)
    case.floats((2, 5))
    case.scale((4,))
    case.put(np.zeros(4, np.uint8))
    with pytest.raises(ost.OstinatoError, match="no scale or zero point along axis 1"):
        ost.load_onnx(case.model("QuantizeLinear"))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
def test_float8_around_a_matmul(by_column: bool, transposed: bool) -> None:
    """``QuantizeLinear`` and ``DequantizeLinear`` of float8 become a matmul of float8."""
    rng = np.random.default_rng(0)
    e4m3 = ml_dtypes.float8_e4m3fn
    codes = rng.normal(0, 50, (9, 7) if transposed else (7, 9)).astype(e4m3)
    scale = np.asarray(rng.uniform(0.01, 0.02, (9,) if by_column else ()), np.float32)
    x_scale = np.float32(0.125)
    weight = helper.make_tensor(
        "w", onnx.TensorProto.FLOAT8E4M3FN, codes.shape, codes.tobytes(), raw=True
    )
    zero = helper.make_tensor("zero", onnx.TensorProto.FLOAT8E4M3FN, (), b"\0", raw=True)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["b"], axis=0 if transposed else 1),
    ]
    nodes += [helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0])] * transposed
    nodes.append(helper.make_node("MatMul", ["a", "t" if transposed else "b"], ["y"]))
    scales = [numpy_helper.from_array(np.asarray(x_scale), "xs")]
    scales.append(numpy_helper.from_array(scale, "ws"))
    graph = helper.make_graph(
        nodes,
        "float8",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 7))],
        [onnx.ValueInfoProto(name="y")],
        [weight, zero, *scales],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.normal(0, 30, (3, 7)).astype(np.float32)
    x[0, 0] = 1e4  # beyond 448 of these steps: saturates
    q = np.clip(x / x_scale, -448, 448).astype(e4m3).astype(np.float32)
    wide = codes.astype(np.float32).T if transposed else codes.astype(np.float32)
    wanted = q @ wide * (x_scale * scale)
    loaded = ost.load_onnx(model)
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize, verify=True)
        compiled = ost.Session("cpu", threads=1).compile(loaded, options=options)
        (found,) = compiled.run({"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
        assert ("rewrote scaled_matmul" in compiled.explain()) == optimize
