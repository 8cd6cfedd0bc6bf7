"""Counts of what calls leave allocated."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["blocks_gathered", "resident_bytes"]


def resident_bytes() -> int:
    """Bytes of this process in memory, without those that the allocator keeps for later.

    From how many bytes on it keeps none depends on what was given back before.
    """
    with contextlib.suppress(AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def blocks_gathered(call: Callable[[], object], times: int) -> int:
    """Python's memory blocks that ``times`` calls leave over.

    It is the least of three counts: other work of the process allocates, too.
    """
    return min(_count(call, times) for _ in range(3))


def _count(call: Callable[[], object], times: int) -> int:
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        call()
    gc.collect()
    return sys.getallocatedblocks() - before
