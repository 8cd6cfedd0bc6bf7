"""Masks, captures and counts of experts on compiled graphs, and the loop that uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]

F32 = np.float32

pytestmark = pytest.mark.needs("expert_residency")


def grouped(
    session: ost.Session, rows: Any = 4, layers: int = 1, experts: int = 3
) -> ost.CompiledGraph:
    """Layers of one product each, whose expert ids are inputs."""
    rng = np.random.default_rng(0)
    g = ost.Graph("grouped")
    x = g.input("x", (rows, 8))
    for number in range(layers):
        ids = g.input(f"ids{number}", (rows,), "int64")
        w = g.param(f"w{number}", (experts, 8, 8), value=rng.random((experts, 8, 8), F32))
        x = g.grouped_matmul(x, w, ids)
    g.set_outputs([x])
    return session.compile(g)


def feed(*ids: list[int]) -> dict[str, Array]:
    arrays = {f"ids{number}": np.array(i, np.int64) for number, i in enumerate(ids)}
    return {"x": np.ones((len(ids[0]), 8), F32), **arrays}


def stats(compiled: ost.CompiledGraph) -> tuple[int, ...]:
    taken = compiled.take_moe_residency_stats()
    assert taken is not None
    return (
        taken.gpu_expert_calls,
        taken.gpu_tokens,
        taken.cpu_expert_calls,
        taken.cpu_tokens,
    )


def test_counts_of_one_run(session):
    compiled = grouped(session)
    assert compiled.take_moe_residency_stats() is None
    compiled.set_moe_resident_experts([False, True, True])
    compiled.run(feed([0, 1, 1, 2]))
    assert compiled.take_moe_residency_stats() == ost.MoeResidencyStats(
        gpu_expert_calls=2, cpu_expert_calls=1, gpu_tokens=3, cpu_tokens=1
    )
    assert compiled.take_moe_residency_stats() is None


def test_without_a_mask_everything_is_resident(session):
    compiled = grouped(session)
    compiled.run(feed([0, 1, 1, 2]))
    assert stats(compiled) == (3, 4, 0, 0)


def test_masks_of_layers_and_of_all_clear_each_other(session):
    compiled = grouped(session, layers=2)
    run = feed([0, 1, 1, 2], [2, 2, 2, 2])
    compiled.set_moe_resident_experts([False, True, True])
    compiled.run(run)
    assert stats(compiled) == (2 + 1, 3 + 4, 1, 1)
    compiled.set_moe_resident_experts_per_layer([[True] * 3, [False] * 3])
    compiled.run(run)
    assert stats(compiled) == (3, 4, 1, 4)
    compiled.set_moe_resident_experts([False] * 3)
    compiled.run(run)
    assert stats(compiled) == (0, 0, 4, 8)
    compiled.set_moe_resident_experts(None)
    compiled.run(run)
    assert stats(compiled) == (4, 8, 0, 0)


def test_counts_are_by_the_mask_that_was_set_when_it_ran(session):
    compiled = grouped(session)
    compiled.run(feed([0, 1, 1, 2]))
    compiled.set_moe_resident_experts([False] * 3)
    assert stats(compiled) == (3, 4, 0, 0)


@pytest.mark.parametrize(
    "mask",
    [[True], [True] * 4, [1, 0, 1], [[True] * 3], "abc", 7, [[True], [True, False]], [None] * 3],
)
def test_masks_that_do_not_fit_change_nothing(mask, session):
    compiled = grouped(session, layers=2)
    compiled.set_moe_resident_experts([False, True, True])
    with pytest.raises(ost.InputError):
        compiled.set_moe_resident_experts(mask)
    for masks in ([mask, mask], [[True] * 3, mask], [[True] * 3], [[True] * 3] * 3, 5):
        with pytest.raises(ost.InputError):
            compiled.set_moe_resident_experts_per_layer(masks)
    compiled.run(feed([0, 1, 1, 2], [0, 1, 1, 2]))
    assert stats(compiled) == (4, 6, 2, 2)


def test_capture_of_two_layers_in_order(session):
    compiled = grouped(session, layers=2)
    assert compiled.take_moe_topk_capture() is None
    compiled.run(feed([0, 1, 1, 2], [2, 0, 2, 1]))
    assert compiled.enable_moe_topk_capture(3)
    assert compiled.take_moe_topk_capture() is None  # it ran before
    compiled.run(feed([0, 1, 1, 2], [2, 0, 2, 1]))
    taken = compiled.take_moe_topk_capture()
    assert taken is not None
    np.testing.assert_array_equal(taken, [[0, 1, 1, 2], [2, 0, 2, 1]])
    assert compiled.take_moe_topk_capture() is None
    assert stats(compiled) == (6, 8, 0, 0)  # taking one leaves the other


@pytest.mark.parametrize("experts", [0, -1, 2, 4, 3.0, True, None])
def test_captures_of_other_numbers_of_experts(experts, session):
    with pytest.raises(ost.InputError):
        grouped(session).enable_moe_topk_capture(experts)


def test_a_graph_without_experts(session):
    g = ost.Graph("plain")
    g.set_outputs([g.exp(g.input("x", (2,)))])
    compiled = session.compile(g)
    compiled.run({"x": np.zeros(2, F32)})
    assert compiled.moe_layers == ()
    assert not compiled.enable_moe_topk_capture(8)
    assert compiled.take_moe_topk_capture() is None
    assert compiled.take_moe_residency_stats() is None
    with pytest.raises(ost.InputError, match="no layer"):
        compiled.set_moe_resident_experts([True])
    with pytest.raises(ost.InputError, match="no layer"):
        ost.moe.ResidencyLoop(compiled, ost.ExpertPool(2, 1), ost.TidePolicy(refresh_every=1))


def test_sizes_that_vary_and_runs_without_rows(session):
    compiled = grouped(session, ost.Variable("rows", 0, 600))
    compiled.enable_moe_topk_capture(3)
    for rows in (600, 1, 257, 0, 5):
        ids = np.random.default_rng(rows).integers(0, 3, rows).tolist()
        compiled.run({"x": np.ones((rows, 8), F32), "ids0": np.array(ids, np.int64)})
        (taken,) = compiled.take_moe_topk_capture()
        np.testing.assert_array_equal(taken, ids)
        assert stats(compiled) == (len(set(ids)), rows, 0, 0)


def test_bound_calls_and_replays_are_counted(session):
    g = ost.Graph("grouped")
    w = g.param("w", (3, 8, 8), value=np.ones((3, 8, 8), F32))
    g.set_outputs([g.grouped_matmul(g.input("x", (4, 8)), w, g.input("ids0", (4,), "int64"))])
    compiled = session.compile(g)
    arrays = feed([0, 1, 1, 2])
    call = compiled.bind(arrays, [np.empty((4, 8), F32)])
    call()
    assert stats(compiled) == (3, 4, 0, 0)
    session.context.begin_graph_capture()
    call()
    for reads in (
        compiled.take_moe_residency_stats,
        compiled.take_moe_topk_capture,
        lambda: compiled.set_moe_resident_experts([True] * 3),
        lambda: compiled.enable_moe_topk_capture(3),
    ):
        with pytest.raises(ost.CaptureError):
            reads()
    session.context.end_graph_capture(1)
    assert compiled.take_moe_residency_stats() is None
    arrays["ids0"][:] = 2
    assert session.context.replay_graph(1)
    assert stats(compiled) == (1, 4, 0, 0)


def test_memory_given_back_is_no_run(session):
    compiled = grouped(session)
    compiled.run(feed([0, 1, 1, 2]))
    compiled.plan.release_intermediate_buffers()
    assert compiled.take_moe_residency_stats() is None
    compiled.run(feed([0, 1, 1, 2]))
    assert stats(compiled) == (3, 4, 0, 0)
    compiled.plan.release_all_buffers()
    with pytest.raises(ost.PlanError):
        compiled.take_moe_residency_stats()


def test_two_models_and_their_clones_do_not_mix(session):
    one, other = grouped(session), grouped(session)
    one.set_moe_resident_experts([False] * 3)
    one.enable_moe_topk_capture(3)
    twin = one.clone()
    one.run(feed([0, 1, 1, 2]))
    assert other.take_moe_residency_stats() is twin.take_moe_residency_stats() is None
    twin.set_moe_resident_experts([True] * 3)
    other.run(feed([1, 1, 1, 1]))
    twin.run(feed([2, 2, 2, 0]))
    assert stats(one) == (0, 0, 3, 4)
    assert stats(other) == (1, 4, 0, 0)
    assert stats(twin) == (2, 4, 0, 0)
    assert other.take_moe_topk_capture() is None
    np.testing.assert_array_equal(twin.take_moe_topk_capture(), [[2, 2, 2, 0]])
    np.testing.assert_array_equal(one.take_moe_topk_capture(), [[0, 1, 1, 2]])


def moe(session: ost.Session, tokens: int = 5) -> ost.CompiledGraph:
    rng = np.random.default_rng(3)
    g = ost.Graph("moe")
    x = g.input("x", (tokens, 16))
    for number, experts in enumerate((4, 6)):
        shapes = ((16, experts), (experts, 16, 24), (experts, 16, 24), (experts, 24, 16))
        weights = [
            g.param(f"w{number}.{i}", s, value=rng.standard_normal(s).astype(F32) / 4)
            for i, s in enumerate(shapes)
        ]
        shared = [
            g.constant(rng.standard_normal(s).astype(F32)) for s in ((16, 8), (16, 8), (8, 16))
        ]
        x = x + g.moe(x, *weights, k=2, shared=shared)
    g.set_outputs([x])
    return session.compile(g)


def test_shared_experts_are_no_layers_of_their_own(session):
    compiled = moe(session)
    assert [layer.experts for layer in compiled.moe_layers] == [4, 6]
    compiled.enable_moe_topk_capture(6)
    compiled.run({"x": np.random.default_rng(0).standard_normal((5, 16)).astype(F32)})
    taken = compiled.take_moe_topk_capture()
    assert [array.shape for array in taken] == [(5, 2), (5, 2)]
    assert stats(compiled)[1] == 20
    with pytest.raises(ost.InputError):  # one mask does not fit both
        compiled.set_moe_resident_experts([True] * 4)


def test_the_loop_places_what_was_called_and_changes_no_bit(session):
    compiled, plain = moe(session, 1), moe(session, 1)
    pools = [ost.ExpertPool(4, 2), ost.ExpertPool(6, 2)]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=3))
    rng = np.random.default_rng(1)
    for step in range(8):
        x = rng.standard_normal((1, 16)).astype(F32)
        np.testing.assert_array_equal(loop.step({"x": x})[0], plain.run({"x": x})[0])
        assert loop.counters.refreshes == 1 + step // 3
    counters = loop.counters
    assert counters.steps == 8
    assert counters.hits + counters.misses == 8 * 2 * 2
    assert counters.hit_rate == counters.hits / 32
    assert counters.promotions == counters.demotions > 0
    assert counters.bytes_moved == 0  # everything is in memory anyway
    taken = compiled.take_moe_residency_stats()
    assert taken.gpu_tokens + taken.cpu_tokens == 4


def test_one_pool_for_all_layers(session):
    compiled = grouped(session, layers=2)
    pool = ost.ExpertPool(3, 1)
    loop = ost.moe.ResidencyLoop(compiled, pool, ost.TidePolicy(refresh_every=1))
    loop.step(feed([2, 2, 2, 2], [2, 2, 2, 1]))
    assert stats(compiled) == (0, 0, 3, 8)
    assert pool.resident == [2]
    loop.step(feed([2, 2, 2, 2], [2, 2, 2, 1]))
    assert stats(compiled) == (2, 7, 1, 1)


def test_loops_that_make_no_sense(session):
    policy = ost.TidePolicy(refresh_every=1)
    compiled = grouped(session, layers=2)
    for pools in ([], [ost.ExpertPool(3, 1)], [ost.ExpertPool(3, 1)] * 3, ost.ExpertPool(4, 1)):
        with pytest.raises(ost.InputError):
            ost.moe.ResidencyLoop(compiled, pools, policy)
    with pytest.raises(ost.InputError):
        ost.moe.ResidencyLoop(compiled, ost.ExpertPool(3, 1), 5)


def test_expert_ids_that_are_constants(session):
    g = ost.Graph("constant")
    w = g.param("w", (3, 8, 8), value=np.ones((3, 8, 8), F32))
    g.set_outputs([g.grouped_matmul(g.input("x", (4, 8)), w, g.constant(np.array([0, 1, 1, 2])))])
    compiled = session.compile(g)
    compiled.enable_moe_topk_capture(3)
    compiled.set_moe_resident_experts([False, True, True])
    for _ in range(2):
        assert compiled.take_moe_residency_stats() is None
        compiled.run({"x": np.ones((4, 8), F32)})
        np.testing.assert_array_equal(compiled.take_moe_topk_capture(), [[0, 1, 1, 2]])
        assert stats(compiled) == (2, 3, 1, 1)


# -- padding ---------------------------------------------------------------------------------------


def routed(upper: Any, inner: tuple[Any, ...] = ()) -> ost.Graph:
    """Two layers of experts one after the other, on ``[upper, *inner, 16]``."""
    rng = np.random.default_rng(3)
    g = ost.Graph("routed")
    x = g.input("x", (upper, *inner, 16))
    for experts in (4, 6):
        shapes = ((16, experts), (experts, 16, 24), (experts, 16, 24), (experts, 24, 16))
        weights = [
            g.constant(rng.standard_normal(shape).astype(F32) / 4, "float32") for shape in shapes
        ]
        x = x + g.moe(x, *weights, k=2)
    g.set_outputs([x])
    return g


def tokens(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal((*shape, 16)).astype(F32)


def counts(compiled: ost.CompiledGraph) -> tuple[list[Array], tuple[int, ...]]:
    taken = compiled.take_moe_topk_capture()
    assert taken is not None
    return taken, stats(compiled)


def unpadded(session: ost.Session, x: Array) -> tuple[list[Array], tuple[int, ...]]:
    """The experts of a graph compiled for just these rows."""
    compiled = session.compile(routed(x.shape[0], x.shape[1:-1]))
    compiled.enable_moe_topk_capture(6)
    compiled.run({"x": x})
    return counts(compiled)


def same_counts(found: tuple[list[Array], Any], expected: tuple[list[Array], Any]) -> None:
    for ids, wanted in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(ids, wanted)
    assert found[1] == expected[1]


@pytest.mark.parametrize("inner", [(), (3,)], ids=str)
def test_padding_rows_count_in_no_capture_and_no_statistic(inner, session):
    cache = ost.BucketedCompileCache(session, ost.power_of_two_ladder(4, 16))

    def build(upper: int) -> ost.Graph:
        return routed(upper, inner)

    for rows in (3, 16, 9, 1, 4):
        compiled = cache.get(rows, build)
        compiled.enable_moe_topk_capture(6)
        x = tokens(rows, *inner)
        cache.run_padded(rows, rows, build, {"x": x})
        found = counts(compiled)
        live = rows * (inner[0] if inner else 1)
        assert [ids.shape for ids in found[0]] == [(live, 2)] * 2
        same_counts(found, unpadded(session, x))
        assert compiled.take_moe_topk_capture() is None


def test_no_rows_in_use(session):
    cache = ost.BucketedCompileCache(session, [(1, 9)])
    compiled = cache.get(1, routed)
    compiled.enable_moe_topk_capture(6)
    cache.run_padded(1, 0, routed, {"x": tokens(0)})
    taken, numbers = counts(compiled)
    assert [ids.shape for ids in taken] == [(0, 2)] * 2
    assert numbers == (0, 0, 0, 0)


def test_the_extent_of_the_run_counts(session):
    """Not that of the moment of reading, whichever way it ran."""
    compiled, context = session.compile(routed(8)), session.context
    compiled.enable_moe_topk_capture(6)
    x, out = np.zeros((8, 16), F32), np.empty((8, 16), F32)
    x[:3] = tokens(3)
    call = compiled.bind({"x": x}, [out])
    context.begin_graph_capture()
    call()
    context.end_graph_capture(5)
    three, eight = unpadded(session, x[:3]), unpadded(session, x)
    ways = [
        call,
        lambda: compiled.run({"x": x}),
        lambda: compiled.run_slots(x),
        lambda: context.replay_graph(5),
        lambda: compiled.run_pipelined([{"x": x}, {"x": x}]),
        lambda: (compiled.commit_no_wait({"x": x}), compiled.sync_pending()),
    ]
    for run in ways:
        compiled.set_active_extent((3, 8))
        run()
        compiled.set_active_extent(None)
        same_counts(counts(compiled), three)
        run()
        compiled.set_active_extent((5, 8))
        same_counts(counts(compiled), eight)
    twin = compiled.clone()
    twin.run({"x": x})
    same_counts(counts(twin), eight)  # clones begin without an extent


def test_an_expert_pool_keeps_the_experts_that_are_used(session):
    cache = ost.BucketedCompileCache(session, [(1, 17)])

    def build(upper: int) -> ost.Graph:
        g = ost.Graph("pool")
        w = g.param("w", (4, 8, 8), value=np.ones((4, 8, 8), F32))
        ids = g.input("ids", (upper,), "int64")
        g.set_outputs([g.grouped_matmul(g.input("x", (upper, 8)), w, ids)])
        return g

    compiled = cache.get(3, build)
    compiled.enable_moe_topk_capture(4)
    feeds = {"x": np.ones((3, 8), F32), "ids": np.array([3, 2, 3])}
    cache.run_padded(3, 3, build, feeds)
    (ids,), numbers = counts(compiled)
    assert ids.tolist() == [3, 2, 3]
    assert numbers == (2, 3, 0, 0)
    pool = ost.ExpertPool(4, 1)
    pool.refresh_from_indices(ids)
    assert pool.resident == [3]


def test_rows_by_another_size_that_varies(session):
    compiled = session.compile(routed(8, (ost.Variable("length", 1, 5),)))
    compiled.enable_moe_topk_capture(6)
    for length in (5, 2):
        x = np.zeros((8, length, 16), F32)
        x[:3] = tokens(3, length)
        with compiled.active_extent(3, 8):
            compiled.run({"x": x})
        same_counts(counts(compiled), unpadded(session, x[:3]))


def test_tokens_that_are_no_padded_rows_all_count(session):
    """They come from another input, or do not divide into as many parts as there are rows."""
    g = ost.Graph("apart")
    x, aside = g.input("x", (8, 16)), g.input("aside", (16, 8))
    w = g.constant(np.ones((3, 8, 8), F32))
    ids = g.input("ids", (16,), "int64")
    mixed = g.take(g.reshape(x, (16, 8)), np.arange(12), axis=0)
    chosen = g.cast(g.argmax(mixed[:, :3], axis=1), "int64")
    g.set_outputs([x, g.grouped_matmul(aside, w, ids), g.grouped_matmul(mixed, w, chosen)])
    compiled = session.compile(g)
    compiled.enable_moe_topk_capture(3)
    numbers = np.arange(16) % 3
    feeds = {"x": tokens(8), "aside": np.ones((16, 8), F32), "ids": numbers}
    with compiled.active_extent(3, 8):
        compiled.run(feeds)
    taken = compiled.take_moe_topk_capture()
    assert taken is not None
    np.testing.assert_array_equal(taken[0], numbers)
    assert taken[1].shape == (12,)
