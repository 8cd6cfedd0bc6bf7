"""Products of bytes and of 4-bit codes against the oracle, between guard pages, on every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.errors import DeviceUnavailableError

Array = np.ndarray[Any, Any]
Lowered = Callable[[ost.Graph, str], Any]

#: ``host`` has the instruction that multiplies four bytes at once, where this machine does.
LEVELS = ("host", "avx512", "avx2", "sse2")

#: Rows, depth and columns: ones, primes, and both sides of the edges of vectors and blocks.
SIZES = [
    (1, 1, 1), (1, 5, 17), (3, 31, 1), (5, 33, 3), (1, 64, 65), (9, 65, 31), (17, 8, 100),
    (1, 129, 257), (0, 4, 4), (3, 0, 5), (40, 63, 48),
]  # fmt: skip


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    try:
        ost.Session("cpu").compile(_nothing(), options=ost.CompileOptions(target=request.param))
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    return str(request.param)


def _nothing() -> ost.Graph:
    g = ost.Graph("nothing")
    g.set_outputs([g.input("x", (1,))])
    return g


def random_bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Bytes of which many are the extreme ones."""
    info = np.iinfo(dtype)
    array = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    extreme = rng.random(shape)
    array[extreme < 0.2], array[extreme > 0.8] = info.min, info.max
    return array


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")]
)
def test_integers_are_exact(lowered: Lowered, level: str, left: str, right: str) -> None:
    rng = np.random.default_rng(0)
    for m, k, n in SIZES[:: 1 if level == "host" or (left, right) == ("uint8", "int8") else 5]:
        g = ost.Graph("bytes")
        a, b = g.input("a", (m, k), left), g.param("b", (k, n), right)
        g.set_outputs([g.integer_matmul(a, b)])
        arrays = {"a": random_bytes(rng, (m, k), left), "b": random_bytes(rng, (k, n), right)}
        (actual,) = lowered(g, level)(arrays)
        expected = arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64)
        np.testing.assert_array_equal(actual, expected.astype(np.int32))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_codes_in_blocks(lowered: Lowered, level: str, group: int) -> None:
    rng = np.random.default_rng(group)
    for m, blocks, n in [(1, 1, 1), (1, 3, 17), (2, 2, 33), (9, 2, 100)]:
        depth, missing = blocks * group, int(rng.integers(group // 2))
        arrays = {
            "q": random_bytes(rng, (m, depth), "int8"),
            "q_scales": rng.uniform(0, 2, (m, blocks)).astype(np.float32),
            "codes": random_bytes(rng, (depth // 2 - missing, n), "uint8"),
            "scales": rng.uniform(-1, 1, (blocks, n)).astype(
                [np.float32, np.float16, ml_dtypes.bfloat16][n % 3]
            ),
        }
        g = ost.Graph("codes")
        q, q_scales = (g.input(k, arrays[k].shape, arrays[k].dtype) for k in ("q", "q_scales"))
        codes, scales = (g.param(k, arrays[k].shape, arrays[k].dtype) for k in ("codes", "scales"))
        g.set_outputs([g.blockwise_matmul(q, q_scales, codes, scales, group=group)])
        (actual,) = lowered(g, level)(arrays)
        inputs, params = dict(list(arrays.items())[:2]), dict(list(arrays.items())[2:])
        (expected,) = ost.reference.evaluate(g, inputs, params)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_operands_that_are_views(lowered: Lowered, level: str) -> None:
    """A transposed left operand, a transposed weight, and rows that are not evenly spaced."""
    rng = np.random.default_rng(3)
    arrays = {
        "a": random_bytes(rng, (37, 2, 5), "uint8"),
        "b": random_bytes(rng, (19, 37), "int8"),
        "c": random_bytes(rng, (3, 4, 40), "uint8"),
    }
    g = ost.Graph("views")
    a, b, c = (g.input(name, array.shape, array.dtype) for name, array in arrays.items())
    w = g.permute_dims(b, (1, 0))
    g.set_outputs([
        g.integer_matmul(g.permute_dims(a, (2, 1, 0)), w),
        g.integer_matmul(g.permute_dims(c, (1, 0, 2))[:, :, 1:38], w),
        g.integer_matmul(a[:, 0, 0], w),
    ])  # fmt: skip
    for actual, expected in zip(
        lowered(g, level)(arrays), ost.reference.evaluate(g, arrays), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


def test_symbolic_rows(level: str) -> None:
    rng = np.random.default_rng(4)
    n = ost.Variable("n", 1, 20)
    g = ost.Graph("rows")
    x = g.input("x", (n, 70))
    w = g.param("w", (70, 37), "int8", value=random_bytes(rng, (70, 37), "int8"))
    codes = g.param("codes", (35, 37), "uint8", value=random_bytes(rng, (35, 37), "uint8"))
    scale = g.constant(rng.uniform(0, 0.1, 37).astype(np.float32))
    scales = g.broadcast_to(scale, (3, 37))
    g.set_outputs(
        [g.quantized_matmul(x, w, scale), g.relu(g.int4_matmul(x, codes, scales, group=32))]
    )
    compiled = ost.Session("cpu", threads=2).compile(g, options=ost.CompileOptions(target=level))
    for rows in (1, 2, 7, 19, 20):
        data = {"x": rng.standard_normal((rows, 70)).astype(np.float32)}
        for actual, expected in zip(
            compiled.run(data), ost.reference.evaluate(g, data), strict=True
        ):
            np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


def test_sums_beyond_int32_wrap(lowered: Lowered, level: str) -> None:
    depth = 70_000
    g = ost.Graph("deep")
    g.set_outputs(
        [g.integer_matmul(g.input("a", (1, depth), "uint8"), g.param("b", (depth, 2), "uint8"))]
    )
    arrays = {"a": np.full((1, depth), 255, np.uint8), "b": np.full((depth, 2), 255, np.uint8)}
    (actual,) = lowered(g, level)(arrays)
    wrapped = (depth * 255 * 255 + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(actual, np.full((1, 2), wrapped))


def test_weights_are_packed_as_they_are() -> None:
    """One byte a weight, or half of one, and nothing else is read of them."""
    g = ost.Graph("bytes")
    x = g.input("x", (1, 256))
    w = g.param("w", (256, 512), "int8", value=np.ones((256, 512), np.int8))
    codes = g.param("codes", (128, 512), "uint8", value=np.ones((128, 512), np.uint8))
    scale = g.constant(np.ones((4, 512), ml_dtypes.bfloat16))
    g.set_outputs([
        g.quantized_matmul(x, w, g.constant(np.ones(512, np.float32))),
        g.int4_matmul(x, codes, scale, group=64),
    ])  # fmt: skip
    plan = ost.Session("cpu", threads=1).compile(g).plan
    moved = {p.name: p.bytes for p in plan.execute_profiled() if "_matmul" in p.name}
    bytes8, bytes4 = (moved[next(n for n in moved if n.startswith(s))] for s in ("int", "block"))
    assert 256 * 512 <= bytes8 <= 256 * 512 + 4 * 5 * 512
    assert 128 * 512 + 2 * 4 * 512 <= bytes4 <= 128 * 512 + 2 * 4 * 512 + 4 * 2 * 512


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("int8", "int8")])
def test_which_instruction_is_a_matter_of_the_format(
    lowered: Lowered, level: str, left: str, right: str
) -> None:
    g = ost.Graph("bytes")
    g.set_outputs([g.integer_matmul(g.input("a", (1, 8), left), g.param("b", (8, 8), right))])
    graph = lowered(g, level)
    (kernel,) = (k for k in graph.kernels if isinstance(k, Gemm))
    assert kernel.b_format is not None
    assert kernel.b_format.steps == (4 if graph.target.has_byte_dots else 2)


#: Channels, filters, groups, kernel, stride, padding, dilation.
CONVOLUTIONS: list[tuple[Any, ...]] = [
    (3, 9, 1, (7, 7), 2, 3, 1), (32, 33, 1, (1, 1), 2, 0, 1), (19, 16, 1, (3, 3), 1, 1, 2),
    (36, 24, 2, (3, 2), 1, 1, 1), (48, 48, 48, (3, 3), 2, 1, 1), (5, 7, 1, (2,), 1, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")]
)
def test_convolutions_are_exact(level: str, left: str, right: str) -> None:
    """With channels last and first, and sums that 16 bits would not hold."""
    rng = np.random.default_rng(5)
    g = ost.Graph("convolutions")
    results, data = [], {}
    for number, (channels, filters, groups, kernel, *geometry) in enumerate(CONVOLUTIONS):
        shape = (2, channels, *(9, 8)[: len(kernel)])
        data[f"x{number}"] = random_bytes(rng, shape, left)
        w = random_bytes(rng, (filters, channels // groups, *kernel), right)
        x = g.input(f"x{number}", shape, left)
        stride, padding, dilation = geometry
        results.append(
            g.integer_conv(
                g.bitwise_xor(x, 1), g.param(f"w{number}", w.shape, right, value=w),
                stride=stride, padding=padding, dilation=dilation, groups=groups,
            )
        )  # fmt: skip
    g.set_outputs(results)
    wanted = ost.reference.evaluate(g, data)
    for channels_last in (True, False):
        options = ost.CompileOptions(target=level, channels_last=channels_last)
        found = ost.Session("cpu", threads=2).compile(g, options=options).run(data)
        for actual, exact in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(actual, exact)
