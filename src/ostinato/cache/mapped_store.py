"""Large blocks of bytes by key, in files that processes map into memory and share.

A file is the block, from its first byte on, then zeros up to a page, then a trailer of one page: a
magic line, the key's digest, the block's length and digest, and a digest of all that.

The owner, the permissions, the length and the trailer are checked whenever a file is opened. The
digest of the block is checked too, unless an entry of the object cache says that this process's
user has checked it since the file was last written or changed: device, inode, length, and the times
of writing and of change are those of then. Any write sets these times, so a block that is mapped
without being read whole is the one that was checked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import struct
import time
from typing import TYPE_CHECKING

from ostinato.cache.file_digests import digest_of_bytes, file_identity
from ostinato.cache.fingerprint import INSTALLED, log
from ostinato.cache.objects import process_cache
from ostinato.cache.private_folder import PrivateFolder
from ostinato.cache.store import default_directory

if TYPE_CHECKING:
    from pathlib import Path

    from ostinato.cache.objects import ObjectCache

__all__ = ["BlockDraft", "MappedStore", "process_blocks"]

_MAGIC = b"ostinato block 1\n"
_TRAILER = struct.Struct(f"<{len(_MAGIC)}s32sQ32s")
_PAGE = 4096
_SUFFIX = ".blk"
_OUR_NAMES = r"[0-9a-f]{64}(\.blk|\.[0-9a-f]{16}\.tmp)"
_MOST_BYTES = 32 << 30

#: A block is stored only where this many times its size is free on the disk.
_SPARE_ROOM = 2

#: Seconds after which the time of a file's last use is written again.
_USED_LATELY = 24 * 3600


class MappedStore:
    """Blocks by key. No method raises for what the file system does or holds.

    Args:
        root: the files are in its subdirectory ``weights``; see :class:`PrivateFolder`.
        max_bytes: the bound on the files' total size; the least recently used go first. A process
            that has mapped a file keeps its contents until it ends.
        entries: records which files were checked.
    """

    def __init__(self, root: Path, max_bytes: int, entries: ObjectCache) -> None:
        self._folder = PrivateFolder(root / "weights", _OUR_NAMES)
        self._max_bytes = max_bytes
        self._entries = entries

    def open(self, key: str, nbytes: int) -> int | None:
        """The descriptor of the file whose first ``nbytes`` bytes are the block of ``key``.

        Returns:
            ``None``: there is none to be trusted. The caller closes the descriptor.
        """
        name = _name(key)
        if not self._folder.usable():
            return None
        try:
            descriptor = self._folder.open(name)
        except OSError:
            return None
        try:
            if self._trusted(descriptor, key, nbytes):
                self._mark_used(descriptor, name)
                return descriptor
            log("%s is damaged, and deleted", self._folder.path / name)
            self._folder.delete(name)
        except OSError as error:
            log("%s can not be read: %s", self._folder.path / name, error)
        os.close(descriptor)
        return None

    def draft(self, key: str, nbytes: int) -> BlockDraft | None:
        """A file for the block of ``key``, to be filled; ``None``: no block can be stored."""
        length = _trailer_offset(nbytes) + _PAGE
        if length > self._max_bytes or not hasattr(os, "posix_fallocate"):
            return None
        temporary = _name(key).replace(_SUFFIX, f".{os.urandom(8).hex()}.tmp")
        descriptor = None
        try:
            descriptor = self._folder.create(temporary)
            if descriptor is None:
                return None
            if shutil.disk_usage(self._folder.path).free < _SPARE_ROOM * length:
                raise OSError("the disk is nearly full")
            # Room for all of it: else a write into the mapped file could end the process.
            os.posix_fallocate(descriptor, 0, length)
        except OSError as error:
            log("no block is stored in %s: %s", self._folder.path, error)
            self._folder.delete(temporary)
            if descriptor is not None:
                os.close(descriptor)
            return None
        return BlockDraft(self, key, nbytes, temporary, descriptor)

    def keep(self, draft: BlockDraft) -> int | None:
        """Store a filled draft; return the descriptor of its file, which the caller closes."""
        folder, name = self._folder, _name(draft.key)
        if not INSTALLED.unchanged():
            return None
        try:
            digest = digest_of_bytes(draft.descriptor, draft.nbytes)
            trailer = _trailer(draft.key, draft.nbytes, digest)
            os.pwrite(draft.descriptor, trailer, _trailer_offset(draft.nbytes))
            (folder.path / draft.name).replace(folder.path / name)
            self._mark_checked(draft.descriptor, name)
            descriptor = folder.open(name)
            folder.evict(self._max_bytes, lambda status: status.st_atime_ns)
        except OSError as error:
            log("nothing is stored in %s: %s", folder.path, error)
            return None
        return descriptor

    def drop(self, draft: BlockDraft) -> None:
        """Delete the file of a draft, unless it was kept."""
        self._folder.delete(draft.name)

    def _trusted(self, descriptor: int, key: str, nbytes: int) -> bool:
        end = _trailer_offset(nbytes)
        if os.fstat(descriptor).st_size != end + _PAGE:
            return False
        trailer = os.pread(descriptor, _PAGE, end)
        if len(trailer) != _PAGE:
            return False
        digest = _TRAILER.unpack_from(trailer)[-1]
        if trailer != _trailer(key, nbytes, digest):
            return False
        name = _name(key)
        before = file_identity(descriptor)
        if self._entries.read_entry(_checked(name)) == before:
            return True
        if digest_of_bytes(descriptor, nbytes) != digest:
            return False
        if file_identity(descriptor) == before:
            self._entries.write_entry(_checked(name), before)
        return True

    def _mark_checked(self, descriptor: int, name: str) -> None:
        self._entries.write_entry(_checked(name), file_identity(descriptor))

    def _mark_used(self, descriptor: int, name: str) -> None:
        """Set the time of last use, by which files are evicted, if it is long ago.

        Where file systems keep that time, they have set it just now.
        """
        status = os.fstat(descriptor)
        if time.time() - status.st_atime < _USED_LATELY:
            return
        with contextlib.suppress(OSError):
            os.utime(self._folder.path / name, ns=(time.time_ns(), status.st_mtime_ns))
            self._mark_checked(descriptor, name)


class BlockDraft:
    """A block that is being made, in a file that no other process knows.

    Attributes:
        key: of the block.
        nbytes: of the block; the first ones of the file, which are zero.
        name: of the file.
        descriptor: of the file, open until :meth:`close`.
    """

    def __init__(self, store: MappedStore, key: str, nbytes: int, name: str, descriptor: int):
        self._store = store
        self.key = key
        self.nbytes = nbytes
        self.name = name
        self.descriptor = descriptor

    def keep(self) -> int | None:
        """Store the block, which is complete; see :meth:`MappedStore.keep`."""
        return self._store.keep(self)

    def close(self) -> None:
        """Close the file, and delete it unless it was kept."""
        self._store.drop(self)
        os.close(self.descriptor)


def _name(key: str) -> str:
    """A digest, so that no key can reach outside the directory."""
    return hashlib.sha256(key.encode()).hexdigest() + _SUFFIX


def _checked(name: str) -> str:
    """The key of the entry that says which state of a file was checked."""
    return f"checked block {name}"


def _trailer_offset(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _trailer(key: str, nbytes: int, digest: bytes) -> bytes:
    named = hashlib.sha256(key.encode()).digest()
    fields = _TRAILER.pack(_MAGIC, named, nbytes, digest)
    return (fields + hashlib.sha256(fields).digest()).ljust(_PAGE, b"\0")


@functools.cache
def process_blocks() -> MappedStore:
    """The store that all sessions of this process share, beside the cache of kernels."""
    return MappedStore(default_directory(), _MOST_BYTES, process_cache())
