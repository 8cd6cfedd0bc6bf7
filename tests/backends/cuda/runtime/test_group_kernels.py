"""Kernels for groups of four warps, on a GPU that has their instructions, against the oracle."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw

pytestmark = pytest.mark.skipif(not ost.is_available("cuda"), reason="needs an NVIDIA GPU")

#: Elements of queries and features of values.
WIDTHS = ((64, 64), (128, 64), (64, 128), (128, 128), (80, 64))

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 70},
    "softcap": {"softcap": 1.5, "scale": -0.7},
    "mask": {"mask": "bool"},
}

#: Rows, columns, and terms of a sum.
PRODUCTS = ((2048, 1024, 64), (1500, 1100, 200), (4096, 136, 72), (333, 2056, 1032))


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cuda")


def drawn(name: str) -> Draw:
    return Draw(ost.Graph("kernels"), np.random.default_rng(zlib.crc32(name.encode())))


def attend(
    session: ost.Session, sizes: tuple[int, ...], dtype: str, mask: str = "", **options: Any
) -> None:
    """Check attention of batch, heads, key heads, queries, keys, and two widths."""
    batch, heads, key_heads, queries, keys, size, features = sizes
    draw = drawn(f"{sizes} {dtype} {options}")
    q = draw.of((batch, heads, queries, size), dtype)
    k = draw.of((batch, key_heads, keys, size), dtype)
    v = draw.of((batch, key_heads, keys, features), dtype)
    if mask:
        options["mask"] = draw.of((1, 1, queries, keys), mask)
    draw.g.set_outputs([draw.g.attention(q, k, v, **options)])
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions())])


@pytest.mark.parametrize(("width", "keys"), list(itertools.product(WIDTHS, (1, 64, 65, 128, 513))))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(session: ost.Session, width: tuple[int, int], keys: int, dtype: str) -> None:
    attend(session, (1, 70, 70, 130, keys, *width), dtype)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("width", [(64, 64), (128, 128)])
def test_options_of_attention(session: ost.Session, width: tuple[int, int], option: str) -> None:
    attend(session, (3, 72, 9, 197, 197, *width), "bfloat16", **OPTIONS[option])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("product", PRODUCTS)
def test_matmul(
    session: ost.Session, product: tuple[int, int, int], transposed: bool, dtype: str
) -> None:
    rows, columns, depth = product
    draw = drawn(f"{product} {dtype}")
    a = draw.of((rows, depth), dtype)
    b = draw.of((columns, depth) if transposed else (depth, columns), dtype)
    b = draw.g.permute_dims(b, (1, 0)) if transposed else b
    draw.g.set_outputs([draw.g.relu(draw.g.matmul(a, b))])
    options = ost.CompileOptions(library_products=False)
    check_against_oracle(draw.g, draw.arrays, [(session, options)])


@pytest.mark.parametrize("channels", [64, 72, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution(session: ost.Session, channels: int, stride: int) -> None:
    draw = drawn(f"{channels} {stride}")
    x = draw.of((4, channels, 57, 57), "float16")
    w = draw.of((96, channels, 3, 3), "float16")
    draw.g.set_outputs([draw.g.relu(draw.g.conv(x, w, stride=stride, padding=1))])
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions())])


def test_sample(session: ost.Session) -> None:
    """One kernel of each kind: few, since tools that watch every access are slow."""
    attend(session, (1, 35, 5, 257, 257, 64, 64), "bfloat16", causal=True)
    attend(session, (1, 35, 35, 257, 100, 128, 128), "float16")
    draw = drawn("sample")
    a, b = draw.of((2048, 200), "float16"), draw.of((200, 1100), "float16")
    draw.g.set_outputs([draw.g.relu(draw.g.matmul(a, b))])
    options = ost.CompileOptions(library_products=False)
    check_against_oracle(draw.g, draw.arrays, [(session, options)])
