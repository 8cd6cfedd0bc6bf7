"""The attention kernel against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu.rules.attention import AttentionKernel
from ostinato.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType
from ostinato.lower.loopir.text import kernel_text
from ostinato.ops.builder import Graph
from ostinato.reference import evaluate
from ostinato.variables import Variable
from ostinato.variables import evaluate as size_of
from tests.backends.cpu.levels import across_levels

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

TOLERANCE = {FLOAT64: 1e-12, FLOAT32: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.5e-2}

#: Batch, query heads, key heads, queries, keys, depth, features.
SIZES = [
    (1, 1, 1, 1, 1, 1, 1), (2, 3, 3, 5, 7, 8, 8), (1, 2, 2, 17, 33, 16, 15),
    (2, 4, 2, 3, 40, 17, 33),
    (1, 8, 1, 1, 65, 64, 64), (1, 2, 1, 70, 70, 32, 32), (1, 1, 1, 130, 127, 5, 3),
    (1, 1, 1, 2, 600, 20, 100), (1, 3, 3, 16, 16, 64, 130), (2, 2, 2, 4, 0, 8, 8),
]  # fmt: skip


def attend(
    sizes: tuple[Any, ...],
    dtype: DType = FLOAT32,
    mask: tuple[tuple[Any, ...], DType] | None = None,
    **options: Any,
) -> Graph:
    batch, heads, groups, length, keys, depth, features = sizes
    g = Graph("attention")
    operands = [
        g.input("q", (batch, heads, length, depth), dtype),
        g.input("k", (batch, groups, keys, depth), dtype),
        g.input("v", (batch, groups, keys, features), dtype),
    ]
    if mask is not None:
        options["mask"] = g.input("mask", *mask)
    g.set_outputs([g.attention(*operands, **options)])
    return g


def inputs_of(g: Graph, **sizes: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    arrays: dict[str, Array] = {}
    for name, value in g.inputs.items():
        shape = tuple(size_of(dim, sizes) for dim in value.shape)
        if value.dtype == BOOL:
            arrays[name] = rng.random(shape) < 0.6
        else:
            arrays[name] = rng.standard_normal(shape).astype(value.dtype.numpy)
    return arrays


def compare(
    run: Any, g: Graph, arrays: dict[str, Array], dtype: DType = FLOAT32, **sizes: int
) -> None:
    (got,) = run(arrays, **sizes)
    (want,) = evaluate(g, arrays)
    assert got.dtype == want.dtype
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
    )


def check(lowered: Lowered, level: str, g: Graph, dtype: DType = FLOAT32) -> Any:
    run = lowered(g, level)
    assert sum(isinstance(k, AttentionKernel) for k in run.kernels) == 1
    compare(run, g, inputs_of(g), dtype)
    return run


@pytest.mark.parametrize(("level", "sizes"), across_levels(SIZES), indirect=["level"])
def test_sizes(lowered: Lowered, level: str, sizes: tuple[int, ...]) -> None:
    check(lowered, level, attend(sizes))


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT16, BFLOAT16], ids=str)
def test_dtypes(lowered: Lowered, level: str, dtype: DType) -> None:
    check(lowered, level, attend((2, 4, 2, 9, 35, 20, 18), dtype, causal=True), dtype)


@pytest.mark.parametrize("window", [None, 1, 5, 300])
@pytest.mark.parametrize(
    ("level", "sizes"),
    across_levels([(1, 2, 2, 66, 66), (1, 4, 2, 7, 90), (1, 6, 2, 40, 700), (1, 2, 1, 9, 4)]),
    indirect=["level"],
)
def test_causal_and_windows(
    lowered: Lowered, level: str, sizes: tuple[int, ...], window: int | None
) -> None:
    check(lowered, level, attend((*sizes, 16, 16), causal=True, window=window))
    if window is not None and level != "sse2":
        check(lowered, level, attend((*sizes, 16, 16), window=window))


@pytest.mark.parametrize(
    ("level", "shape"),
    across_levels([(2, 1, 1, 37), (6, 37), (2, 4, 6, 37), (1,), (4, 6, 1)]),
    indirect=["level"],
)
def test_masks(lowered: Lowered, level: str, shape: tuple[int, ...]) -> None:
    sizes = (2, 4, 2, 6, 37, 12, 20)
    check(lowered, level, attend(sizes, mask=(shape, BOOL)))
    check(lowered, level, attend(sizes, mask=(shape, FLOAT32), causal=True))


def test_a_mask_over_keys_that_are_held_in_turns(lowered: Lowered, level: str) -> None:
    g = attend((1, 2, 2, 3, 600, 8, 8), mask=((2, 3, 600), BOOL))
    run = lowered(g, level)
    arrays = inputs_of(g)
    arrays["mask"][0, 0, :300] = False
    arrays["mask"][1, :, 280:] = False
    arrays["mask"][1, 2] = False
    compare(run, g, arrays)


def test_scale_and_softcap(lowered: Lowered, level: str) -> None:
    sizes = (1, 2, 2, 5, 21, 16, 16)
    check(lowered, level, attend(sizes, scale=1.0))
    check(lowered, level, attend(sizes, scale=-0.7, softcap=2.5, causal=True))


def test_rows_that_attend_to_nothing_give_zeros(lowered: Lowered, level: str) -> None:
    g = attend((1, 1, 1, 4, 20, 8, 8), mask=((4, 20), FLOAT32))
    arrays = inputs_of(g)
    arrays["mask"][2] = -np.inf
    arrays["v"][0, 0, 3] = np.float32(1e30)
    (got,) = lowered(g, level)(arrays)
    assert (got[0, 0, 2] == 0).all()
    compare(lowered(g, level), g, arrays)


def test_no_queries_give_no_results(lowered: Lowered, level: str) -> None:
    g = attend((1, 2, 1, 0, 5, 8, 8), causal=True)
    (got,) = lowered(g, level)(inputs_of(g))
    assert got.size == 0


def test_great_scores_later_correct_the_sums(lowered: Lowered, level: str) -> None:
    g = attend((1, 1, 1, 3, 900, 4, 4), scale=1.0)
    arrays = inputs_of(g)
    arrays["k"][0, 0] *= np.linspace(0, 60, 900, dtype=np.float32)[:, None]
    arrays["k"][0, 0, :256] -= 100
    compare(lowered(g, level), g, arrays)


def test_nan_stays_in_its_row(lowered: Lowered, level: str) -> None:
    g = attend((1, 1, 1, 3, 20, 8, 8))
    arrays = inputs_of(g)
    arrays["q"][0, 0, 1, 0] = np.nan
    (got,) = lowered(g, level)(arrays)
    assert np.isnan(got[0, 0, 1]).all()
    assert not np.isnan(got[0, 0, ::2]).any()


@pytest.mark.parametrize("causal", [False, True])
def test_symbolic_sizes(lowered: Lowered, level: str, causal: bool) -> None:
    b, q, k = Variable("B", 0, 3), Variable("Q", 0, 70), Variable("K", 0, 300)
    g = attend((b, 4, 2, q, k, 16, 24), mask=((b, 1, 1, k), BOOL), causal=causal)
    run = lowered(g, level)
    for sizes in [
        (3, 70, 300),
        (1, 1, 1),
        (2, 5, 5),
        (1, 33, 257),
        (1, 9, 4),
        (2, 3, 0),
        (0, 3, 3),
    ]:
        named = dict(zip("BQK", sizes, strict=True))
        compare(run, g, inputs_of(g, **named), **named)


def test_of_a_fused_projection(lowered: Lowered, level: str) -> None:
    """Queries, keys and values are views of one matrix, and read where they are."""
    s = Variable("S", 1, 50)
    g = Graph("fused")
    x = g.reshape(g.input("x", (2, s, 3 * 4 * 16), FLOAT32), (2, s, 3, 4, 16))
    q, k, v = (g.permute_dims(x[:, :, i], (0, 2, 1, 3)) for i in range(3))
    mixed = g.permute_dims(g.attention(q, k, v, causal=True), (0, 2, 1, 3))
    g.set_outputs([g.reshape(mixed, (2, s, 64))])
    run = lowered(g, level)
    # Nothing is copied in front of it, and its result is stored as the rows that are asked for.
    assert isinstance(run.kernels[0], AttentionKernel)
    (buffer,) = (b for b in run.program.calls[0].writes())
    assert [str(size) for size in buffer.type.shape] == ["2", "S", "4", "16"]
    for length in (50, 1, 13):
        compare(run, g, inputs_of(g, S=length), S=length)


def test_of_transposed_keys_and_values(lowered: Lowered, level: str) -> None:
    g = Graph("transposed")
    q = g.input("q", (1, 2, 5, 12), FLOAT32)
    k = g.permute_dims(g.input("k", (1, 2, 12, 37), FLOAT32), (0, 1, 3, 2))
    v = g.permute_dims(g.input("v", (37, 9, 1, 2), FLOAT32), (2, 3, 0, 1))
    g.set_outputs([g.attention(g.permute_dims(q, (0, 1, 2, 3)), k, v)])
    check(lowered, level, g)


def test_of_values_computed_elsewhere(lowered: Lowered, level: str) -> None:
    g = Graph("computed")
    q, k, v = (g.input(name, (1, 2, 9, 16), FLOAT32) for name in "qkv")
    rows = g.reshape(g.concat([q, q], axis=3), (1, 2, 18, 16))
    g.set_outputs([g.attention(g.flip(rows, 2)[:, :, 1:10], k * 2.0, g.flip(v, 2)) + 1.0])
    check(lowered, level, g)


def test_items_are_blocks_of_rows(lowered: Lowered) -> None:
    run = lowered(attend((1, 12, 12, 128, 128, 64, 64)), "host")
    (kernel,) = run.kernels
    assert kernel.extent == 24
    assert kernel.scratch_bytes < 256 << 10


@pytest.mark.parametrize("length", [1, 2, 37])
def test_rows_that_are_not_evenly_spaced(lowered: Lowered, level: str, length: int) -> None:
    """Heads share keys, and stand beside one another in memory."""
    g = Graph("grouped")
    q = g.permute_dims(g.input("q", (2, length, 6, 16), FLOAT32), (0, 2, 1, 3))
    k, v = (g.input(name, (2, 2, 40, 16), FLOAT32) for name in "kv")
    g.set_outputs([g.attention(q, k, v, causal=True)])
    (kernel,) = check(lowered, level, g).kernels
    assert (kernel.score_gemm.row_stride is None) == (length > 1)


def test_text_tells_kernels_apart(lowered: Lowered) -> None:
    sizes = (1, 2, 1, 5, 21, 16, 16)
    variants: list[dict[str, Any]] = [
        {}, {"causal": True}, {"window": 3}, {"scale": 0.5}, {"softcap": 2.0},
        {"mask": ((21,), BOOL)}, {"mask": ((5, 21), BOOL)},
    ]  # fmt: skip
    texts = [
        kernel_text(lowered(attend(sizes, **options), "host").kernels[0]) for options in variants
    ]
    assert len(set(texts)) == len(variants)
    assert texts[0] == kernel_text(lowered(attend(sizes), "host").kernels[0])


@pytest.mark.parametrize(
    ("level", "sizes"),
    across_levels([(2, 2, 2, 1, 77), (1, 8, 2, 1, 300), (1, 4, 2, 2, 9)]),
    indirect=["level"],
)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, FLOAT16], ids=str)
def test_values_of_few_rows_are_read_in_place(
    lowered: Lowered, level: str, sizes: tuple[int, ...], dtype: DType
) -> None:
    """As when tokens are generated."""
    for depth, features in [(64, 64), (19, 128)]:
        g = attend((*sizes, depth, features), dtype, causal=True, mask=((sizes[-1],), BOOL))
        (kernel,) = check(lowered, level, g, dtype).kernels
        assert (kernel.value_pitch == features) == (dtype != FLOAT16)


def test_many_rows_are_cut_into_larger_blocks(lowered: Lowered, level: str) -> None:
    """Blocks that end within a query head, and a last one that is short."""
    g = attend((1, 8, 4, 1031, 37, 16, 24), FLOAT32, causal=False)
    (kernel,) = check(lowered, level, g, FLOAT32).kernels
    assert kernel.tiles.block > 64


@pytest.mark.parametrize(
    ("groups", "features", "options"),
    [((4, 2), 16, {}), ((3, 3), 72, {"window": 300}), ((8, 1), 64, {"softcap": 5.0})],
    ids=str,
)
def test_a_query_has_the_same_bits_at_every_height(
    lowered: Lowered, level: str, groups: tuple[int, int], features: int, options: dict[str, Any]
) -> None:
    """Alone, among 1 to 64 queries, and before others, at fewer and more than the keys of a block.

    Sizes are known, or Variables: both kernels have the bits of one query at a time.
    """
    heads, shared = groups
    length, keys = Variable("n", 1, 64), Variable("k", 1, 700)
    g = attend((1, heads, shared, length, keys, 24, features), causal=True, **options)
    run = lowered(g, level)
    rng = np.random.default_rng(7)
    q = rng.standard_normal((1, heads, 700, 24)).astype(np.float32)
    k = rng.standard_normal((1, shared, 700, 24)).astype(np.float32)
    v = rng.standard_normal((1, shared, 700, features)).astype(np.float32)

    def attended(run: Any, stop: int, count: int) -> Array:
        """The results of the last ``count`` of ``stop`` positions."""
        given = {"q": q[:, :, stop - count : stop], "k": k[:, :, :stop], "v": v[:, :, :stop]}
        (result,) = run(given, n=count, k=stop) if run is symbolic else run(given)
        return np.asarray(result)

    symbolic = run
    for stop in (300, 700):
        alone = np.concatenate([attended(run, stop - i, 1) for i in range(63, -1, -1)], axis=2)
        for count in (2, 3, 8, 33, 64):
            np.testing.assert_array_equal(attended(run, stop, count), alone[:, :, 64 - count :])
    for count in (1, 64):
        fixed = lowered(
            attend((1, heads, shared, count, 700, 24, features), causal=True, **options), level
        )
        np.testing.assert_array_equal(attended(fixed, 700, count), alone[:, :, 64 - count :])
