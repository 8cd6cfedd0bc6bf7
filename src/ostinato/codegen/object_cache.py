"""Compiled objects, kept in the process and on disk, and notes of how to start from them.

A kernel is compiled once per process however many threads ask for it, and once per machine as
long as its file lasts. The disk is only ever a shortcut: an entry that is damaged, foreign or
unreadable is rebuilt, and a disk that cannot be written changes nothing but the time taken.

Objects are machine code that this process will run, so only files and directories that belong to
this user and nobody else may write are trusted, and each carries a checksum bound to its key.

Beside them lie *notes*: what a graph was compiled to, what a model's file was read as. They are
made of what ``marshal`` writes, need no module of the compiler to be read, and are worth no more
than the sources that made them: :func:`note_key` has the state of the package in it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.once import Once, call_after_fork
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "DEFAULT_MAX_BYTES",
    "CacheCounters",
    "ObjectCache",
    "default_directory",
    "note_key",
    "object_key",
    "process_cache",
]

DEFAULT_MAX_BYTES = 1 << 30

_MAGIC = b"ostinato object 1\n"
_SUFFIX = ".obj"
# Windows has no links to follow here, but text mode to avoid.
_BINARY = getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _BINARY
_KEPT_AFTER_EVICTION = 0.8
_MOST_WEIGHED = 2048
_SOURCES_THAT_SHAPE_CODE = ("backends/cpu/llvm", "backends/cpu/rules", "lower", "ops")


def default_directory() -> Path:
    """``OSTINATO_CACHE_DIR`` if set, else the user's cache directory."""
    chosen = os.environ.get("OSTINATO_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("ostinato"))


def object_key(kernel: str, target: str) -> str:
    """The key of a kernel's object code.

    Args:
        kernel: the whole structure of the kernel as text; equal text must mean equal code.
        target: ``TargetSpec.identity``: the processor, and the compiler with its version.

    The code generator itself is part of the key, by the digest of its sources, so no one has to
    remember to raise a version when changing it.
    """
    return _digest(kernel, target, _generator_digest())


def note_key(kind: str, *parts: str | bytes) -> str:
    """The key of a note.

    Args:
        kind: what it is a note of.
        parts: all that it depends on, besides this package and the interpreter.
    """
    return _digest(kind, sys.implementation.cache_tag or "", _package_state(), *parts)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass
class CacheCounters:
    """What a cache has done so far.

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
        directory: where files go, in a subdirectory private to the user; the default is
            :func:`default_directory`.
        max_bytes: the bound on the files' total size; the least recently used go first.
    """

    def __init__(
        self, directory: Path | str | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        root = Path(directory) if directory is not None else default_directory()
        self._disk = _ObjectDirectory(root, max_bytes)
        self._objects: Once[str, bytes] = Once()
        self._found: set[str] = set()

    @property
    def counters(self) -> CacheCounters:
        """What it has done so far."""
        once, found = self._objects, len(self._found)
        return CacheCounters(once.hits, found, once.misses - found)

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """The object of ``key``, from memory, from disk, or from ``build()``.

        When many threads ask at once, one builds and the others wait for it. If ``build``
        raises, all of them get its exception, and the next call tries again.
        """
        return self._objects.get(key, lambda: self._read_or_build(key, build))

    def find(self, key: str) -> bytes | None:
        """The object of ``key``, from memory or from disk; ``None`` if there is none."""
        found = self._objects.find(key)
        if found is None:
            data = self._disk.read(key)
            if data is None:
                return None
            self._found.add(key)
            return self._objects.get(key, lambda: data)
        return found

    def read_note(self, key: str) -> Any:
        """What was last written under ``key``, read from disk each time; ``None`` if nothing was.

        Whoever can write these files can have this process run any code, as with objects; so
        ``marshal``, which trusts what it reads, trusts nobody new.
        """
        data = self._disk.read(key)
        return None if data is None else marshal.loads(data)

    def write_note(self, key: str, note: Any) -> None:
        """Keep a note: tuples, dicts and lists of strings, numbers, ``None`` and bytes."""
        self._disk.write(key, marshal.dumps(note))

    def _read_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        data = self._disk.read(key)
        if data is None:
            data = build()
            self._disk.write(key, data)
        else:
            self._found.add(key)
        return data


class _ObjectDirectory:
    """The files of a cache. No method raises for what the file system does or holds."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._path = root / "objects"
        self._max_bytes = max_bytes
        self._known_bytes: int | None = None
        self._renew_lock()
        call_after_fork(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def read(self, key: str) -> bytes | None:
        path = self._file(key)
        if not _is_private_directory(self._path):
            return None
        try:
            contents = _read_private_file(path)
        except OSError:
            return None
        data = contents[len(_MAGIC) + hashlib.sha256().digest_size :]
        if contents != _sealed(key, data):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return data

    def write(self, key: str, data: bytes) -> None:
        path = self._file(key)
        contents = _sealed(key, data)
        temporary = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.tmp")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private_directory(self._path):
                return
            descriptor = os.open(temporary, _CREATE, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(contents)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._account(len(contents))

    def _file(self, key: str) -> Path:
        """Named by a digest, so that no key can reach outside the directory."""
        return self._path / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _account(self, added: int) -> None:
        with self._lock:
            if self._known_bytes is None:
                self._known_bytes = self._estimate()
            else:
                self._known_bytes += added
            if self._known_bytes > self._max_bytes:
                self._known_bytes = self._evict()

    def _estimate(self) -> int:
        """The files' total size, from some of them where there are very many.

        Names are digests, so that any of them stand for all.
        """
        with contextlib.suppress(OSError):
            with os.scandir(self._path) as listing:
                entries = list(listing)
            step = -(-len(entries) // _MOST_WEIGHED) or 1
            total = 0
            for entry in entries[::step]:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_size
            return step * total
        return 0

    def _evict(self) -> int:
        """Deletes the least recently used files, some more than needed; gives what remains."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self._max_bytes * _KEPT_AFTER_EVICTION:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
        return total

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Time of last use, size and path of every file; leftovers of killed writers too."""
        with contextlib.suppress(OSError), os.scandir(self._path) as listing:
            for entry in listing:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime_ns, status.st_size, Path(entry.path)


def _sealed(key: str, data: bytes) -> bytes:
    """File contents: a magic line, a checksum over key and data, the data."""
    checksum = hashlib.sha256(key.encode() + b"\0" + data).digest()
    return _MAGIC + checksum + data


def _is_private_directory(path: Path) -> bool:
    """Whether the directory exists and is this user's alone, after making it so if it is ours."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
            return False
        if stat.S_IMODE(status.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError:
        return False
    return True


def _read_private_file(path: Path) -> bytes:
    """The contents of a regular file of ours that nobody else may write.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, _OPEN)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        writable_by_others = stat.S_IMODE(status.st_mode) & 0o022
        if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or writable_by_others:
            raise PermissionError(f"{path} is not a private file")
        return file.read()


def _is_ours(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


@functools.cache
def _generator_digest() -> str:
    """A digest of the sources that decide what code a kernel becomes."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(_modules(package, _SOURCES_THAT_SHAPE_CODE)):
        digest.update(path.removeprefix(str(package)).encode())
        with open(path, "rb") as file:  # noqa: PTH123  # a path for each module takes longer
            digest.update(file.read())
    return digest.hexdigest()


def _modules(package: Path, folders: Iterable[str]) -> Iterator[str]:
    """The Python files below some folders."""
    for start in folders:
        for folder, _, names in os.walk(package / start):
            yield from (f"{folder}{os.sep}{name}" for name in names if name.endswith(".py"))


@functools.cache
def _package_state() -> str:
    """Of every module of this package, its size and when it was written or put where it is.

    Reading them all would take longer than a small model takes to start.
    """
    return "\n".join(sorted(_states(Path(__file__).resolve().parent.parent)))


def _states(folder: Path | str) -> Iterator[str]:
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.is_dir():
                yield from _states(entry.path)
            elif entry.name.endswith((".py", ".so", ".pyd")):
                status = entry.stat()
                times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
                yield f"{entry.path} {status.st_size} {times}"


@functools.cache
def process_cache() -> ObjectCache:
    """Shared by all sessions: a kernel is compiled once per process (SPEC section 3)."""
    return ObjectCache()
