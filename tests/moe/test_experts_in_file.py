"""Experts in a file, on every device that takes them: bits, transfers, statistics, and clones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from tests.moe.layers import (
    EXPERTS,
    FEATURES,
    HIDDEN,
    ONE,
    ROOM,
    graph,
    pair,
    split,
    tokens_of,
    weights_of,
)

pytestmark = [
    pytest.mark.needs("experts_in_file", "expert_residency"),
    pytest.mark.always_on("cudahost"),
]


@pytest.mark.parametrize("optimize", [True, False])
def test_budgets_change_no_bit(session: ost.Session, tmp_path: Path, optimize: bool) -> None:
    slots = []
    for budget in (None, 20 * ROOM, 8 * ROOM, 4 * ROOM):
        compiled, plain = pair(session, tmp_path, budget, optimize=optimize)
        first, second = compiled.moe_layers
        assert first.experts == second.experts == EXPERTS
        slots.append(first.slots)
        for step in range(3):
            x = tokens_of(1, seed=step)
            np.testing.assert_array_equal(compiled.run(x), plain.run(x))
        assert (compiled.moe_transfers.bytes_staged == 0) == (first.slots == EXPERTS)
    assert slots[:2] == [EXPERTS] * 2
    assert slots == sorted(slots, reverse=True)
    assert slots[-1] < EXPERTS


@pytest.mark.parametrize("option", ["keep_intermediates", "verify"])
def test_options(session: ost.Session, tmp_path: Path, option: str) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM, **{option: True})
    np.testing.assert_array_equal(compiled.run(tokens_of(1)), plain.run(tokens_of(1)))


@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [
        pytest.param(tokens, dtype, marks=[] if j in (0, 1 + i % 3) else [pytest.mark.slow])
        for i, tokens in enumerate((1, 2, 11, 40))
        for j, dtype in enumerate((np.float32, np.float16, ml_dtypes.bfloat16, np.float64))
    ],
)
def test_numbers_of_tokens_and_dtypes(
    session: ost.Session, tmp_path: Path, tokens: int, dtype: Any
) -> None:
    compiled, plain = pair(session, tmp_path, 30 * ROOM, tokens, np.dtype(dtype).name)
    compiled.set_moe_resident_experts([False] * 5 + [True] * 2)
    x = tokens_of(tokens, dtype)
    np.testing.assert_array_equal(compiled.run(x), plain.run(x))


def test_sizes_that_vary(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 14 * ROOM, ost.Variable("tokens", 1, 33))
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
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    slots = compiled.moe_layers[0].slots
    assert slots is not None and 0 < slots < EXPERTS
    rng = np.random.default_rng(2)
    before = [np.arange(EXPERTS) < slots] * 2
    for step in range(6):
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
        x = tokens_of(1, seed=step)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
        taken = compiled.take_moe_residency_stats()
        assert taken is not None
        assert taken.gpu_tokens + taken.cpu_tokens == 2 * 2
        staged = compiled.moe_transfers.bytes_staged - after.bytes_staged
        assert staged <= taken.cpu_expert_calls * ONE
        assert compiled.take_moe_residency_stats() is None


def test_captures_are_those_of_the_cpu(session: ost.Session, tmp_path: Path) -> None:
    compiled, _ = pair(session, tmp_path, 10 * ROOM, 2)
    g = graph(2)
    reference = ost.Session("cpu").compile(g, params=weights_of(g))
    for each in (compiled, reference):
        assert each.enable_moe_topk_capture(EXPERTS)
    for step in range(5):
        for each in (compiled, reference):
            each.run(tokens_of(2, seed=step))
        taken = compiled.take_moe_topk_capture()
        np.testing.assert_array_equal(taken, reference.take_moe_topk_capture())
        assert compiled.take_moe_topk_capture() is None


def test_rows_that_are_padding_do_not_count(session: ost.Session, tmp_path: Path) -> None:
    compiled, _ = pair(session, tmp_path, 12 * ROOM, 8)
    compiled.enable_moe_topk_capture(EXPERTS)
    (expected,) = compiled.run(tokens_of(8))
    whole = compiled.take_moe_topk_capture()
    assert whole is not None
    with compiled.active_extent(3, 8):
        (found,) = compiled.run(tokens_of(8))
    np.testing.assert_array_equal(found[:3], expected[:3])
    np.testing.assert_array_equal(compiled.take_moe_topk_capture(), [ids[:3] for ids in whole])


def test_matrices_of_linear_layers_one_tensor_each(session: ost.Session, tmp_path: Path) -> None:
    g = ost.Graph("grouped")
    x, ids = g.input("x", (3, 8)), g.input("ids", (3,), "int32")
    hidden = g.grouped_matmul(x, g.param("w", (EXPERTS, 8, 6)), ids)
    g.set_outputs([g.grouped_matmul(hidden, g.param("v", (EXPERTS, 6, 5)), ids)])
    weights = weights_of(g)
    matrices = {f"{n}.{e}": a[e].T.copy() for n, a in weights.items() for e in range(EXPERTS)}
    ost.moe.write_safetensors(tmp_path / "linear", dict(reversed(matrices.items())))
    names = {n: [f"{n}.{e}" for e in range(EXPERTS)] for n in weights}
    file = ost.moe.ExpertFile(tmp_path / "linear", names, transposed=True)
    compiled = session.compile(g, experts=file)
    compiled.enable_moe_topk_capture(EXPERTS)
    feeds = {"x": tokens_of(1)["x"][:, :24].reshape(3, 8), "ids": np.array([6, -2, 1], np.int32)}
    found = compiled.run(feeds)
    np.testing.assert_array_equal(found, session.compile(g, params=weights).run(feeds))
    (taken,) = compiled.take_moe_topk_capture() or [None]
    assert taken is not None
    assert taken.tolist() == [6, 5, 1]


@pytest.mark.parametrize("source", ["input", "computed", "constant"])
def test_products_that_share_their_ids(session: ost.Session, tmp_path: Path, source: str) -> None:
    g = ost.Graph("products")
    x, given = g.input("x", (3, FEATURES)), np.array([6, -7, 2])
    ids = g.constant(given) if source == "constant" else g.input("ids", (3,), "int64")
    ids = g.minimum(ids + 1, 6) - 1 if source == "computed" else ids
    first = g.param("first", (EXPERTS, FEATURES, HIDDEN))
    second = g.param("second", (EXPERTS, HIDDEN, FEATURES))
    hidden = g.relu(g.grouped_matmul(x, first, ids) * 0.5)
    g.set_outputs([g.grouped_matmul(hidden, second, ids) + x, hidden, g.exp(x)])
    weights = weights_of(g)
    ost.moe.write_safetensors(tmp_path / "e", weights)
    plain = session.compile(g, weights)
    file = ost.moe.ExpertFile(tmp_path / "e")
    compiled = session.compile(g, experts=file, expert_budget=5 * ROOM)
    (layer,) = compiled.moe_layers
    assert layer.experts == EXPERTS
    for chosen in (given, np.array([6, 6, 6]), np.array([0, 1, 5])):
        inputs = tokens_of(3) if source == "constant" else {**tokens_of(3), "ids": chosen}
        for got, expected in zip(compiled.run(inputs), plain.run(inputs), strict=True):
            np.testing.assert_array_equal(got, expected)
        compiled.set_moe_resident_experts([False] * 6 + [True])


def test_the_loop_with_a_file(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    pools = [ost.ExpertPool(layer.experts, layer.slots) for layer in compiled.moe_layers]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=2))
    for step in range(12):
        x = tokens_of(1, seed=step % 3)
        np.testing.assert_array_equal(loop.step(x), plain.run(x))
    counters = loop.counters
    assert counters.promotions == counters.demotions > 0
    assert counters.hits + counters.misses == sum(pool.hits + pool.misses for pool in pools)


def test_clones_have_residents_of_their_own(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    compiled.set_moe_resident_experts([False] * 6 + [True])
    twin = compiled.clone()
    compiled.set_moe_resident_experts([True] + [False] * 6)
    for step in range(4):
        x = tokens_of(1, seed=step)
        for one in (compiled, twin):
            np.testing.assert_array_equal(one.run(x), plain.run(x))
    assert twin.moe_transfers.promotions == 0


def test_bound_calls_plans_and_replays(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    inputs, out = tokens_of(1), np.empty((1, FEATURES), np.float32)
    (expected,) = plain.run(inputs)
    call = compiled.bind(inputs, [out])
    call()
    np.testing.assert_array_equal(out, expected)
    session.context.begin_graph_capture()
    call()
    session.context.end_graph_capture(3)
    compiled.set_moe_resident_experts([False] * 6 + [True])  # a recording does not mind
    out[:] = 0
    assert session.context.replay_graph(3)
    np.testing.assert_array_equal(out, expected)
    assert compiled.take_moe_residency_stats() is not None
    plan = compiled.plan
    assert all(kernel.source for kernel in plan.kernels)
    assert plan.execute_profiled()


def test_queued_runs(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    inputs = [tokens_of(1, seed=seed) for seed in range(4)]
    expected = [plain.run(x) for x in inputs]
    np.testing.assert_array_equal(compiled.run_pipelined(inputs), expected)
    compiled.commit_no_wait(inputs[0])
    compiled.sync_pending()
    assert compiled.take_moe_residency_stats() is not None


def test_memory_that_is_given_back(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    (expected,) = compiled.run(tokens_of(1))
    compiled.plan.release_intermediate_buffers()
    assert compiled.take_moe_residency_stats() is None
    np.testing.assert_array_equal(compiled.run(tokens_of(1))[0], expected)
    twin = compiled.clone()
    compiled.plan.release_all_buffers()
    for call in (
        lambda: compiled.run(tokens_of(1)),
        lambda: compiled.set_moe_resident_experts([False] * EXPERTS),
        compiled.take_moe_residency_stats,
        lambda: compiled.moe_transfers,
        compiled.clone,
    ):
        with pytest.raises(ost.PlanError):
            call()
    np.testing.assert_array_equal(twin.run(tokens_of(1)), plain.run(tokens_of(1)))


def test_residents_change_between_runs_and_never_under_them(
    session: ost.Session, tmp_path: Path
) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    (expected,) = plain.run(tokens_of(1))
    slots, stop, wrong = compiled.moe_layers[0].slots, threading.Event(), list[object]()

    def run() -> None:
        while not stop.is_set():
            try:
                (out,) = compiled.run(tokens_of(1))
                wrong.extend([out] * (not np.array_equal(out, expected)))
            except Exception as error:  # pytest would only warn
                wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask = np.zeros(EXPERTS, np.bool_)
        mask[rng.permutation(EXPERTS)[:slots]] = True
        compiled.set_moe_resident_experts(mask)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_refused(session: ost.Session, tmp_path: Path) -> None:
    compiled, plain = pair(session, tmp_path, 8 * ROOM)
    with pytest.raises(ost.InputError, match="in the file of experts"):
        compiled.set_param("0.gate", np.zeros((EXPERTS, FEATURES, HIDDEN), np.float32))
    with pytest.raises(ost.InputError, match="budget has slots for"):
        compiled.set_moe_resident_experts([True] * EXPERTS)
    assert compiled.moe_transfers == ost.moe.ExpertTransfers()
    np.testing.assert_array_equal(compiled.run(tokens_of(1)), plain.run(tokens_of(1)))
    with pytest.raises(ost.InputError, match="expert_budget is"):
        pair(session, tmp_path, 1000)
    sums = graph()
    sums.set_outputs([*sums.outputs.values(), sums.sum(sums.params["0.gate"])])
    inside, outside = split(weights_of(sums))
    file = ost.moe.ExpertFile(tmp_path / "experts.safetensors")
    with pytest.raises(ost.InputError, match="also read by"):
        session.compile(sums, inside, experts=file)
    with pytest.raises(ost.InputError, match="given as well"):
        session.compile(graph(), {**inside, "0.up": outside["0.up"]}, experts=file)
    only_gate = ost.moe.ExpertFile(tmp_path / "experts.safetensors", {"0.gate": "0.gate"})
    with pytest.raises(ost.InputError, match="is not in the file of experts, others are"):
        session.compile(graph(), inside, experts=only_gate)
