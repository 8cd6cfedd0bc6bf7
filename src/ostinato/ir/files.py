"""Files that tensors stay in."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileRange", "OpenFile"]


class OpenFile:
    """A file that stays open, and so readable when it is replaced or deleted.

    It is read, not mapped: a mapped file that is truncated later would kill the process.

    Attributes:
        name: without its folder, for messages.
        reads: how often it was read.

    Raises:
        OSError: it can not be opened.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.reads = 0
        self._digest: str | None = None
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._current_state()

    def fileno(self) -> int:
        """The file descriptor, valid as long as this object lives."""
        return self._descriptor

    @property
    def size(self) -> int:
        """The size in bytes when the file was opened."""
        return self._state[0]

    @property
    def unchanged(self) -> bool:
        """Whether the file is as it was when it was opened."""
        return self._current_state() == self._state

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the contents; ``None``: the file was written since it was opened.

        A large file takes seconds once: the digest is stored under the file's identity (device,
        inode, size, and the times of writing and of change), unless it was written just now.
        """
        if self._digest is None and self.unchanged:
            # Imported here: most files are not asked for it.
            from ostinato.cache.file_digests import digest_of

            found = digest_of(self._descriptor)
            self._digest = found if self.unchanged else None
        return self._digest

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the file; fewer at its end."""
        self.reads += 1
        parts = []
        while nbytes > 0:
            part = os.pread(self._descriptor, nbytes, offset)
            if not part:
                break
            parts.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _current_state(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class FileRange:
    """Bytes of a file."""

    file: OpenFile
    offset: int
    nbytes: int
