"""Building several objects with several threads."""

from __future__ import annotations

import threading

import pytest

from ostinato.cache.builds import build_all
from ostinato.cache.objects import ObjectCache


def constant(number: int):
    return lambda: lambda: str(number).encode()


def finished_by(finish):
    """A build that runs without the interpreter."""
    return lambda: finish


@pytest.mark.parametrize("helpers", [0, 1, 3, 50])
def test_every_key_has_its_object(tmp_path, helpers):
    cache = ObjectCache(tmp_path)
    told: list[int] = []
    builds = {f"key{k}": constant(k) for k in range(20)}
    objects = build_all(cache, builds, helpers=helpers, report=told.append)
    assert objects == {f"key{k}": str(k).encode() for k in range(20)}
    assert told == list(range(1, 21))
    assert (cache.counters.hits, cache.counters.misses) == (0, 20)


def test_what_is_in_the_cache_starts_no_thread(tmp_path, monkeypatch):
    builds = {f"key{k}": constant(k) for k in range(5)}
    build_all(ObjectCache(tmp_path), builds)
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    cache = ObjectCache(tmp_path)
    assert len(build_all(cache, builds, helpers=3)) == 5
    assert (cache.counters.disk_hits, cache.counters.misses) == (5, 0)


def test_threads_build_at_the_same_time(tmp_path):
    """Each build waits for the others: one thread alone would never get on."""
    together = threading.Barrier(3, timeout=30)

    def build() -> bytes:
        together.wait()
        return b"met"

    builds = {f"key{k}": finished_by(build) for k in range(3)}
    assert set(build_all(ObjectCache(tmp_path), builds, helpers=2).values()) == {b"met"}


@pytest.mark.parametrize("helpers", [0, 2])
@pytest.mark.parametrize("broken", [0, 7, 19])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_build_raises_arrives(tmp_path, helpers, broken, at_once):
    def fail() -> bytes:
        raise ValueError("no code")

    failing = fail if at_once else finished_by(fail)
    builds = {f"key{k}": failing if k == broken else constant(k) for k in range(20)}
    cache = ObjectCache(tmp_path)
    with pytest.raises(ValueError, match="no code"):
        build_all(cache, builds, helpers=helpers)
    builds[f"key{broken}"] = constant(broken)
    assert build_all(cache, builds, helpers=helpers)[f"key{broken}"] == str(broken).encode()


def test_nothing_to_build(tmp_path):
    assert build_all(ObjectCache(tmp_path), {}, helpers=2) == {}


def test_once_something_is_raised_nothing_more_is_begun(tmp_path):
    begun: list[int] = []
    failing = threading.Event()

    def fail() -> bytes:
        failing.set()
        raise ValueError("no code")

    def slow(number: int) -> bytes:
        begun.append(number)
        failing.wait(30)
        return b"code"

    builds = {"first": finished_by(lambda: slow(0)), "broken": finished_by(fail)}
    builds |= {f"key{k}": finished_by(lambda k=k: slow(k)) for k in range(1, 20)}
    with pytest.raises(ValueError, match="no code"):
        build_all(ObjectCache(tmp_path), builds, helpers=1)
    assert len(begun) < 3


def test_builds_are_begun_in_order_by_this_thread(tmp_path):
    begun: list[tuple[int, str]] = []

    def begin(number: int):
        begun.append((number, threading.current_thread().name))
        return lambda: b"code"

    builds = {f"key{k}": lambda k=k: begin(k) for k in range(30)}
    build_all(ObjectCache(tmp_path), builds, helpers=3)
    assert begun == [(k, threading.current_thread().name) for k in range(30)]


@pytest.mark.parametrize("helpers", [0, 2])
def test_few_builds_are_begun_ahead(tmp_path, helpers):
    """A build takes memory from its begin until it is finished, so few are open at a time."""
    open_, most = set[int](), 0

    def begin(number: int):
        nonlocal most
        open_.add(number)
        most = max(most, len(open_))

        def finish() -> bytes:
            open_.discard(number)
            return b"code"

        return finish

    build_all(
        ObjectCache(tmp_path),
        {f"key{k}": lambda k=k: begin(k) for k in range(200)},
        helpers=helpers,
    )
    assert most < 30
