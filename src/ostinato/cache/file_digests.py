"""Digests of files, found again by what the system says of them."""

from __future__ import annotations

import hashlib
import os
import time

from ostinato.cache.objects import process_cache

__all__ = ["digest_of", "digest_of_bytes", "file_identity"]

_READ_AT_ONCE = 1 << 20

#: A file that was written less than so many nanoseconds ago may be written again without another
#: time of writing, where the system's clock is coarse: its digest is computed each time.
_LATELY = 2_000_000_000


def digest_of(descriptor: int) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Files that were not written since are not read again, by any process: the device, the inode,
    the size and the times of writing and of change are as they were.
    """
    identity = file_identity(descriptor)
    entries, key = process_cache(), f"file digest {identity}"
    found = entries.read_entry(key)
    if isinstance(found, str):
        return found
    digest = digest_of_bytes(descriptor, identity[2]).hex()
    settled = time.time_ns() - max(identity[-2:]) > _LATELY
    if settled and file_identity(descriptor) == identity:
        entries.write_entry(key, digest)
    return digest


def file_identity(descriptor: int) -> tuple[int, ...]:
    """Device, inode, size, and the times of writing and of change: any write changes them."""
    status = os.fstat(descriptor)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def digest_of_bytes(descriptor: int, nbytes: int) -> bytes:
    """The SHA-256 of the first bytes of a file, or of all if there are fewer.

    The file is read, not mapped: it may be truncated meanwhile.
    """
    found, position = hashlib.sha256(), 0
    while position < nbytes:
        part = os.pread(descriptor, min(_READ_AT_ONCE, nbytes - position), position)
        if not part:
            break
        found.update(part)
        position += len(part)
    return found.digest()
