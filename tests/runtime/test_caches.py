"""Caches of compiled graphs: which graph a key gets, how often it is compiled, and padding."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import ostinato as ost
from tests.devices.registered import open_session

LADDER = [(1, 9), (9, 17), (17, 33), (33, 65)]


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


def doubled(upper: int) -> ost.Graph:
    """``y = 2 x`` row by row, and ``total``, the sum over the rows."""
    g = ost.Graph(f"doubled{upper}")
    x, scale = g.input("x", (upper, 3)), g.input("scale", (3,))
    g.set_outputs({"y": x * scale, "total": g.sum(x, axis=0)})
    return g


class Builder:
    """Counts what it builds."""

    def __init__(self) -> None:
        self.built: list[int] = []

    def __call__(self, upper: int) -> ost.Graph:
        self.built.append(upper)
        return doubled(upper)


def in_threads(count, function):
    """The results of ``function`` in ``count`` threads at the same time."""
    start, results = threading.Barrier(count), [None] * count

    def run(number):
        start.wait()
        try:
            results[number] = function()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- ladders and buckets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lo", "hi", "ladder"),
    [
        (8, 64, LADDER),
        (1, 1, [(1, 2)]),
        (1, 4, [(1, 2), (2, 3), (3, 5)]),
        (64, 64, [(1, 65)]),
        (3, 10, [(1, 4), (4, 7), (7, 11)]),
        (np.int64(8), np.int64(16), [(1, 9), (9, 17)]),
    ],
)
def test_ladders(lo, hi, ladder):
    assert ost.power_of_two_ladder(lo, hi) == ladder


@pytest.mark.parametrize(("lo", "hi"), [(0, 4), (5, 4), (-1, 3)])
def test_impossible_ladders(lo, hi):
    with pytest.raises(ValueError, match="1 <= lo <= hi"):
        ost.power_of_two_ladder(lo, hi)


@pytest.mark.parametrize(
    "buckets",
    [
        [],
        [(4, 4)],
        [(5, 4)],
        [(1, 9), (8, 17)],
        [(9, 17), (1, 9)],
        [(1, 9), (1, 9)],
        [(1, 5), (7, 7)],
    ],
)
def test_bad_buckets(session, buckets):
    with pytest.raises(ValueError, match="bucket"):
        ost.BucketedCompileCache(session, buckets)


def test_a_key_belongs_to_the_range_that_holds_it(session):
    cache = ost.BucketedCompileCache(session, [(2, 5), (5, 7), (20, 21)])
    assert cache.buckets == ((2, 5), (5, 7), (20, 21))
    holders = {key: cache.bucket_of(key) for key in range(22)}
    assert {k for k, b in holders.items() if b == (2, 5)} == {2, 3, 4}
    assert {k for k, b in holders.items() if b == (5, 7)} == {5, 6}
    assert {k for k, b in holders.items() if b == (20, 21)} == {20}
    assert cache.bucket_of(-1) is None


def test_each_bucket_is_compiled_when_first_asked_for(session):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()
    assert build.built == []
    first = cache.get(3, build)
    assert first is not None
    assert cache.get(8, build) is first
    second = cache.get(9, build)
    assert second is not first
    assert cache.get(1, build) is first
    assert build.built == [8, 16]
    assert first.inputs["x"].shape == (8, 3)


@pytest.mark.parametrize("key", [0, -3, 65, 10**9])
def test_no_range_no_graph_no_build(session, key):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()
    assert cache.get(key, build) is None
    assert build.built == []


def test_many_threads_compile_a_bucket_once(session):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()

    def slow(upper):
        time.sleep(0.05)
        return build(upper)

    graphs = in_threads(12, lambda: cache.get(5, slow))
    assert len({id(graph) for graph in graphs}) == 1
    assert isinstance(graphs[0], ost.CompiledGraph)
    assert build.built == [8]


def test_buckets_compile_side_by_side(session):
    cache = ost.BucketedCompileCache(session, LADDER)
    both = threading.Barrier(2)

    def meet(upper):
        both.wait(timeout=10)  # passes only if the other bucket is being built too
        return doubled(upper)

    keys = iter([3, 12])
    graphs = in_threads(2, lambda: cache.get(next(keys), meet))
    assert all(isinstance(graph, ost.CompiledGraph) for graph in graphs)


def test_a_failed_build_reaches_all_who_wait_and_is_tried_again(session):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()
    calls = []

    def fail(upper):
        calls.append(upper)
        time.sleep(0.05)
        raise KeyError("no such weights")

    errors = in_threads(4, lambda: cache.get(5, fail))
    assert calls == [8]
    assert all(isinstance(error, KeyError) for error in errors)
    assert cache.get(5, build) is not None


def test_weights_for_all_buckets(session):
    weight = np.full((3,), 5.0, np.float32)

    def build(upper):
        g = ost.Graph("weighted")
        g.set_outputs([g.input("x", (upper, 3)) * g.param("w", (3,))])
        return g

    cache = ost.BucketedCompileCache(session, LADDER, params={"w": weight})
    for rows in (2, 30):
        _, (y,) = cache.run_padded(rows, rows, build, {"x": np.ones((rows, 3), np.float32)})
        assert (y == 5).all()


# -- builds that ask the cache ---------------------------------------------------------------------


def within(seconds, *functions):
    """The results or errors of the functions, each on a thread of its own; they must not hang."""
    results = [None] * len(functions)

    def run(number):
        try:
            results[number] = functions[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "the cache hangs"
    return results


def test_a_build_that_asks_for_its_own_bucket(session):
    cache = ost.BucketedCompileCache(session, LADDER)
    (error,) = within(10, lambda: cache.get(3, lambda upper: cache.get(upper, doubled)))
    assert isinstance(error, ost.CircularBuildError)
    assert isinstance(error, RuntimeError)
    assert "bucket (1, 9) needs bucket (1, 9)" in str(error)
    assert isinstance(cache.get(3, doubled), ost.CompiledGraph), "the next call tries again"


def test_a_build_that_asks_for_its_own_bucket_over_another(session):
    cache = ost.BucketedCompileCache(session, LADDER)

    def build(upper):
        cache.get({8: 12, 16: 3}[upper], build)
        raise AssertionError("not reached")

    (error,) = within(10, lambda: cache.get(3, build))
    assert isinstance(error, ost.CircularBuildError)
    assert "bucket (9, 17) needs bucket (1, 9) needs bucket (9, 17)" in str(error)


def test_a_build_that_asks_for_another_bucket(session):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()

    def needs_the_next(upper):
        if upper < 64:
            assert cache.get(upper + 1, needs_the_next) is not None
        return build(upper)

    (compiled,) = within(60, lambda: cache.get(3, needs_the_next))
    assert isinstance(compiled, ost.CompiledGraph)
    assert build.built == [64, 32, 16, 8]
    assert cache.get(9, build) is cache.get(16, build)
    assert len(build.built) == 4


def test_two_threads_whose_builds_ask_for_each_other(session):
    cache = ost.BucketedCompileCache(session, LADDER)
    both = threading.Barrier(2)

    def build(upper):
        both.wait(timeout=10)
        cache.get({8: 12, 16: 3}[upper], doubled)
        return doubled(upper)

    errors = within(20, lambda: cache.get(3, build), lambda: cache.get(12, build))
    assert all(isinstance(error, ost.CircularBuildError) for error in errors), errors
    for key in (3, 12):
        assert isinstance(cache.get(key, doubled), ost.CompiledGraph)


def test_two_threads_over_two_caches(session):
    buckets, plain = ost.BucketedCompileCache(session, LADDER), ost.CompileCache(session, 4)
    both = threading.Barrier(2)

    def of_buckets(upper):
        both.wait(timeout=10)
        plain.get("a", lambda: doubled(1))
        return doubled(upper)

    def of_keys():
        both.wait(timeout=10)
        buckets.get(3, doubled)
        return doubled(2)

    errors = within(20, lambda: buckets.get(3, of_buckets), lambda: plain.get("a", of_keys))
    assert all(isinstance(error, ost.CircularBuildError) for error in errors), errors


def test_one_thread_may_wait_for_the_build_of_another(session):
    cache = ost.BucketedCompileCache(session, LADDER)
    begun = threading.Event()

    def slow(upper):
        begun.set()
        time.sleep(0.1)
        return doubled(upper)

    def waiting(upper):
        begun.wait(10)
        assert isinstance(cache.get(3, doubled), ost.CompiledGraph)
        return doubled(upper)

    graphs = within(60, lambda: cache.get(3, slow), lambda: cache.get(12, waiting))
    assert all(isinstance(graph, ost.CompiledGraph) for graph in graphs), graphs


@pytest.mark.parametrize("capacity", [1, 4])
def test_builds_of_a_plain_cache_that_ask_it(session, capacity):
    cache = ost.CompileCache(session, capacity)

    def around():
        cache.get("b", lambda: cache.get("a", around))

    (error,) = within(10, lambda: cache.get("a", around))
    assert isinstance(error, ost.CircularBuildError)
    assert "key 'b' needs key 'a' needs key 'b'" in str(error)

    def outer():
        cache.get("inner", small(2))
        return small(1)()

    (compiled,) = within(60, lambda: cache.get("outer", outer))
    assert cache.get("outer", small(9)) is compiled
    assert len(cache) == min(capacity, 2)


# -- padding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 5, 8, 9, 16, 33, 64])
def test_padded_runs(session, rows):
    cache = ost.BucketedCompileCache(session, LADDER)
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    scale = np.array([1, 2, 3], np.float32)
    feeds = {"x": x, "scale": scale}
    upper, (y, total) = cache.run_padded(max(rows, 1), rows, doubled, feeds)
    assert upper == next(end - 1 for start, end in LADDER if max(rows, 1) < end)
    np.testing.assert_array_equal(y, x * scale)
    np.testing.assert_allclose(total, x.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert feeds["x"] is x


def test_the_extent_is_set_for_the_run_and_cleared(session):
    cache = ost.BucketedCompileCache(session, [(1, 5)])
    compiled = cache.get(2, doubled)
    seen = []
    run = compiled.run
    compiled.run = lambda *a, **k: seen.append(compiled._extents.own()) or run(*a, **k)
    feeds = {"x": np.ones((2, 3), np.float32), "scale": np.ones(3, np.float32)}
    cache.run_padded(2, 2, doubled, feeds)
    assert seen == [((2, 4),)]
    assert compiled._extents.own() == ()
    with pytest.raises(ost.InputError):
        cache.run_padded(2, 2, doubled, {**feeds, "scale": np.ones(4, np.float32)})
    assert seen == [((2, 4),)] * 2
    assert compiled._extents.own() == ()


def test_what_to_pad_and_trim_can_be_chosen(session):
    def build(upper):
        g = ost.Graph("two")
        a, b = g.input("a", (upper, 2)), g.input("b", (upper, 2))
        g.set_outputs([a + 1, b + 2])
        return g

    cache = ost.BucketedCompileCache(session, [(1, 5)])
    ones = np.ones((3, 2), np.float32)
    whole = np.ones((4, 2), np.float32)
    upper, (a, b) = cache.run_padded(3, 3, build, {"a": ones, "b": whole}, pad=["a"], trim=[0])
    assert upper == 4
    assert (a.shape, b.shape) == ((3, 2), (4, 2))
    assert (a == 2).all()
    assert (b[:3] == 3).all()
    _, (a, b) = cache.run_padded(3, 3, build, {"a": ones, "b": ones}, trim=[])
    assert (a.shape, b.shape) == ((4, 2), (4, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 65}, "no bucket holds 65"),
        ({"rows": 9}, "expected 0 <= rows <= 8, got 9"),
        ({"rows": -1}, "expected 0 <= rows <= 8"),
        ({"rows": 2.5}, "expected 0 <= rows <= 8, got 2.5"),
        ({"rows": 4}, "'x' is to have 4 rows"),
        ({"pad": ["scale"]}, "cannot pad 'scale' to 8 rows"),
        ({"pad": ["missing"]}, "cannot pad 'missing'.*no such input"),
        ({"pad": []}, "no input of 8 rows to pad"),
        ({"trim": [1]}, "output 1 does not have 8 rows"),
        ({"trim": [2]}, "output 2 .*no such output"),
        ({"trim": [-1]}, "output -1 .*no such output"),
        ({"inputs": {"x": np.ones((5, 3), np.float32)}}, "missing"),
        ({"inputs": {"scale": np.ones(3, np.float32)}}, "missing"),
        ({"inputs": {"x": np.ones((5, 4), np.float32), "scale": np.ones(3, np.float32)}}, "shape"),
        ({"inputs": {"x": np.ones((5, 3)), "scale": np.ones(3, np.float32)}}, "float64|f64"),
        ({"inputs": {"x": "words", "scale": np.ones(3, np.float32)}}, "'x'"),
        ({"inputs": {"x": [object()], "scale": np.ones(3, np.float32)}}, "'x'"),
        ({"inputs": {"x": np.ones((5, 3), np.float32), "other": 1}}, "unknown input 'other'"),
        ({"inputs": None}, "mapping"),
    ],
)
def test_bad_padded_runs(session, changes, message):
    cache = ost.BucketedCompileCache(session, LADDER)
    good = {
        "key": 5,
        "rows": 5,
        "build": doubled,
        "inputs": {"x": np.ones((5, 3), np.float32), "scale": np.ones(3, np.float32)},
    }
    with pytest.raises(ost.InputError, match=message):
        cache.run_padded(**{**good, **changes})
    upper, (y, _) = cache.run_padded(**good)
    assert (upper, y.tolist()) == (8, np.ones((5, 3)).tolist())


def test_padded_runs_from_many_threads(session):
    cache, build = ost.BucketedCompileCache(session, LADDER), Builder()

    def run(rows):
        x = np.full((rows, 3), rows, np.float32)
        _, (y, total) = cache.run_padded(
            rows, rows, build, {"x": x, "scale": np.full(3, 2, np.float32)}
        )
        return bool((y == 2 * x).all() and y.shape == x.shape and (total == rows * rows).all())

    def runs():
        return all(run(rows) for rows in (1, 30, 8, 12, 5, 17, 3, 64))

    assert in_threads(6, runs) == [True] * 6
    assert sorted(build.built) == [8, 16, 32, 64]


# -- the plain cache -------------------------------------------------------------------------------


def small(value: float):
    def build() -> ost.Graph:
        g = ost.Graph("small")
        g.set_outputs([g.input("x", (2,)) + value])
        return g

    return build


def counts(cache):
    return cache.hits, cache.misses, cache.evictions


def test_least_recently_used_goes_first(session):
    cache = ost.CompileCache(session, 2)
    a = cache.get("a", small(1))
    b = cache.get("b", small(2))
    assert cache.get("a", small(9)) is a
    assert counts(cache) == (1, 2, 0)
    cache.get("c", small(3))  # b goes
    assert counts(cache) == (1, 3, 1)
    assert (len(cache), "a" in cache, "b" in cache, "c" in cache) == (2, True, False, True)
    assert cache.get("a", small(9)) is a
    again = cache.get("b", small(2))  # c goes
    assert again is not b
    assert counts(cache) == (2, 4, 2)
    assert "c" not in cache
    x = np.zeros(2, np.float32)
    assert b.run({"x": x})[0].tolist() == [2, 2], "an evicted graph still runs"


def test_any_hashable_is_a_key(session):
    cache = ost.CompileCache(session, 8)
    for key in (None, (1, 2), frozenset("ab"), 1.5):
        assert cache.get(key, small(0)) is cache.get(key, small(1))
    assert counts(cache) == (4, 4, 0)
    with pytest.raises(TypeError):
        cache.get([], small(0))


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, None, "2"])
def test_bad_capacities(session, capacity):
    with pytest.raises((ValueError, TypeError)):
        ost.CompileCache(session, capacity)


def test_many_threads_compile_a_key_once(session):
    cache, calls = ost.CompileCache(session, 2), []

    def slow():
        calls.append(1)
        time.sleep(0.05)
        return small(4)()

    graphs = in_threads(10, lambda: cache.get("k", slow))
    assert len({id(graph) for graph in graphs}) == 1
    assert len(calls) == 1
    assert counts(cache) == (9, 1, 0)


def test_a_failure_is_not_kept(session):
    cache = ost.CompileCache(session, 1)
    with pytest.raises(ost.GraphError):
        cache.get("k", lambda: ost.Graph("no outputs"))
    assert "k" not in cache
    assert cache.get("k", small(1)).run({"x": np.zeros(2, np.float32)})[0].tolist() == [1, 1]


def test_eviction_while_others_compile(session):
    cache = ost.CompileCache(session, 1)

    def run():
        ok = True
        for number in (1, 2, 3, 1, 2):
            graph = cache.get(number, small(number))
            ok &= graph.run({"x": np.zeros(2, np.float32)})[0].tolist() == [number] * 2
        return ok

    assert in_threads(4, run) == [True] * 4
    hits, misses, evictions = counts(cache)
    assert hits + misses == 20
    assert evictions == misses - 1
    assert len(cache) == 1
