"""Blocks in files that are mapped: kept whole, checked, bounded, and never trusted into a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.cache import mapped_store
from ostinato.cache.mapped_store import MappedStore
from ostinato.cache.objects import ObjectCache

NBYTES = 10_000


@pytest.fixture
def store(tmp_path: Path) -> MappedStore:
    return new_store(tmp_path)


def new_store(folder: Path, max_bytes: int = 1 << 20) -> MappedStore:
    return MappedStore(folder, max_bytes, ObjectCache(folder))


def contents(key: str) -> bytes:
    return key.encode().ljust(NBYTES, b".")


def put(store: MappedStore, key: str) -> None:
    draft = store.draft(key, NBYTES)
    assert draft is not None
    os.pwrite(draft.descriptor, contents(key), 0)
    descriptor = draft.keep()
    assert descriptor is not None
    assert os.pread(descriptor, NBYTES, 0) == contents(key)
    os.close(descriptor)
    draft.close()


def read(store: MappedStore, key: str, nbytes: int = NBYTES) -> bytes | None:
    descriptor = store.open(key, nbytes)
    if descriptor is None:
        return None
    found = os.pread(descriptor, nbytes, 0)
    os.close(descriptor)
    return found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "weights").iterdir())


def test_a_block_is_found_by_another_process(store: MappedStore, tmp_path: Path) -> None:
    assert read(store, "a") is None
    put(store, "a")
    assert read(new_store(tmp_path), "a") == contents("a")
    assert read(new_store(tmp_path), "b") is None
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_abandoned_draft_leaves_nothing(store: MappedStore, tmp_path: Path) -> None:
    draft = store.draft("a", NBYTES)
    assert draft is not None
    draft.close()
    assert files(tmp_path) == []
    assert read(store, "a") is None


def flip(position: int) -> Callable[[bytes], bytes]:
    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 1
        return bytes(changed)

    return flipped


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:4096],
        lambda data: data + b"\0",
        flip(0),
        flip(NBYTES - 1),
        flip(-4096),
        flip(-4096 + 20),
        flip(-4096 + 60),
        flip(-4096 + 100),
        flip(-1),
    ],
)
def test_damage_is_found_and_removed(
    store: MappedStore, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    put(store, "a")
    assert read(store, "a") == contents("a")  # checked, and known to be
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert read(new_store(tmp_path), "a") is None
    assert files(tmp_path) == []
    put(store, "a")
    assert read(store, "a") == contents("a")


def test_a_block_of_another_size_or_key_is_refused(store: MappedStore, tmp_path: Path) -> None:
    put(store, "a")
    assert read(store, "a", NBYTES - 1) is None
    put(store, "a")
    put(store, "b")
    first, second = files(tmp_path)
    first.write_bytes(second.read_bytes())
    assert {read(store, "a"), read(store, "b")} & {None}


def test_contents_are_read_once_while_the_file_stays(
    store: MappedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a")
    real, digests = mapped_store.digest_of_bytes, []

    def counted(descriptor: int, nbytes: int) -> bytes:
        digests.append(nbytes)
        return real(descriptor, nbytes)

    monkeypatch.setattr(mapped_store, "digest_of_bytes", counted)
    assert read(new_store(tmp_path), "a") == contents("a")
    assert digests == []
    (file,) = files(tmp_path)
    status = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of change tells
    assert read(new_store(tmp_path), "a") == contents("a")
    assert digests == [NBYTES]
    assert read(new_store(tmp_path), "a") == contents("a")
    assert digests == [NBYTES]


def test_files_open_to_others_or_linked_are_not_used(store: MappedStore, tmp_path: Path) -> None:
    put(store, "a")
    (file,) = files(tmp_path)
    file.chmod(0o666)
    assert read(store, "a") is None
    file.chmod(0o600)
    assert read(store, "a") == contents("a")
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert read(store, "a") is None
    (tmp_path / "weights").chmod(0o755)
    assert store.draft("b", NBYTES) is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    size = 4096 * 4
    store = new_store(tmp_path, 3 * size)
    for number, key in enumerate("abc"):
        put(store, key)
        (newest,) = set(files(tmp_path)) - {f for f in files(tmp_path) if f.stat().st_atime < 1e9}
        os.utime(newest, (100 + number, newest.stat().st_mtime))
    assert read(store, "a") == contents("a")  # used now
    put(store, "d")
    assert [read(store, key) is None for key in "abcd"] == [False, True, False, False]


def test_the_time_of_use_is_kept_where_the_system_does_not(
    store: MappedStore, tmp_path: Path
) -> None:
    put(store, "a")
    (file,) = files(tmp_path)
    old = time.time() - 10 * 24 * 3600
    os.utime(file, (old, file.stat().st_mtime))
    assert read(store, "a") == contents("a")
    assert file.stat().st_atime > time.time() - 3600


def test_blocks_beyond_the_bound_or_the_disk_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert new_store(tmp_path, 100).draft("a", NBYTES) is None
    store = new_store(tmp_path)
    monkeypatch.setattr(mapped_store, "_SPARE_ROOM", 1 << 60)
    assert store.draft("a", NBYTES) is None
    assert files(tmp_path) == []
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert MappedStore(file, 1 << 20, ObjectCache(tmp_path)).draft("a", NBYTES) is None


def test_an_empty_block(store: MappedStore) -> None:
    draft = store.draft("empty", 0)
    assert draft is not None
    descriptor = draft.keep()
    assert descriptor is not None
    os.close(descriptor)
    draft.close()
    assert read(store, "empty", 0) == b""
