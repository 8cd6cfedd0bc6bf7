"""Files by key, in a folder that is private to the user and bounded in size.

The disk is only ever a shortcut: a file that is damaged, foreign or unreadable is as good as none,
and a disk that cannot be written changes nothing but the time taken.

Stored code will run in this process. So only a folder and files that belong to this user and that
no other user may write are trusted, and each file carries a checksum bound to its key. Nothing but
files with the names that this module gives is ever deleted, and no link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.cache.fingerprint import log
from ostinato.cache.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DiskStore", "default_directory"]

_MAGIC = b"ostinato object 1\n"
_SUFFIX = ".obj"
# Names that write() gives: finished files a digest, unfinished ones a digest and a number.
_OUR_NAMES = r"[0-9a-f]{64}(\.obj|\.[0-9a-f]{16}\.tmp)"
# Windows has no links to follow here, but text mode to avoid.
_BINARY = getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _BINARY
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
        root: the files are in its subdirectory ``objects``, made with access for the user alone. If
            that exists, but other users have access to it, or it is a link, it is not used.
        max_bytes: the bound on the files' total size; the least recently used go first.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._path = root / "objects"
        self._max_bytes = max_bytes
        self._known_bytes: int | None = None
        self._lock = PerProcess(threading.Lock(), lambda _: threading.Lock())
        self._warned = False

    def read(self, key: str) -> bytes | None:
        """The bytes last written under ``key``; ``None`` if there are none to be trusted."""
        path = self._file(key)
        if not self._is_private():
            return None
        try:
            contents = _read_private_file(path)
        except OSError:
            return None
        data = contents[len(_MAGIC) + hashlib.sha256().digest_size :]
        if contents != _sealed(key, data):
            log("%s is damaged, and deleted", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep bytes under ``key``; other processes see all of them or none."""
        path = self._file(key)
        contents = _sealed(key, data)
        temporary = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.tmp")
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private():
                return
            descriptor = os.open(temporary, _CREATE, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(contents)
            temporary.replace(path)
        except OSError as error:
            log("nothing is stored in %s: %s", self._path, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._account(len(contents))

    def _file(self, key: str) -> Path:
        """Named by a digest, so that no key can reach outside the directory."""
        return self._path / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _is_private(self) -> bool:
        """Whether the folder exists and is this user's alone."""
        try:
            status = self._path.lstat()
        except OSError:
            return False
        if (
            stat.S_ISDIR(status.st_mode)
            and _belongs_to_user(status)
            and not _open_to_others(status, 0o077)
        ):
            return True
        self._warn()
        return False

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            import logging

            logging.getLogger("ostinato.cache").warning(
                "nothing is kept in %s, which is to be a folder of this user without access for "
                "others: delete it, or make it so (chmod 700)",
                self._path,
            )

    def _account(self, added: int) -> None:
        with self._lock.get():
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
        entries = list(self._entries())
        step = -(-len(entries) // _MOST_WEIGHED) or 1
        total = 0
        for entry in entries[::step]:
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
        return step * total

    def _evict(self) -> int:
        """Delete the least recently used files, some more than needed; returns the size left."""
        found = []
        for entry in self._entries():
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes * _KEPT_AFTER_EVICTION:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108  # a Path for each of thousands takes longer
                total -= size
        log("evicted files from %s, %d bytes are left", self._path, total)
        return total

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """The files that write() has made, those of killed writers among them."""
        if not self._is_private():
            return
        with contextlib.suppress(OSError), os.scandir(self._path) as listing:
            for entry in listing:
                if re.fullmatch(_OUR_NAMES, entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry


def _sealed(key: str, data: bytes) -> bytes:
    """File contents: a magic line, a checksum over key and data, the data."""
    checksum = hashlib.sha256(key.encode() + b"\0" + data).digest()
    return _MAGIC + checksum + data


def _read_private_file(path: Path) -> bytes:
    """The contents of a regular file of this user that no other user may write.

    Raises:
        OSError: there is no such file.
    """
    descriptor = os.open(path, _OPEN)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        regular = stat.S_ISREG(status.st_mode)
        if not regular or not _belongs_to_user(status) or _open_to_others(status, 0o022):
            raise PermissionError(f"{path} is not a private file")
        return file.read()


def _belongs_to_user(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _open_to_others(status: os.stat_result, access: int) -> bool:
    """Whether other users have one of these permissions; Windows has them elsewhere."""
    return os.name == "posix" and bool(stat.S_IMODE(status.st_mode) & access)
