"""Sampling against a definition in NumPy, token by token, and masks against single bits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from tests.token_sampling import sampled


def operands(rng, rows, vocabulary, **settings):
    given = {
        "uniform": rng.random(rows),
        "temperature": rng.uniform(0.3, 2, rows),
        "top_k": rng.integers(0, vocabulary + 3, rows),
        "top_p": rng.uniform(0.1, 1.1, rows),
        "min_p": rng.uniform(0, 0.3, rows),
    }
    logits = settings.pop("logits", None)
    if logits is None:
        logits = rng.standard_normal((rows, vocabulary)) * 2
    given |= {name: np.full(rows, value) for name, value in settings.items()}
    return [logits, *given.values()]


SETTINGS = [
    {},
    {"temperature": 0.0},
    {"temperature": -1.0},
    {"temperature": math.inf, "top_p": 1.0},
    {"temperature": math.nan},
    {"temperature": 1e-30},
    {"top_k": 1},
    {"top_k": -3, "top_p": 1.0, "min_p": 0.0},
    {"top_p": 0.0},
    {"top_p": -1.0, "top_k": 0},
    {"top_p": math.nan},
    {"min_p": 1.0},
    {"min_p": 7.0},
    {"uniform": 0.0},
    {"uniform": 1.0},
    {"uniform": math.nan},
    {"uniform": -1.0},
]


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 97])
@pytest.mark.parametrize("settings", SETTINGS)
def test_sample(run, rng, vocabulary, settings):
    arrays = operands(rng, 40, vocabulary, **settings)
    result = run(lambda g, *xs: g.sample(*xs), *arrays)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, sampled(*arrays))


def test_equal_logits_are_ranked_by_number(run, rng):
    logits = rng.integers(0, 3, (60, 12)).astype(float)
    for settings in ({"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.9}, {}):
        arrays = operands(rng, 60, 12, logits=logits, **settings)
        result = run(lambda g, *xs: g.sample(*xs), *arrays)
        np.testing.assert_array_equal(result, sampled(*arrays))


def test_impossible_tokens_are_never_chosen(run, rng):
    logits = rng.standard_normal((80, 20))
    logits[:, ::2] = -np.inf
    logits[:, 1::4] = np.nan
    for settings in SETTINGS:
        arrays = operands(rng, 80, 20, logits=logits, **settings)
        result = run(lambda g, *xs: g.sample(*xs), *arrays)
        assert np.isin(result, np.arange(3, 20, 4)).all(), settings
        np.testing.assert_array_equal(result, sampled(*arrays))


@pytest.mark.parametrize("filler", [-np.inf, np.nan])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_possible_token_give_token_0(run, rng, filler, temperature):
    logits = np.full((5, 9), filler)
    arrays = operands(rng, 5, 9, logits=logits, temperature=temperature)
    np.testing.assert_array_equal(run(lambda g, *xs: g.sample(*xs), *arrays), np.zeros(5))


def test_infinite_logits_share_everything(run, rng):
    logits = rng.standard_normal((30, 9))
    logits[:, [2, 5]] = np.inf
    arrays = operands(rng, 30, 9, logits=logits, top_k=0, top_p=1.0)
    arrays[1] = np.linspace(0, 0.999, 30)
    result = run(lambda g, *xs: g.sample(*xs), *arrays)
    np.testing.assert_array_equal(result, np.where(arrays[1] < 0.5, 2, 5))


def test_no_rows(run, rng):
    assert run(lambda g, *xs: g.sample(*xs), *operands(rng, 0, 5)).shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": ((9,), "float32")}, "logits are floats .rows, vocabulary."),
        ({"logits": ((3, 9), "int32")}, "logits are floats"),
        ({"logits": ((3, 0), "float32")}, "a known size of 1 to"),
        ({"uniform": ((2,), "float32")}, "uniform is floats .3., one for each row"),
        ({"temperature": ((3,), "int32")}, "temperature is floats"),
        ({"top_k": ((3,), "float32")}, "top_k is integers .3."),
        ({"top_p": ((3, 1), "float32")}, "top_p is floats"),
        ({"min_p": ((), "float32")}, "min_p is floats"),
    ],
)
def test_sample_refuses(changes, message):
    good = {
        "logits": ((3, 9), "float32"),
        **dict.fromkeys(("uniform", "temperature", "top_p", "min_p"), ((3,), "float32")),
        "top_k": ((3,), "int32"),
    }
    g = Graph()
    given = {name: g.input(name, *shape) for name, shape in (good | changes).items()}
    with pytest.raises(GraphError, match=message):
        g.sample(**given)


@pytest.mark.parametrize("vocabulary", [0, 1, 31, 32, 33, 100])
def test_mask_tokens(run, rng, vocabulary):
    logits = rng.standard_normal((3, vocabulary)).astype(np.float32)
    bits = rng.integers(0, 2**32, (3, -(-vocabulary // 32)), dtype=np.uint32)
    result = run(lambda g, *xs: g.mask_tokens(*xs), logits, bits)
    wanted = logits.copy()
    for row, token in np.ndindex(logits.shape):
        if not bits[row, token // 32] >> np.uint32(token % 32) & 1:
            wanted[row, token] = -np.inf
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 3), "uint32"), ((2, 2), "uint32"), ((3, 2), "int32")]
)
def test_mask_tokens_refuses(shape, dtype):
    g = Graph()
    with pytest.raises(GraphError, match=r"bits are uint32 .3,2. for"):
        g.mask_tokens(g.input("x", (3, 40)), g.input("bits", shape, dtype))
    with pytest.raises(GraphError, match="logits are floats"):
        g.mask_tokens(g.input("y", (3, 40), "int32"), g.input("b", (3, 2), "uint32"))
