"""Packed formats against the decoder and the encoder of the ``gguf`` package, to the bit.

The same of a million blocks each: ``pytest tests/ops/packed -m slow`` (some minutes).
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

import ostinato as ost
from ostinato.ops.packed.decoding import decode, packed_format
from ostinato.ops.packed.encoding import ENCODERS, encode
from ostinato.ops.packed.formats import FORMATS
from ostinato.ops.packed.grid_formats import GRID_FORMATS
from tests.packed_blocks import SCALES, random_blocks

Array = np.ndarray[Any, Any]

NAMES = sorted(SCALES)
PLAIN, MANY = 10_000, 1_000_000


def gguf_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


def same_bits(actual: Array, expected: Array) -> None:
    """The same floats, signs of zeros included, one NaN being as good as another."""
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    both = np.isnan(actual)
    np.testing.assert_array_equal(
        np.where(both, 0, actual.view(np.uint32)), np.where(both, 0, expected.view(np.uint32))
    )


def compare(name: str, count: int) -> None:
    rng = np.random.default_rng(sum(name.encode()))
    for start in range(0, count, PLAIN):
        blocks = random_blocks(rng, name, min(PLAIN, count - start))
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(blocks, gguf_type(name))
        same_bits(decode(blocks, f"gguf:{name}"), expected)


def test_every_format_is_tried() -> None:
    assert {f"gguf:{name}" for name in NAMES} == {*FORMATS, *GRID_FORMATS}


@pytest.mark.parametrize("name", NAMES)
def test_elements(name: str) -> None:
    form = packed_format(f"gguf:{name}")
    assert (form.size, form.nbytes) == gguf.GGML_QUANT_SIZES[gguf_type(name)]
    compare(name, PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_elements_of_a_million_blocks(name: str) -> None:
    compare(name, MANY)


def weights(rng: np.random.Generator, count: int) -> Array:
    """Blocks of 32 of every magnitude, some of zeros, of one value, of ties."""
    blocks = rng.standard_normal((count, 32)).astype(np.float32)
    blocks *= np.exp2(rng.integers(-20, 12, (count, 1))).astype(np.float32)
    kind = rng.random(count)
    blocks[kind < 0.05] = 0
    blocks[(kind >= 0.05) & (kind < 0.1)] = 0.25
    whole = (kind >= 0.1) & (kind < 0.3)
    blocks[whole] = np.round(blocks[whole] * 2) / 2
    blocks[(kind >= 0.3) & (kind < 0.35)] *= np.float32(-1e-20)
    return blocks


@pytest.mark.parametrize("name", ENCODERS)
def test_packing(name: str) -> None:
    rows = weights(np.random.default_rng(1), PLAIN).reshape(-1, 160)
    with np.errstate(all="ignore"):
        expected = gguf.quantize(rows, gguf_type(name.removeprefix("gguf:")))
    np.testing.assert_array_equal(encode(rows, name), expected)
    half = encode(rows.astype(np.float16)[::2], name)
    np.testing.assert_array_equal(half, encode(rows.astype(np.float16)[::2].astype("f4"), name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_packing_of_a_million_blocks(name: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(MANY // PLAIN):
        blocks = weights(rng, PLAIN)
        with np.errstate(all="ignore"):
            expected = gguf.quantize(blocks, gguf_type(name.removeprefix("gguf:")))
        np.testing.assert_array_equal(encode(blocks, name), expected)


def test_shapes() -> None:
    blocks = random_blocks(np.random.default_rng(3), "q4_k", 12).reshape(2, 3, -1)
    assert decode(blocks, "gguf:q4_k").shape == (2, 3, 512)
    assert decode(np.zeros((0, 18), np.uint8), "gguf:q4_0").shape == (0, 32)
    assert encode(np.zeros((4, 0), np.float32), "gguf:q8_0").shape == (4, 0)
    turned = np.asfortranarray(blocks)
    np.testing.assert_array_equal(decode(turned, "gguf:q4_k"), decode(blocks, "gguf:q4_k"))


def test_refused() -> None:
    for wrong, message in (
        (lambda: decode(np.zeros(18, np.uint8), "q4_0"), "no packed format 'q4_0'"),
        (lambda: decode(np.zeros(19, np.uint8), "gguf:q4_0"), "blocks of 18 bytes, got uint8[19]"),
        (lambda: decode(np.zeros(18, np.int8), "gguf:q4_0"), "takes uint8"),
        (lambda: encode(np.zeros(32, np.float32), "gguf:q4_k"), "weights are packed as gguf:q8_0"),
        (lambda: encode(np.zeros(33, np.float32), "gguf:q4_0"), "blocks of 32 elements"),
        (lambda: encode(np.full(32, np.nan, np.float32), "gguf:q4_0"), "no code for"),
    ):
        with pytest.raises(ost.InputError) as caught:
            wrong()
        assert message in str(caught.value)
