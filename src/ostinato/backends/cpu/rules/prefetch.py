"""Prefetching of panels: weights are on their way while register tiles compute.

Hardware prefetches what a loop reads, but hardly further ahead than the loop's loads have been
issued. Where a tile computes on each line for long, memory idles between requests. So tiles
prefetch by instruction, into the second-level cache:

- A tile that is alone with its panel prefetches the lines :attr:`Prefetch.distance` ahead.
- Where several tiles go over a panel, they do so block by block of ``k``, of
  :attr:`Prefetch.block_bytes` each, and each tile prefetches its share of the next block. So memory
  is busy all of the time, not just during the first tile.

Lines are not fetched into the first-level cache as well: 4, 8 or 16 steps ahead, that changed
nothing (Zen 4, 8 to 64 rows).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from ostinato.backends.cpu.caches import CacheSizes

__all__ = ["Prefetch"]

#: Rows of an item from which on prefetching pays. Fewer compute too little per line to keep the
#: hardware from running ahead, and further requests only delay it: 4 rows took 1.5 times as long,
#: 8 rows 0.8 times (Zen 4, ``python -m bench.panel_pipeline``).
_LEAST_ROWS = 7

#: The same for 16-bit floats that are widened, half as many bytes for as much arithmetic: 5 rows of
#: bfloat16 take as long or 0.95 times, 6 rows 0.9 times.
_LEAST_WIDENED_ROWS = 5

#: The same for tiles that take packed weights apart: with 2 rows prefetching takes 1.1 to 1.2 times
#: as long, with 4 rows 0.6 times (Q4_0, Q4_K, Q6_K) or as long (Q8_0).
_LEAST_PACKED_ROWS = 3

#: Blocks of a panel that the second-level cache has room for: the one in use, the next one, rows
#: of ``a``, and what else comes by. (256 kB of 1 MB; 128 to 384 kB take the same time.)
_BLOCKS = 4


@dataclass(frozen=True)
class Prefetch:
    """The distances of prefetching, from the sizes of caches.

    Attributes:
        caches: those of a core.
        vector_bytes: the width of a vector register.
        least_rows: rows of an item from which on it prefetches.
    """

    caches: CacheSizes
    vector_bytes: int
    least_rows: int = _LEAST_ROWS

    @property
    def distance(self) -> int:
        """Bytes from a line in use to the one to prefetch.

        A core reads some 4 kB in the latency of memory, and the hardware's prefetchers stop at
        pages. (8 to 32 kB take the same time, 2 kB are of no use.)
        """
        return self.caches.first // 2

    @property
    def block_bytes(self) -> int:
        """Bytes of a panel that all tiles go over before any goes on."""
        return self.caches.second // _BLOCKS

    @property
    def of_widened_weights(self) -> Prefetch:
        """The same for tiles that widen 16-bit floats."""
        return replace(self, least_rows=min(self.least_rows, _LEAST_WIDENED_ROWS))

    @property
    def of_packed_weights(self) -> Prefetch:
        """The same for tiles of packed weights, which compute longer on each line."""
        return replace(self, least_rows=min(self.least_rows, _LEAST_PACKED_ROWS))

    def __str__(self) -> str:
        return f"{self.distance} bytes ahead, from {self.least_rows} rows on"
