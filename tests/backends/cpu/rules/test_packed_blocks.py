"""Packed weights on every level, between guard pages, and the bits of a row whatever its tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.packed_blocks import BlockPanels
from ostinato.errors import DeviceUnavailableError
from ostinato.ops.packed.formats import FORMATS
from tests.packed_blocks import SCALES, random_blocks

Array = np.ndarray[Any, Any]
Lowered = Callable[[ost.Graph, str], Any]

#: ``host`` has the instruction that multiplies four bytes at once, where this machine does.
LEVELS = ("host", "avx512", "avx2", "sse2")

COMPUTED = [name for name, form in FORMATS.items() if form.computed]

#: Rows, blocks and columns: ones, primes, and both sides of the edges of vectors and tiles.
SIZES = [(1, 1, 1), (3, 2, 17), (9, 1, 33), (1, 3, 64), (17, 1, 5)]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    g = ost.Graph("nothing")
    g.set_outputs([g.input("x", (1,))])
    try:
        ost.Session("cpu").compile(g, options=ost.CompileOptions(target=request.param))
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    return str(request.param)


def operands(name: str, rows: int, blocks: int, columns: int) -> dict[str, Array]:
    """Integers of which many are the extreme ones, their scales and sums, and weights.

    The first two rows have no others, nor the codes of the first columns: sums that processors
    keep in 16 bits are as great as they become.
    """
    form, rng = FORMATS[name], np.random.default_rng(rows + blocks + columns)
    q = rng.integers(-127, 128, (rows, blocks * form.size), np.int8)
    extreme = rng.random(q.shape)
    q[extreme < 0.1], q[extreme > 0.9] = -127, 127
    if rows > 1:
        q[0], q[1] = 127, -127
    short = name.removeprefix("gguf:")
    w = random_blocks(rng, short, columns * blocks, hard=False).reshape(columns, blocks, -1)
    scales = [byte + half for byte in SCALES[short] for half in (0, 1)] or [0]
    codes = np.setdiff1d(np.arange(form.nbytes), scales)
    for column, value in enumerate((0xFF, 0x00, 0x80)[:columns]):
        w[column][:, codes] = value
    return {
        "q": q,
        "q_scales": rng.uniform(0, 0.1, (rows, blocks)).astype(np.float32),
        "q_sums": q.reshape(rows, -1, form.group).sum(-1, dtype=np.int32),
        "w": w.reshape(columns, -1),
    }


def graph(name: str, arrays: dict[str, Array], *, clipped: bool = True) -> ost.Graph:
    """The matmul; of integers that surely have an opposite, as rounded ones do, or of any."""
    g = ost.Graph("blocks")
    q, *left = [
        g.input(key, arrays[key].shape, arrays[key].dtype) for key in ("q", "q_scales", "q_sums")
    ]
    if clipped:
        q = g.cast(g.clip(g.cast(q, "float32"), -127, 127), "int8")
    w = g.param("w", arrays["w"].shape, "uint8")
    g.set_outputs([g.packed_block_matmul(q, *left, w, name)])
    return g


@pytest.mark.parametrize(
    ("level", "name"),
    [
        pytest.param(
            level,
            name,
            # Each format by the host's level, every second by one other; the rest is for make
            # test-slow.
            marks=[]
            if level == "host" or (n % 2 == 0 and level == LEVELS[1 + n // 2 % 3])
            else [pytest.mark.slow],
        )
        for n, name in enumerate(COMPUTED)
        for level in LEVELS
    ],
    indirect=["level"],
)
def test_blocks(lowered: Lowered, level: str, name: str) -> None:
    for rows, blocks, columns in SIZES if level == "host" else SIZES[1::2]:
        arrays = operands(name, rows, blocks, columns)
        g = graph(name, arrays)
        expect_near(g, lowered(g, level)(arrays)[0], arrays)


def expect_near(g: ost.Graph, actual: Array, arrays: dict[str, Array]) -> None:
    params = {"w": arrays["w"]}
    inputs = {key: array for key, array in arrays.items() if key != "w"}
    (expected,) = ost.reference.evaluate(g, inputs, params)
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(actual - expected) <= 1e-5 * np.abs(expected) + 2e-6 * scale).all()


@pytest.mark.parametrize("name", ["gguf:q8_0", "gguf:iq4_nl", "gguf:q5_1", "gguf:q6_k"])
def test_the_integer_without_an_opposite(lowered: Lowered, level: str, name: str) -> None:
    """-128, which rounding does not give, but the op takes."""
    arrays = operands(name, 9, 2, 17)
    arrays["q"][arrays["q"] == -127] = -128
    groups = arrays["q"].reshape(9, -1, FORMATS[name].group)
    arrays["q_sums"] = groups.sum(-1, dtype=np.int32)
    g = graph(name, arrays, clipped=False)
    expect_near(g, lowered(g, level)(arrays)[0], arrays)


@pytest.mark.parametrize(
    "name",
    [f"gguf:{name}" for name in ("q4_1", "q8_0", "mxfp4", "tq2_0", "q2_k", "q6_k", "iq4_xs")],
)
def test_pairs_change_no_bit(name: str) -> None:
    """Nor does the number of rows that share what is unpacked."""
    arrays = operands(name, 9, 2 if FORMATS[name].size > 32 else 11, 40)
    depth = arrays["q"].shape[1]
    n = ost.Variable("n", 1, 9)
    g = ost.Graph("pairs")
    x = g.input("x", (n, depth))
    g.set_outputs([g.packed_matmul(x, g.param("w", arrays["w"].shape, "uint8"), name)])
    data = np.random.default_rng(1).standard_normal((9, depth)).astype(np.float32)
    found = []
    for on in (True, False):
        options = ost.CompileOptions(target="avx2", byte_pairs=on)
        compiled = ost.Session("cpu", threads=1).compile(g, {"w": arrays["w"]}, options=options)
        (kernel,) = (k for k in compiled.plan.kernels if "packed" in k.name)
        assert f"blocks of {name} by {4 if on else 2}" in kernel.loops
        found.append([compiled.run({"x": data[:rows]})[0] for rows in (1, 2, 5, 7, 8, 9)])
    for some, others in zip(*found, strict=True):
        np.testing.assert_array_equal(some, others)
    for rows in found[0]:
        np.testing.assert_array_equal(rows, found[0][-1][: len(rows)])


def test_columns_fill_panels_with_nothing_else(lowered: Lowered) -> None:
    """A panel has the bytes of its blocks, one for each 6-bit scale, two small ones in one."""
    extra = {"gguf:q3_k": 4, "gguf:q4_k": 4, "gguf:q5_k": 4, "gguf:iq4_xs": 2}
    for name in COMPUTED:
        kernels = lowered(graph(name, operands(name, 1, 1, 1)), "avx2").kernels
        (form,) = (kernel.b_format for kernel in kernels if isinstance(kernel, Gemm))
        assert isinstance(form, BlockPanels)
        assert form.column_bytes == FORMATS[name].nbytes + extra.get(name, 0)


@pytest.mark.parametrize("name", ["gguf:q4_0", "gguf:q5_k", "gguf:iq4_nl"])
def test_the_bits_of_a_row(level: str, name: str) -> None:
    arrays = operands(name, 19, 2, 70)
    n = ost.Variable("n", 1, 19)
    form = FORMATS[name]
    g = ost.Graph("rows")
    x = g.input("x", (n, 2 * form.size))
    g.set_outputs([g.packed_matmul(x, g.param("w", arrays["w"].shape, "uint8"), name)])
    options = ost.CompileOptions(target=level)
    compiled = ost.Session("cpu", threads=2).compile(g, {"w": arrays["w"]}, options=options)
    data = np.random.default_rng(0).standard_normal((19, 2 * form.size)).astype(np.float32)
    (whole,) = compiled.run({"x": data})
    for first, count in ((0, 1), (18, 1), (1, 2), (2, 7), (0, 8), (3, 9), (5, 13)):
        (some,) = compiled.run({"x": data[first : first + count]})
        np.testing.assert_array_equal(some, whole[first : first + count])


@pytest.mark.parametrize("name", ["gguf:q4_k", "gguf:q6_k", "gguf:q8_0"])
def test_prefetching_changes_no_bit(name: str) -> None:
    """Of weights that no cache holds; one row does without where the hardware keeps up."""
    depth, target = 2048, TargetSpec.host()
    one_row = target.vector_bytes < target.caches.line or processor_facts.few_rows_prefetch()
    blocks = depth // FORMATS[name].size
    x = np.random.default_rng(2).standard_normal((9, depth)).astype(np.float32)
    for rows in (1, 9):
        arrays = operands(name, rows, blocks, 520)
        g = ost.Graph("prefetch")
        w = g.param("w", arrays["w"].shape, "uint8", value=arrays["w"])
        g.set_outputs([g.packed_matmul(g.input("x", (rows, depth)), w, name)])
        found = []
        for on in (True, False):
            options = ost.CompileOptions(prefetch=on)
            compiled = ost.Session("cpu", threads=1).compile(g, options=options)
            (kernel,) = (k for k in compiled.plan.kernels if "packed" in k.name)
            assert ("prefetch" in kernel.loops) == (on and (one_row or rows == 9))
            found.append(compiled.run({"x": x[:rows]})[0])
        np.testing.assert_array_equal(*found)
