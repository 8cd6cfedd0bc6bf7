"""Counts of what calls leave allocated."""

import gc
import sys
from collections.abc import Callable

__all__ = ["blocks_gathered"]


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
