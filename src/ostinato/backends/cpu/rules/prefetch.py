"""Prefetching of panels: weights are on their way while register tiles compute.

Hardware prefetches what a loop reads, but hardly further ahead than the loop's loads have been
issued. Where a tile computes on each line for long, memory idles between requests. So tiles
prefetch by instruction, into the second-level cache:

- A tile that is alone with its panel prefetches the lines :attr:`Prefetch.distance` ahead.
- Where several tiles go over a panel, they do so block by block of ``k``, and each tile prefetches
  its share of the next block. So memory is busy all of the time, not just during the first tile.

They also fetch the lines of the next few steps into the first-level cache, which is worth a percent
or two (Zen 4 and Emerald Rapids, 8 to 32 rows).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from ostinato.backends.cpu.caches import CacheSizes

__all__ = ["FEW_ROWS", "Prefetch", "fits_cache"]

#: Rows of an item from which on prefetching pays on all processors. Fewer compute too little per
#: line to keep the hardware of some from running ahead, and further requests only delay it: 4 rows
#: took 1.5 times as long on Zen 4, 8 rows 0.8 times (``python -m bench.panel_pipeline``).
_LEAST_ROWS = 7

#: The same for 16-bit floats that are widened, half as many bytes for as much arithmetic: 5 rows of
#: bfloat16 take as long or 0.95 times, 6 rows 0.9 times.
_LEAST_WIDENED_ROWS = 5

#: Rows from which on it pays on the others: 2 to 4 rows take 0.6 to 0.95 times as long on Emerald
#: Rapids, one row as long as before.
FEW_ROWS = 2

#: The same where few rows of float32 prefetch: one row of bfloat16 reads 11 GB/s alone on Emerald
#: Rapids, where two that prefetch read 18.
_LEAST_WIDENED_WHERE_FEW = 1

#: The same for tiles that take packed weights apart: with 2 rows prefetching takes 1.1 to 1.2 times
#: as long, with 4 rows 0.6 times (Q4_0, Q4_K, Q6_K) or as long (Q8_0).
_LEAST_PACKED_ROWS = 3

#: The same where few rows of float32 prefetch: one row takes 0.76 to 0.87 times as long (Q4_0,
#: Q4_K, Q6_K; an Intel Xeon with AMX).
_LEAST_PACKED_WHERE_FEW = 1

#: The same with vectors shorter than a line, which take more instructions for it: one row takes
#: 0.65 to 0.75 times as long on Zen 3 (Q4_0, Q4_K, Q6_K; 1.0 with Q8_0), 2 and 4 rows 0.75 to 0.9.
_LEAST_PACKED_ROWS_OF_SHORT_VECTORS = 1

#: The part of the second-level cache that panels stay in while rows pass by.
_RESIDENT_PART = 4

#: First-level caches that a block of ``k`` takes in the second-level cache: 96 kB of 1 MB on Zen 4,
#: 144 kB of 2 MB on Emerald Rapids. (Half and twice as much take the same time there.)
_BLOCK = 3

#: Positions of ``k`` from which on it pays to load sums and to store them again: a block that stays
#: in the first-level cache must leave room for as many in half of it. (48 float32 in half of 48 kB:
#: 16 to 64 rows run at 97 to 140 GFLOP/s on Emerald Rapids, at 94 to 133 by larger blocks, at 78 to
#: 115 panel by panel. In half of 32 kB there is no room for that; Zen 4 prefers large blocks.)
_LEAST_STEPS = 128

#: The share of a first-level cache that such a block takes. (3/8 instead of 1/2, and one block
#: ahead: 16 and 32 rows take 0.95 to 0.97 of the time on an Intel Xeon with AMX, 64 as long.)
_NEAR_BLOCK = 3, 8

#: Lines from one in use to the one to fetch into the first-level cache.
_NEAR_LINES = 24

#: A divisor of the positions of ``k`` in a block: tiles unroll as many of them or fewer.
_STEPS = 8

#: The most large blocks that make all of them equal, as a share of those that would do: shorter
#: ones cost more than unequal ones. (64 x 784 by columns of 32 in 7 blocks, not 4: 0.87 times the
#: speed.)
_EVEN = 5, 3


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
        pages. (8 to 32 kB take the same time on Zen 4, 4 to 48 kB on Emerald Rapids.)
        """
        return self.caches.first // 2

    @property
    def near(self) -> int:
        """Bytes from a line in use to the one to fetch from the second-level cache."""
        return _NEAR_LINES * self.caches.line

    def block_steps(self, depth: int, panel_bytes: int, sums_bytes: int) -> int:
        """Positions of ``k`` that all tiles of an item go over before any goes on.

        Args:
            depth: positions of ``k`` in a panel.
            panel_bytes: of a panel.
            sums_bytes: of the item's sums.
        """
        first = self.caches.first
        row_bytes = max(1, panel_bytes // max(1, depth))
        near = sums_bytes <= first // 4 and first // 2 >= _LEAST_STEPS * row_bytes
        share, whole = _NEAR_BLOCK
        nearest, large = first * share // whole, min(_BLOCK * first, self.caches.second // 4)
        blocks = max(1, round(panel_bytes / (nearest if near else large)))
        most, share = _EVEN
        most = blocks if near else blocks * most // share
        even = (n for n in range(blocks, most + 1) if depth % (n * _STEPS) == 0)
        return max(1, -(-depth // next(even, blocks) // _STEPS)) * _STEPS

    @property
    def of_widened_weights(self) -> Prefetch:
        """The same for tiles that widen 16-bit floats."""
        few = self.least_rows <= FEW_ROWS
        least = _LEAST_WIDENED_WHERE_FEW if few else _LEAST_WIDENED_ROWS
        return replace(self, least_rows=min(self.least_rows, least))

    @property
    def of_packed_weights(self) -> Prefetch:
        """The same for tiles of packed weights, which compute longer on each line."""
        least = _LEAST_PACKED_ROWS
        if self.vector_bytes < self.caches.line:
            least = _LEAST_PACKED_ROWS_OF_SHORT_VECTORS
        elif self.least_rows <= FEW_ROWS:
            least = _LEAST_PACKED_WHERE_FEW
        return replace(self, least_rows=min(self.least_rows, least))

    def __str__(self) -> str:
        return f"{self.distance} bytes ahead, from {self.least_rows} rows on"


def fits_cache(nbytes: int, caches: CacheSizes) -> bool:
    """Whether panels of so many bytes together stay in the second-level cache."""
    return nbytes <= caches.second // _RESIDENT_PART
