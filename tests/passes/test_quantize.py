"""``ost.quantize``: its changes to nodes and params, and the accuracy of results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.passes.weight_rounding import int4_groups, int8_columns

Array = np.ndarray[Any, Any]
FORMATS = ("int8", "int4", "float8_e4m3fn", "bfloat16", "float16")


def weights(k: int, n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((k, n)).astype(np.float32)


def network() -> ost.Graph:
    """Two dense layers, one of them with its weight transposed, and a matmul of activations."""
    g = ost.Graph("network")
    x = g.input("x", (3, 96))
    first = g.param("first", (96, 80), value=weights(96, 80))
    second = g.param("second", (64, 80), value=weights(64, 80, 1))
    bias = g.param("bias", (80,), value=weights(1, 80, 2)[0])
    h = g.gelu(g.matmul(x, first) + bias)
    y = g.matmul(h, g.permute_dims(second, (1, 0)))
    g.set_outputs({"y": y, "squares": g.matmul(y, g.permute_dims(y, (1, 0)))})
    return g


def relative(actual: Array, expected: Array) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("format", "allowed"),
    [
        ("int8", 0.02),
        ("int4", 0.15),
        ("float8_e4m3fn", 0.06),
        ("bfloat16", 0.01),
        ("float16", 0.001),
    ],
)
def test_results_are_near(format: str, allowed: float) -> None:
    graph = network()
    data = {"x": weights(3, 96, 3)}
    quantized = ost.quantize(graph, format)
    session = ost.Session("cpu", threads=2)
    wide, narrow = (session.compile(g).run(data)[0] for g in (graph, quantized))
    assert 0 < relative(narrow, wide) < allowed
    exact = ost.reference.evaluate(quantized, data)[0]
    assert relative(narrow, exact) < 0.01  # one activation may round the other way


@pytest.mark.parametrize("format", FORMATS)
def test_params_and_report(format: str) -> None:
    graph = network()
    before = str(graph)
    quantized = ost.quantize(graph, format)
    assert str(graph) == before
    suffixes = {
        "int8": (".int8", ".scale"), "int4": (".int4", ".scale"),
        "float8_e4m3fn": (".f8", ".scale"), "bfloat16": (".bf16",), "float16": (".f16",),
    }[format]  # fmt: skip
    names = [f"{name}{suffix}" for name in ("first", "second") for suffix in suffixes]
    assert sorted(quantized.params) == sorted([*names, "bias"])
    assert set(quantized.param_values) == set(quantized.params)
    first, second = quantized.quantized
    assert (first.weight, first.params) == ("first", tuple(names[: len(suffixes)]))
    assert first.before == 96 * 80 * 4
    assert first.after < first.before * {"int8": 0.3, "int4": 0.16, "float8_e4m3fn": 0.3}.get(
        format, 0.5001
    )
    assert 0 < second.error < 0.1
    (skipped,) = quantized.skipped
    assert skipped.why == "no operand is a weight"
    for name in (*names, skipped.label):
        assert name in quantized.quantization()


def test_the_op_each_format_becomes() -> None:
    ops = {name: {node.op.name for node in ost.quantize(network(), name).nodes} for name in FORMATS}
    assert "quantized_matmul" in ops["int8"]
    assert "int4_matmul" in ops["int4"]
    assert "scaled_matmul" in ops["float8_e4m3fn"]
    assert "cast" in ops["bfloat16"] and "quantized_matmul" not in ops["bfloat16"]


def test_labels_and_text_survive() -> None:
    quantized = ost.quantize(network(), "int8")
    again = ost.parse_graph(str(quantized))
    assert str(again) == str(quantized)


def test_reasons_to_leave_a_product() -> None:
    g = ost.Graph("odd")
    x = g.input("x", (4, 64))
    bad = weights(64, 64)
    bad[3, 4] = np.nan
    wide = g.cast(x, "float64")
    products = {
        "holds no values": g.matmul(x, g.param("empty", (64, 64))),
        "fewer than": g.matmul(x, g.param("small", (64, 2), value=weights(64, 2))),
        "no matrix": g.matmul(x, g.param("batch", (2, 64, 64), value=np.ones((2, 64, 64), "f4"))),
        "left operand": g.matmul(g.param("left", (64, 4), value=weights(64, 4)), x),
        "NaN or an infinity": g.matmul(x, g.param("nan", (64, 64), value=bad)),
        "named in skip": g.matmul(x, g.param("kept", (64, 64), value=weights(64, 64))),
        "a matmul of float64": g.matmul(
            wide, g.param("double", (64, 64), "float64", value=weights(64, 64).astype("f8"))
        ),
    }
    g.set_outputs(list(products.values()))
    quantized = ost.quantize(g, "int8", skip=["kept"])
    assert not quantized.quantized
    reasons = [s.why for s in quantized.skipped]
    for part, why in zip(products, reasons, strict=True):
        assert part in why
    assert list(quantized.params) == list(g.params)


def test_a_weight_read_twice_is_stored_once_and_kept_if_read_otherwise() -> None:
    g = ost.Graph("tied")
    ids, x = g.input("ids", (5,), "int64"), g.input("x", (2, 64))
    table = g.param("table", (80, 64), value=weights(80, 64))
    unread = g.param("unread", (3,), value=np.zeros(3, np.float32))
    head = g.permute_dims(table, (1, 0))
    same = g.permute_dims(table, (1, 0))
    other = g.matmul(g.input("z", (2, 80)), table)
    g.set_outputs([g.embedding(ids, table), g.matmul(x, head), g.matmul(-x, same), other])
    quantized = ost.quantize(g, "int4")
    expected = ["table", "unread", "table.int4", "table.scale", "table_2.int4", "table_2.scale"]
    assert sorted(quantized.params) == sorted(expected)
    assert quantized.params["unread"].shape == unread.shape
    assert [w.params[0] for w in quantized.quantized] == [
        "table.int4",
        "table_2.int4",
        "table_2.int4",
    ]


def test_states_variables_and_assignments_survive() -> None:
    g = ost.Graph("counts")
    n = ost.Variable("n", 1, 8)
    x, total = g.input("x", (n, 64)), g.state("total", (1, 64))
    y = g.matmul(x, g.param("w", (64, 64), value=weights(64, 64)))
    g.assign(total, total + g.sum(y, axis=0, keepdims=True))
    g.set_outputs([y])
    quantized = ost.quantize(g, "int8")
    compiled = ost.Session("cpu", threads=1).compile(quantized)
    data = weights(5, 64, 1)
    (result,) = compiled.run({"x": data})
    np.testing.assert_allclose(
        compiled.read_handle("total")[0], result.sum(0), rtol=1e-4, atol=1e-4
    )


def test_weights_can_be_written_again() -> None:
    quantized = ost.quantize(network(), "int8")
    compiled = ost.Session("cpu", threads=1).compile(quantized)
    data = {"x": weights(3, 96, 3)}
    before = compiled.run(data)[0]
    codes = quantized.param_values["first.int8"]
    compiled.set_params(
        {"first.int8": codes[::-1].copy(), "second.scale": np.zeros(64, np.float32)}
    )
    assert not compiled.run(data)[0].any()
    compiled.set_params(
        {"first.int8": codes, "second.scale": quantized.param_values["second.scale"]}
    )
    np.testing.assert_array_equal(compiled.run(data)[0], before)


def test_activations_of_16_bits() -> None:
    g = ost.Graph("half")
    x = g.input("x", (2, 64), "bfloat16")
    w = g.param("w", (64, 64), "bfloat16", value=weights(64, 64).astype(ml_dtypes.bfloat16))
    g.set_outputs([g.matmul(x, w)])
    data = {"x": weights(2, 64, 1).astype(ml_dtypes.bfloat16)}
    for name, allowed in (("int8", 0.02), ("int4", 0.15)):
        quantized = ost.quantize(g, name)
        (actual,) = ost.Session("cpu", threads=1).compile(quantized).run(data)
        assert actual.dtype == ml_dtypes.bfloat16
        exact = data["x"].astype(np.float32) @ weights(64, 64)
        assert relative(actual.astype(np.float32), exact) < allowed


def test_mistakes() -> None:
    with pytest.raises(ost.InputError, match="not 'int3'"):
        ost.quantize(network(), "int3")
    with pytest.raises(ost.InputError, match="group is one of"):
        ost.quantize(network(), "int4", group=48)
    with pytest.raises(ost.InputError, match="the string 'first'"):
        ost.quantize(network(), "int8", skip="first")
    with pytest.raises(ost.InputError, match="no param or matmul 'frist'"):
        ost.quantize(network(), "int8", skip=["first", "frist"])
    with pytest.raises(TypeError, match="takes no dims"):
        ost.quantize(network(), "int8", dims={"n": 3})
    with pytest.raises(ost.OstinatoError):
        ost.quantize(b"no model", "int8")


# -- rounding ------------------------------------------------------------------------------------


def test_int8_columns() -> None:
    w = np.array([[1.0, 0.0, -2e-40], [-254.0, 0.0, 1e-40]], np.float32)
    codes, scales = int8_columns(w)
    np.testing.assert_array_equal(codes[:, 0], [0, -127])  # a tie goes to even
    np.testing.assert_array_equal(scales[:2], [2.0, 0.0])
    assert np.abs(codes * scales - w).max() <= 1.0
    assert int8_columns(np.zeros((0, 3), np.float32))[0].shape == (0, 3)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("shape", [(1, 1), (31, 3), (65, 300), (128, 7), (257, 2)])
def test_int4_groups(shape: tuple[int, int], group: int) -> None:
    w = weights(*shape)
    codes, scales = int4_groups(w, group)
    k, n = shape
    assert codes.shape == (-(-k // 2), n) and scales.shape == (-(-k // group), n)
    whole = np.stack([codes & 15, codes >> 4], 1).reshape(-1, n)[:k].astype(np.float32) - 8
    wide = np.repeat(scales.astype(np.float32), group, 0)[:k]
    assert relative(whole * wide, w) < 0.15


def test_int4_of_nothing_but_extremes() -> None:
    w = np.zeros((64, 4), np.float32)
    w[:, 1], w[5, 2], w[40, 3] = 3.0, -1e38, 1e-42
    codes, scales = int4_groups(w, 32)
    whole = np.stack([codes & 15, codes >> 4], 1).reshape(-1, 4).astype(np.float32) - 8
    wide = np.repeat(scales.astype(np.float32), 32, 0)
    assert np.isfinite(wide).all()
    np.testing.assert_allclose(whole * wide, w, rtol=0.01, atol=1e-40)
