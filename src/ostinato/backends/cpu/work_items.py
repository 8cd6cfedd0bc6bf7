"""The number of work items that a matmul is divided into, by the threads that run it.

The more rows an item has, the more is computed while its next panel arrives from memory; the more
items there are, the shorter threads wait for each other at the end.
"""

from __future__ import annotations

__all__ = ["MANY_ITEMS", "work_items"]

MANY_ITEMS = 64
"""Items that keep any usual number of threads busy to the end, or nearly."""

_PER_THREAD = 8
"""Items of a thread, one of which may take longer: the others take its share of the rest.

Fewer large ones read weights while they compute: 128 rows by 768 columns take 0.89 (768 deep) and
0.92 of the time (3,072 deep) in 16 items, not 64, on one thread of an Intel Xeon with AMX."""


def work_items(threads: int) -> int:
    """The items that keep so many threads busy. One thread has those of two, and so the kernels."""
    return min(MANY_ITEMS, _PER_THREAD * max(2, threads))
