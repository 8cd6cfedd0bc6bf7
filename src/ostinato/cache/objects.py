"""Object code and entries: compiled once per process, and found again by the next one.

A kernel is compiled once per process however many threads ask for it at the same time, and once per
machine as long as its file lasts.

*Entries* say how to start: what a graph was compiled to, what a model's file was read as. They are
written by ``marshal``, and no module of the compiler is needed to read them.
"""

from __future__ import annotations

import functools
import marshal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.cache.fingerprint import INSTALLED
from ostinato.cache.per_process import PerProcess
from ostinato.cache.single_flight import SingleFlight
from ostinato.cache.store import DiskStore, default_directory
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CacheCounters", "ObjectCache", "process_cache"]

_MOST_BYTES_ON_DISK = 1 << 30
_MOST_BYTES_IN_MEMORY = 64 << 20


@dataclass
class CacheCounters:
    """Counts of the answers of a cache, by their origin.

    Attributes:
        hits: answered from this process's memory, or by waiting for another thread's build.
        disk_hits: answered from disk.
        misses: built.
    """

    hits: int = 0
    disk_hits: int = 0
    misses: int = 0


class ObjectCache:
    """Object code by key. Safe to share between threads, and between processes through the disk.

    Args:
        directory: of the files.
        max_bytes: the bound on the files' total size; the least recently used go first.
        max_bytes_in_memory: the bound on the objects' total size in memory. An object that had to
            go is read from disk again, or compiled again if it is not there either.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        max_bytes: int = _MOST_BYTES_ON_DISK,
        max_bytes_in_memory: int = _MOST_BYTES_IN_MEMORY,
    ) -> None:
        self._disk = DiskStore(Path(directory), max_bytes)
        self._objects: SingleFlight[str, bytes] = SingleFlight(max_bytes_in_memory, len)
        self._disk_hits = 0
        self._counting = PerProcess(threading.Lock(), lambda _: threading.Lock())

    @property
    def counters(self) -> CacheCounters:
        """Counts of its answers so far."""
        found, objects = self._disk_hits, self._objects
        return CacheCounters(objects.hits, found, objects.misses - found)

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """The object of ``key``, from memory, from disk, or from ``build()``.

        When many threads ask at once, one builds and the others wait for it. If ``build``
        raises, all of them get its exception, and the next call tries again.
        """
        return self._objects.get(key, lambda: self._read_or_build(key, build))

    def find(self, key: str) -> bytes | None:
        """The object of ``key``, from memory or from disk; ``None`` if there is none."""
        found = self._objects.find(key)
        if found is not None:
            return found
        data = self._disk.read(key)
        return None if data is None else self._objects.get(key, lambda: self._count(data))

    def read_entry(self, key: str) -> Any:
        """The entry that was last written under ``key``; ``None`` if none was.

        Marshalled data can have this process run any code, but so can objects: both are read from
        files that only this user can write.
        """
        data = self._disk.read(key)
        return None if data is None else marshal.loads(data)

    def write_entry(self, key: str, entry: Any) -> None:
        """Keep an entry: tuples, dicts and lists of strings, numbers, ``None`` and bytes."""
        self._write(key, marshal.dumps(entry))

    def _read_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        data = self._disk.read(key)
        if data is not None:
            return self._count(data)
        data = build()
        self._write(key, data)
        return data

    def _write(self, key: str, data: bytes) -> None:
        """Store what this process has made, if it is known which sources have made it."""
        if INSTALLED.unchanged():
            self._disk.write(key, data)

    def _count(self, data: bytes) -> bytes:
        with self._counting.get():
            self._disk_hits += 1
        return data


@functools.cache
def process_cache() -> ObjectCache:
    """The cache that all sessions share, so that a kernel is compiled once per process."""
    return ObjectCache(default_directory())
