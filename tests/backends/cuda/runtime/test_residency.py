"""Experts that do not all stay in the GPU's memory: bits, transfers, statistics, and clones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]

EXPERTS, FEATURES, HIDDEN = 7, 40, 24
ONE = 3 * FEATURES * HIDDEN * 4  # bytes of an expert


def graph(tokens: Any = 2, dtype: Any = "float32", layers: int = 2) -> ost.Graph:
    g = ost.Graph("layers")
    x = g.input("x", (tokens, FEATURES), dtype)
    for number in range(layers):
        router = g.param(f"{number}.router", (FEATURES, EXPERTS), dtype)
        wide, narrow = (EXPERTS, FEATURES, HIDDEN), (EXPERTS, HIDDEN, FEATURES)
        shapes = {"gate": wide, "up": wide, "down": narrow}
        matrices = [g.param(f"{number}.{name}", s, dtype) for name, s in shapes.items()]
        x = x + g.moe(x, router, *matrices, k=2)
    g.set_outputs([x])
    return g


def weights_of(g: ost.Graph) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {
        name: (rng.standard_normal(p.shape) / np.sqrt(p.shape[-2])).astype(p.dtype.numpy)
        for name, p in g.params.items()
    }


def tokens_of(count: int, dtype: Any = np.float32, seed: int = 0) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(dtype)}


def pair(
    session: ost.Session,
    folder: Path,
    budget: int | None,
    tokens: Any = 2,
    dtype: Any = "float32",
    **options: bool,
) -> tuple[ost.CompiledGraph, ost.CompiledGraph]:
    """The graph with its experts in a file, and with all of them in memory."""
    g, chosen = graph(tokens, dtype), ost.CompileOptions(**options)
    weights, path = weights_of(g), folder / "experts.safetensors"
    inside = {name: a for name, a in weights.items() if a.ndim == 2}
    ost.moe.write_safetensors(path, {n: a for n, a in weights.items() if a.ndim == 3})
    stored = session.compile(
        g,
        params=inside,
        experts=ost.moe.ExpertFile(path),
        expert_budget=budget,
        options=chosen,
    )
    return stored, session.compile(g, params=weights, options=chosen)


@pytest.mark.parametrize(
    ("budget", "slots"), [(None, 7), (14 * ONE, 7), (10 * ONE, 3), (6 * ONE, 1), (4 * ONE, 0)]
)
@pytest.mark.parametrize("optimize", [True, False])
def test_budgets_change_no_bit(
    session: ost.Session, tmp_path: Path, budget: int | None, slots: int, optimize: bool
) -> None:
    compiled, plain = pair(session, tmp_path, budget, optimize=optimize)
    assert [layer.slots for layer in compiled.moe_layers] == [slots] * 2
    assert [layer.experts for layer in compiled.moe_layers] == [EXPERTS] * 2
    for step in range(3):
        x = tokens_of(2, seed=step)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
    assert (compiled.moe_transfers.bytes_staged == 0) == (slots == EXPERTS)


@pytest.mark.parametrize("tokens", [1, 11, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_of_tokens_and_dtypes(
    session: ost.Session, tmp_path: Path, tokens: int, dtype: Any
) -> None:
    name = np.dtype(dtype).name
    compiled, plain = pair(session, tmp_path, 9 * ONE, tokens, name)
    x = tokens_of(tokens, dtype)
    np.testing.assert_array_equal(compiled.run(x), plain.run(x))


def test_sizes_that_vary(session: ost.Session, tmp_path: Path) -> None:
    tokens = ost.Variable("tokens", 1, 33)
    compiled, plain = pair(session, tmp_path, 9 * ONE, tokens)
    compiled.enable_moe_topk_capture(EXPERTS)
    for count in (1, 33, 2, 17):
        x = tokens_of(count, seed=count)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
        ids = compiled.take_moe_topk_capture()
        assert ids is not None
        assert [found.shape for found in ids] == [(count, 2)] * 2


def test_masks_change_no_bit_and_move_no_more_than_they_must(
    session: ost.Session, tmp_path: Path
) -> None:
    compiled, plain = pair(session, tmp_path, 10 * ONE)
    slots = compiled.moe_layers[0].slots
    assert slots == 3
    rng = np.random.default_rng(2)
    before = [np.arange(EXPERTS) < slots] * 2
    for step in range(10):
        masks = [np.zeros(EXPERTS, np.bool_) for _ in range(2)]
        for mask in masks:
            mask[rng.permutation(EXPERTS)[: rng.integers(0, slots + 1)]] = True
        former = compiled.moe_transfers
        compiled.set_moe_resident_experts_per_layer(masks)
        after = compiled.moe_transfers
        promoted = sum(np.count_nonzero(m & ~b) for m, b in zip(masks, before, strict=True))
        demoted = sum(np.count_nonzero(b & ~m) for m, b in zip(masks, before, strict=True))
        assert after.promotions - former.promotions == promoted
        assert after.demotions - former.demotions == demoted
        assert after.bytes_moved - former.bytes_moved <= promoted * ONE
        before = masks
        x = tokens_of(2, seed=step)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
        stats = compiled.take_moe_residency_stats()
        assert stats is not None
        assert stats.gpu_tokens + stats.cpu_tokens == 2 * 2 * 2
        staged = compiled.moe_transfers.bytes_staged - after.bytes_staged
        assert staged <= stats.cpu_expert_calls * ONE
        assert compiled.take_moe_residency_stats() is None
    with pytest.raises(ost.InputError):
        compiled.set_moe_resident_experts(np.ones(EXPERTS, np.bool_))
    np.testing.assert_array_equal(compiled.run(x), plain.run(x))


def test_the_loop_counts_what_a_run_has_called(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 10 * ONE)
    pools = [ost.ExpertPool(layer.experts, layer.slots or 0) for layer in compiled.moe_layers]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=2))
    g = graph()
    reference = ost.Session("cpu").compile(g, params=weights_of(g))
    reference.enable_moe_topk_capture(EXPERTS)
    compiled.enable_moe_topk_capture(EXPERTS)
    for step in range(5):
        x = tokens_of(2, seed=step)
        np.testing.assert_array_equal(loop.step(x), plain.run(x))
        compiled.run(x)
        reference.run(x)
        mine, theirs = compiled.take_moe_topk_capture(), reference.take_moe_topk_capture()
        np.testing.assert_array_equal(mine, theirs)
        assert compiled.take_moe_topk_capture() is None
    counters = loop.counters
    assert counters.hits + counters.misses == sum(pool.hits + pool.misses for pool in pools)
    assert counters.promotions > 0


def test_clones_have_residents_of_their_own(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 10 * ONE)
    compiled.set_moe_resident_experts(np.arange(EXPERTS) >= EXPERTS - 3)
    twin = compiled.clone()
    twin.set_moe_resident_experts(np.arange(EXPERTS) % 3 == 0)
    for step in range(3):
        x = tokens_of(2, seed=step)
        for each in (compiled, twin):
            np.testing.assert_array_equal(each.run(x), plain.run(x))
    assert compiled.moe_transfers.promotions == 2 * 3
    assert twin.moe_transfers.promotions < 2 * 3


def test_bound_calls_replays_and_queued_runs(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 10 * ONE)
    x = tokens_of(2)
    (expected,) = plain.run(x)
    out = np.zeros_like(expected)
    call = compiled.bind(x, [out])
    context = session.context
    context.begin_graph_capture()
    call()
    context.end_graph_capture(1)
    for run in (call, call, call, lambda: context.replay_graph(1)):
        out[:] = 0
        run()
        np.testing.assert_array_equal(out, expected)
        assert compiled.take_moe_residency_stats() is not None
        compiled.set_moe_resident_experts(np.arange(EXPERTS) >= EXPERTS - 3)
    compiled.commit_no_wait(x)
    compiled.sync_pending()
    assert compiled.take_moe_residency_stats() is not None
    compiled.plan.release_intermediate_buffers()
    assert compiled.take_moe_residency_stats() is None
    np.testing.assert_array_equal(compiled.run(x)[0], expected)


def test_matmuls_that_share_ids_and_matrices_of_linear_layers(
    session: ost.Session, tmp_path: Path
) -> None:
    g = ost.Graph("grouped")
    x, ids = g.input("x", (3, 8)), g.input("ids", (3,), "int32")
    hidden = g.grouped_matmul(x, g.param("w", (EXPERTS, 8, 6)), ids)
    g.set_outputs([g.grouped_matmul(hidden, g.param("v", (EXPERTS, 6, 5)), ids)])
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(p.shape, dtype=np.float32) for n, p in g.params.items()}
    path = tmp_path / "linear.safetensors"
    matrices = {f"{n}.{e}": a[e].T.copy() for n, a in weights.items() for e in range(EXPERTS)}
    ost.moe.write_safetensors(path, matrices)
    names = {n: [f"{n}.{e}" for e in range(EXPERTS)] for n in weights}
    file = ost.moe.ExpertFile(path, names, transposed=True)
    budget = 6 * (8 * 6 + 6 * 5) * 4
    compiled = session.compile(g, experts=file, expert_budget=budget)
    assert len(compiled.moe_layers) == 1
    feeds = {"x": rng.standard_normal((3, 8), dtype=np.float32), "ids": np.array([6, -2, 1], "i4")}
    found = compiled.run(feeds)
    np.testing.assert_array_equal(found, session.compile(g, params=weights).run(feeds))
    compiled.enable_moe_topk_capture(EXPERTS)
    compiled.run(feeds)
    (taken,) = compiled.take_moe_topk_capture() or [None]
    assert taken is not None
    assert taken.tolist() == [6, 5, 1]


def test_rows_that_are_padding_do_not_count(session: ost.Session, tmp_path: Path) -> None:
    compiled, _ = pair(session, tmp_path, 10 * ONE, 8)
    compiled.enable_moe_topk_capture(EXPERTS)
    x = tokens_of(8)
    compiled.run(x)
    whole = compiled.take_moe_topk_capture()
    assert whole is not None
    with compiled.active_extent(3, 8):
        compiled.run(x)
    part = compiled.take_moe_topk_capture()
    np.testing.assert_array_equal(part, [ids[:3] for ids in whole])


def test_what_is_refused(session: ost.Session, tmp_path: Path) -> None:
    with pytest.raises(ost.InputError, match=r"expert_budget is 1 bytes, but .* 46,080"):
        pair(session, tmp_path, 1)
    compiled, _ = pair(session, tmp_path, 10 * ONE)
    with pytest.raises(ost.InputError, match="in the file of experts"):
        compiled.set_param("0.up", np.zeros((EXPERTS, FEATURES, HIDDEN), np.float32))
    other = ost.Graph("other")
    w = other.param("w", (EXPERTS, 2, 2))
    other.set_outputs([w + other.input("x", (2, 2))])
    path = tmp_path / "other.safetensors"
    ost.moe.write_safetensors(path, {"w": np.zeros((EXPERTS, 2, 2), np.float32)})
    with pytest.raises(ost.InputError, match="also read by"):
        session.compile(other, experts=ost.moe.ExpertFile(path))
    compiled.plan.release_all_buffers()
    with pytest.raises(ost.PlanError):
        compiled.run(tokens_of(2))
