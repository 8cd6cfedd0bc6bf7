"""A folder of files that this user alone can write.

Stored code and weights will be used by this process. So only a folder and files that belong to this
user and that no other user may write are trusted. Nothing but files with the names of the store
that a folder belongs to is ever deleted, and no link is followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

from ostinato.cache.fingerprint import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["PrivateFolder"]

# Windows has no links to follow here, but text mode to avoid.
_BINARY = getattr(os, "O_BINARY", 0)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _BINARY


class PrivateFolder:
    """The files of one store.

    Args:
        path: of the folder, made with access for the user alone. If it exists, but other users have
            access to it, or it is a link, it is not used.
        names: a regular expression of the names that the store gives to files.
    """

    def __init__(self, path: Path, names: str) -> None:
        self.path = path
        self._names = names
        self._warned = False

    def usable(self) -> bool:
        """Whether the folder exists and is this user's alone."""
        try:
            status = self.path.lstat()
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

    def create(self, name: str) -> int | None:
        """The descriptor of a new file, to be read and written; ``None``: the folder is not usable.

        Raises:
            OSError: it can not be made.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.path / name, _CREATE, 0o600) if self.usable() else None

    def open(self, name: str) -> int:
        """The descriptor of a regular file of this user that no other user may write.

        Raises:
            OSError: there is no such file.
        """
        path = self.path / name
        descriptor = os.open(path, _OPEN)
        status = os.fstat(descriptor)
        regular = stat.S_ISREG(status.st_mode)
        if regular and _belongs_to_user(status) and not _open_to_others(status, 0o022):
            return descriptor
        os.close(descriptor)
        raise PermissionError(f"{path} is not a private file")

    def delete(self, name: str) -> None:
        """Delete a file, if that is possible."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """The files that the store has made, those of killed writers among them."""
        if not self.usable():
            return
        with contextlib.suppress(OSError), os.scandir(self.path) as listing:
            for entry in listing:
                if re.fullmatch(self._names, entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry

    def evict(self, most: float, used: Callable[[os.stat_result], int]) -> int:
        """Delete the files that were used least recently, until few enough bytes are left.

        Args:
            most: the bytes that may stay.
            used: the time of a file's last use.

        Returns:
            The bytes that are left.
        """
        found = []
        for entry in self.entries():
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((used(status), status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= most:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108  # a Path for each of thousands takes longer
                total -= size
        log("evicted files from %s, %d bytes are left", self.path, total)
        return total

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            import logging

            logging.getLogger("ostinato.cache").warning(
                "nothing is kept in %s, which is to be a folder of this user without access for "
                "others: delete it, or make it so (chmod 700)",
                self.path,
            )


def _belongs_to_user(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()


def _open_to_others(status: os.stat_result, access: int) -> bool:
    """Whether other users have one of these permissions; Windows has them elsewhere."""
    return os.name == "posix" and bool(stat.S_IMODE(status.st_mode) & access)
