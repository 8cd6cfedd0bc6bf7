"""Files by key, in a folder that is private to the user and bounded in size.

The disk is only ever a shortcut: a file that is damaged, foreign or unreadable is as good as none,
and a disk that cannot be written changes nothing but the time taken. Each file carries a checksum
bound to its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path

from ostinato.cache.fingerprint import log
from ostinato.cache.per_process import PerProcess
from ostinato.cache.private_folder import PrivateFolder

__all__ = ["DiskStore", "default_directory"]

_MAGIC = b"ostinato object 1\n"
_SUFFIX = ".obj"
# Names that write() gives: finished files a digest, unfinished ones a digest and a number.
_OUR_NAMES = r"[0-9a-f]{64}(\.obj|\.[0-9a-f]{16}\.tmp)"
_KEPT_AFTER_EVICTION = 0.8
_MOST_WEIGHED = 2048


def default_directory() -> Path:
    """``OSTINATO_CACHE_DIR`` if set, else the user's cache directory."""
    chosen = os.environ.get("OSTINATO_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("ostinato"))


class DiskStore:
    """Bytes by key, in files. No method raises for what the file system does or holds.

    Args:
        root: the files are in its subdirectory ``objects``; see :class:`PrivateFolder`.
        max_bytes: the bound on the files' total size; the least recently used go first.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._folder = PrivateFolder(root / "objects", _OUR_NAMES)
        self._max_bytes = max_bytes
        self._known_bytes: int | None = None
        self._lock = PerProcess(threading.Lock(), lambda _: threading.Lock())

    def read(self, key: str) -> bytes | None:
        """The bytes last written under ``key``; ``None`` if there are none to be trusted."""
        name = _name(key)
        if not self._folder.usable():
            return None
        try:
            with os.fdopen(self._folder.open(name), "rb") as file:
                contents = file.read()
        except OSError:
            return None
        path = self._folder.path / name
        data = contents[len(_MAGIC) + hashlib.sha256().digest_size :]
        if contents != _sealed(key, data):
            log("%s is damaged, and deleted", path)
            self._folder.delete(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep bytes under ``key``; other processes see all of them or none."""
        name = _name(key)
        contents = _sealed(key, data)
        temporary = name.replace(_SUFFIX, f".{os.urandom(8).hex()}.tmp")
        try:
            descriptor = self._folder.create(temporary)
            if descriptor is None:
                return
            with os.fdopen(descriptor, "wb") as file:
                file.write(contents)
            (self._folder.path / temporary).replace(self._folder.path / name)
        except OSError as error:
            log("nothing is stored in %s: %s", self._folder.path, error)
            self._folder.delete(temporary)
            return
        self._account(len(contents))

    def _account(self, added: int) -> None:
        with self._lock.get():
            if self._known_bytes is None:
                self._known_bytes = self._estimate()
            else:
                self._known_bytes += added
            if self._known_bytes > self._max_bytes:
                most = self._max_bytes * _KEPT_AFTER_EVICTION  # some more go than needed
                self._known_bytes = self._folder.evict(most, lambda status: status.st_mtime_ns)

    def _estimate(self) -> int:
        """The files' total size, from some of them where there are very many.

        Names are digests, so that any of them stand for all.
        """
        entries = list(self._folder.entries())
        step = -(-len(entries) // _MOST_WEIGHED) or 1
        total = 0
        for entry in entries[::step]:
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
        return step * total


def _name(key: str) -> str:
    """A digest, so that no key can reach outside the directory."""
    return hashlib.sha256(key.encode()).hexdigest() + _SUFFIX


def _sealed(key: str, data: bytes) -> bytes:
    """File contents: a magic line, a checksum over key and data, the data."""
    checksum = hashlib.sha256(key.encode() + b"\0" + data).digest()
    return _MAGIC + checksum + data
