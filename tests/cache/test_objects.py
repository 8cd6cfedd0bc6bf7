"""The cache of compiled objects: once per process, and never a wrong byte from disk."""

from __future__ import annotations

import os
import stat
import threading
import time

import pytest

from ostinato.cache import fingerprint
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import ObjectCache, process_cache
from ostinato.cache.store import default_directory


def never():
    raise AssertionError("this should have come from the cache")


def files(directory):
    return sorted((directory / "objects").glob("*.obj"))


def test_builds_once_and_remembers(tmp_path):
    cache = ObjectCache(tmp_path)
    assert cache.get_or_build("key", lambda: b"code") == b"code"
    assert cache.get_or_build("key", never) == b"code"
    assert (cache.counters.misses, cache.counters.hits, cache.counters.disk_hits) == (1, 1, 0)


def test_another_process_finds_it_on_disk(tmp_path):
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    cache = ObjectCache(tmp_path)
    assert cache.get_or_build("key", never) == b"code"
    assert cache.counters.disk_hits == 1
    assert cache.get_or_build("other", lambda: b"") == b""


def test_many_threads_build_once(tmp_path):
    cache = ObjectCache(tmp_path)
    builds = []
    start = threading.Barrier(16)

    def build():
        builds.append(threading.get_ident())
        time.sleep(0.05)
        return b"code"

    def ask():
        start.wait()
        results.append(cache.get_or_build("key", build))

    results: list[bytes] = []
    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"code"] * 16
    assert len(builds) == 1
    assert (cache.counters.misses, cache.counters.hits) == (1, 15)


def test_a_failed_build_reaches_its_caller_and_is_retried(tmp_path):
    cache = ObjectCache(tmp_path)

    def fail():
        raise ValueError("no code today")

    with pytest.raises(ValueError, match="no code today"):
        cache.get_or_build("key", fail)
    assert cache.get_or_build("key", lambda: b"code") == b"code"


@pytest.mark.parametrize(
    "damage",
    [
        lambda contents: b"",
        lambda contents: contents[:-1],
        lambda contents: contents[:10],
        lambda contents: contents[:-1] + bytes([contents[-1] ^ 1]),
        lambda contents: b"x" + contents[1:],
        lambda contents: contents + b"more",
    ],
)
def test_damaged_entries_are_rebuilt(tmp_path, damage):
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert ObjectCache(tmp_path).get_or_build("key", lambda: b"fresh") == b"fresh"
    assert ObjectCache(tmp_path).get_or_build("key", never) == b"fresh"


def test_entries_answer_only_to_their_own_key(tmp_path):
    cache = ObjectCache(tmp_path)
    cache.get_or_build("first", lambda: b"first code")
    (path,) = files(tmp_path)
    cache.get_or_build("second", lambda: b"second code")
    other = next(p for p in files(tmp_path) if p != path)
    path.replace(other)
    assert ObjectCache(tmp_path).get_or_build("second", lambda: b"fresh") == b"fresh"


def test_files_are_private(tmp_path):
    ObjectCache(tmp_path / "deep" / "er").get_or_build("key", lambda: b"code")
    folder = tmp_path / "deep" / "er" / "objects"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = files(tmp_path / "deep" / "er")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(folder.iterdir()) == [path]


def test_a_file_that_others_may_write_is_not_trusted(tmp_path):
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    (path,) = files(tmp_path)
    path.chmod(0o666)
    assert ObjectCache(tmp_path).get_or_build("key", lambda: b"fresh") == b"fresh"


def test_a_folder_that_others_may_enter_is_left_alone(tmp_path, caplog):
    """It may have another purpose: nothing in it is used, and its mode is not changed."""
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    (tmp_path / "objects").chmod(0o755)
    before = files(tmp_path)
    cache = ObjectCache(tmp_path)
    for key in ("key", "other"):
        assert cache.get_or_build(key, lambda: b"fresh") == b"fresh"
    assert stat.S_IMODE((tmp_path / "objects").stat().st_mode) == 0o755
    assert files(tmp_path) == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path / "objects") in caplog.text


def test_eviction_deletes_nothing_that_is_not_of_the_cache(tmp_path):
    ObjectCache(tmp_path).get_or_build("key", lambda: bytes(1000))
    folder, elsewhere = tmp_path / "objects", tmp_path / "elsewhere"
    elsewhere.mkdir()
    thesis, linked = folder / "thesis.tex", folder / f"{'0' * 64}.obj"
    for path in (thesis, folder / "notes.obj", elsewhere / "precious"):
        path.write_bytes(bytes(5000))
        os.utime(path, (0, 0))
    linked.symlink_to(elsewhere / "precious")
    os.utime(linked, (0, 0), follow_symlinks=False)
    cache = ObjectCache(tmp_path, max_bytes=3000)
    for number in range(6):
        cache.get_or_build(f"key{number}", lambda: bytes(1000))
    assert thesis.exists()
    assert (folder / "notes.obj").exists()
    assert linked.is_symlink()
    assert (elsewhere / "precious").stat().st_size == 5000
    assert 1 <= len([path for path in files(tmp_path) if path.stat().st_size < 5000]) <= 3


def test_a_folder_that_is_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    ObjectCache(elsewhere).get_or_build("key", lambda: b"code")
    before = files(elsewhere)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "objects").symlink_to(elsewhere / "objects")
    cache = ObjectCache(tmp_path / "root", max_bytes=0)
    assert cache.get_or_build("key", lambda: b"fresh") == b"fresh"
    assert files(elsewhere) == before


def test_the_table_in_memory_is_bounded(tmp_path):
    cache = ObjectCache(tmp_path, max_bytes_in_memory=10_000)
    for number in range(50):
        cache.get_or_build(f"key{number}", lambda: bytes(1000))
    assert len(cache._objects) == 10
    assert cache.get_or_build("key0", never) == bytes(1000)  # from disk
    assert (cache.counters.misses, cache.counters.disk_hits) == (50, 1)


def test_links_are_not_followed(tmp_path):
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    (path,) = files(tmp_path)
    moved = tmp_path / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)
    assert ObjectCache(tmp_path).get_or_build("key", lambda: b"fresh") == b"fresh"


def test_a_foreign_owner_is_not_trusted(tmp_path, monkeypatch):
    ObjectCache(tmp_path).get_or_build("key", lambda: b"code")
    monkeypatch.setattr(os, "getuid", lambda: 424242)
    assert ObjectCache(tmp_path).get_or_build("key", lambda: b"fresh") == b"fresh"


@pytest.mark.parametrize("obstacle", ["file", "directory entry", "missing device"])
def test_a_disk_that_cannot_be_used_is_no_error(tmp_path, obstacle):
    root = tmp_path / "root"
    if obstacle == "file":
        root.write_text("in the way")
    elif obstacle == "directory entry":
        (root / "objects").mkdir(0o700, parents=True)
        ObjectCache(root).get_or_build("key", lambda: b"code")
        (path,) = files(root)
        path.unlink()
        path.mkdir()
    else:
        root = type(root)("/proc/nowhere")
    cache = ObjectCache(root)
    assert cache.get_or_build("key", lambda: b"code") == b"code"
    assert cache.get_or_build("key", never) == b"code"
    assert ObjectCache(root).get_or_build("key", lambda: b"again") == b"again"


def test_the_least_recently_used_go_first(tmp_path):
    size = 1000
    cache = ObjectCache(tmp_path, max_bytes=10 * size)
    for number in range(8):
        cache.get_or_build(f"key{number}", lambda: b"x" * size)
    for path in files(tmp_path):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert ObjectCache(tmp_path).get_or_build("key0", never)
    for number in range(8, 12):
        cache.get_or_build(f"key{number}", lambda: b"x" * size)
    remaining = files(tmp_path)
    assert sum(path.stat().st_size for path in remaining) <= 10 * size
    assert ObjectCache(tmp_path).get_or_build("key0", never)
    assert ObjectCache(tmp_path).get_or_build("key11", never)


def test_the_directory_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "chosen"))
    assert default_directory() == tmp_path / "chosen"
    process_cache.__wrapped__().get_or_build("key", lambda: b"code")  # that of a new process
    assert files(tmp_path / "chosen")
    monkeypatch.delenv("OSTINATO_CACHE_DIR")
    assert "ostinato" in str(default_directory())


def test_keys_depend_on_every_part(monkeypatch):
    keys = {object_key("a", "b"), object_key("ab", ""), object_key("", "ab"), object_key("b", "a")}
    assert len(keys) == 4
    assert object_key("a", "b") in keys
    monkeypatch.setattr(fingerprint, "_environment", lambda _: {"sources": "another generator"})
    assert object_key("a", "b") not in keys
