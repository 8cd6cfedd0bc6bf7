"""Register tiles: the shape that suits a matmul, by a count of its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.rules.prefetch import FEW_ROWS, Prefetch, fits_cache
from ostinato.backends.cpu.work_items import MANY_ITEMS
from ostinato.records import dataclass, field, replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.dtypes import DType
    from ostinato.variables import Dim

__all__ = [
    "RegisterFile",
    "TileSizes",
    "chains_by_columns",
    "chains_of",
    "tile_choices",
    "tile_for",
    "tile_of_least_time",
]

_MAX_ROWS = 9
"""Rows of a tile at most: rows of ``a`` a power of two apart share a set of the first-level cache.

Twelve are 9% slower than nine or eight where a row has 1024, 4096 or 8192 float32.
"""

_LATENCY_HIDING = 12
"""Sums in flight that keep the multiply-add units busy: latency 4, two a cycle, and a few more."""

_NARROW_SUMS = 4
"""Vectors of sums that one row of a tile has at least: one row of 10 columns by 256 takes 0.39
instead of 0.23 µs with one vector (Zen 4, AVX-512), rows of 64 columns and more take the same."""

_FUSED_BYTES = 32
"""Bytes of vectors from which on x86 adds products of floats by the instruction that multiplies:
they take no register."""

_FULL_ROWS = 16
"""Rows of a matmul up to which all registers are taken, four rows by three vectors of 16: 4 rows of
weights from memory take 0.95 of the time of tiles of two vectors on Zen 3. With many rows, whose
weights come from caches, these are 1.02 times as fast."""

_MAX_VECTORS, _MAX_VECTORS_OF_32 = 4, 5
"""Vectors of a panel's row at most: with fewer than 32 registers, and with 32.

Groups of 68 columns are 22% faster as five vectors of 16 than as two panels of three.
"""


@dataclass(frozen=True)
class RegisterFile:
    """The vector registers, and the caches behind them, that tiles are sized for.

    Attributes:
        vector_bytes: width of a vector register.
        count: how many of them there are.
        narrow: the dtypes that widen in registers at little cost, so that panels may hold them.
        byte_dots: whether one instruction adds four products of bytes to a 32-bit sum.
        byte_pairs: whether one adds two in 16 bits.
        caches: the data caches of a core.
        prefetches: whether tiles prefetch panels.
        few_rows_prefetch: finds whether it pays for tiles of few rows, too; asked when there are
            such tiles of weights that come from memory.
        slow_memory: finds whether memory is slow next to arithmetic; asked when a choice between
            more bytes and more arithmetic depends on it.
        strips: finds whether panels in strips are read faster from memory; asked likewise.
        row_strips: the same for a single row.
        items: the work items of a matmul that keep all threads busy to the end.
        bfloat16_dots: finds whether matmuls of bfloat16 are to be dot products of pairs; asked when
            there are such matmuls. ``None``: they are not.
        amx_dtypes: the dtypes of matrices that are multiplied in tile registers (AMX).
    """

    vector_bytes: int
    count: int
    narrow: frozenset[DType] = frozenset()
    byte_dots: bool = False
    byte_pairs: bool = False
    caches: CacheSizes = field(default_factory=CacheSizes)
    prefetches: bool = False
    bfloat16_dots: Callable[[], bool] | None = None
    amx_dtypes: frozenset[DType] = frozenset()
    few_rows_prefetch: Callable[[], bool] | None = None
    slow_memory: Callable[[], bool] | None = None
    strips: Callable[[], bool] | None = None
    row_strips: Callable[[], bool] | None = None
    items: int = MANY_ITEMS

    @property
    def prefetch(self) -> Prefetch | None:
        """The distances of prefetching; ``None``: there is none."""
        return Prefetch(self.caches, self.vector_bytes) if self.prefetches else None

    def prefetch_for(self, rows: Dim, nbytes: int, *, unpacks: bool = False) -> Prefetch | None:
        """The same for a matmul.

        Args:
            rows: of the matmul.
            nbytes: of its panels, at most.
            unpacks: whether tiles widen 16-bit floats or take packed weights apart, so that one row
                may gain, too.
        """
        found = self.prefetch
        if found is None or self.few_rows_prefetch is None:
            return found
        most = bounds(rows)[1]
        least = 1 if unpacks else FEW_ROWS
        few = least <= most < found.least_rows or (not isinstance(rows, int) and most > 1)
        if few and not fits_cache(nbytes, self.caches) and self.few_rows_prefetch():
            return replace(found, least_rows=FEW_ROWS)
        return found


@dataclass(frozen=True)
class TileSizes:
    """The blocking of a matmul.

    Attributes:
        tile: rows and columns of the register tile.
        item_rows: rows of a work item, a multiple of the tile's; ``None``: as many as are worth it.
        prefetch: whether panels are prefetched, if they are at all; ``None``: where there are
            enough rows.
    """

    tile: tuple[int, int]
    item_rows: int | None = None
    prefetch: bool | None = None


def chains_of(vectors: int) -> int:
    """Partial sums per element of a tile that has so many vectors of sums.

    A tile too small to hide latency splits ``k`` among several.
    """
    return max(1, min(4, _LATENCY_HIDING // max(1, vectors)))


def chains_by_columns(columns: int, lanes: int) -> int:
    """Partial sums per element of a matmul whose rows sum in one order, however many there are.

    One, as tall tiles have no room for more: four vectors of sums hide enough latency for what
    memory and the second-level cache supply. Narrow matmuls have fewer, and so several of each.
    """
    return max(1, _NARROW_SUMS // max(1, -(-columns // lanes)))


def tile_for(
    vector_bytes: int, registers: int, acc: DType, m: Dim, *n: Dim, chains: int = 1
) -> tuple[int, int]:
    """The register tile, ``(rows, panel)``, for matmuls of ``m`` x ``n``.

    Where a size is symbolic, the tile takes the least time for matmuls of several sizes, from the
    least to the greatest, each twice the one before.

    Args:
        vector_bytes: the width of a vector register.
        registers: how many vector registers there are.
        acc: the accumulator's dtype.
        m: rows of the matmul.
        n: columns of the matmul; of each one, if several share a tile.
        chains: partial sums per element that tall tiles have, too.
    """
    return tile_choices(vector_bytes, registers, acc, m, *n, chains=chains)[0]


def tile_choices(
    vector_bytes: int, registers: int, acc: DType, m: Dim, *n: Dim, chains: int = 1
) -> list[tuple[int, int]]:
    """The register tiles worth considering, the one likely to be fastest first.

    Args:
        vector_bytes, registers, acc, m, n, chains: as for :func:`tile_for`.
    """
    lanes = max(1, vector_bytes // acc.itemsize)
    most_m, widths = bounds(m)[1], [bounds(columns)[1] for columns in n]
    most_n = max(widths)
    fused = acc.is_float and vector_bytes >= _FUSED_BYTES
    temporaries = 1 if fused and most_m <= _FULL_ROWS else 2

    def most_rows(vectors: int) -> int:
        fitting = (registers - vectors - temporaries) // (vectors * chains)
        return max(1, min(_MAX_ROWS, fitting))

    if most_n < lanes:
        panel = 1 << max(0, most_n - 1).bit_length()
        most = most_rows(1)
        return [(_even_rows(m, most), panel)]
    widest = _MAX_VECTORS if registers < 32 else _MAX_VECTORS_OF_32
    shapes = [
        (rows, vectors)
        for vectors in range(1, widest + 1)
        for rows in _row_choices(most_m, most_rows(vectors))
    ]
    sizes = [
        (rows, -(-columns // lanes), each)
        for each in n
        for rows in _samples(m)
        for columns in _samples(each)
    ]

    def cost(shape: tuple[int, int]) -> tuple[int, int]:
        """By time, then by loads."""
        rows, vectors = shape
        tiles = -(-most_m // rows) * sum(-(-width // (vectors * lanes)) for width in widths)
        time = sum(_cost(shape, (r, c), m, each) for r, c, each in sizes)
        # What is nearly as fast by this count is faster with eight rows than with nine.
        return time * (100 if rows % 8 == 0 else 101), tiles * (rows + vectors)

    return [(rows, vectors * lanes) for rows, vectors in sorted(shapes, key=cost)]


def tile_of_least_time(
    registers: RegisterFile,
    acc: DType,
    most: tuple[int, int],
    fits: Callable[[int, int], bool],
    time: Callable[[int, int], int],
    m: Dim,
    *n: Dim,
    prefer_wide: bool = False,
) -> tuple[int, int]:
    """The register tile, ``(rows, panel)``, that takes the least time by a count of its own.

    Args:
        registers: what the tile is sized for.
        acc: the accumulator's dtype.
        most: rows and vectors of a tile at most.
        fits: whether the registers hold a tile of so many rows and vectors.
        time: of such a tile over a step of ``k``.
        m: rows of the matmul.
        n: columns of each matmul that shares the tile.
        prefer_wide: of tiles that take the same time, take the one of the most vectors.
    """
    lanes = registers.vector_bytes // acc.itemsize
    most_m = bounds(m)[1]
    widths = [-(-bounds(columns)[1] // lanes) for columns in n]
    shapes = [
        (rows, vectors)
        for vectors in range(1, most[1] + 1)
        for rows in range(1, min(most[0], max(1, most_m)) + 1)
        if fits(rows, vectors)
    ]

    def cost(shape: tuple[int, int]) -> tuple[int, int]:
        rows, vectors = shape
        tiles = -(-most_m // rows) * sum(-(-width // vectors) for width in widths)
        return tiles * time(rows, vectors), -vectors if prefer_wide else 0

    rows, vectors = min(shapes, key=cost)
    return rows, vectors * lanes


def _samples(size: Dim) -> list[int]:
    """Values of a size that stand for all of them."""
    least, most = bounds(size)
    found = [max(1, most)]
    while found[-1] // 2 >= max(1, least):
        found.append(found[-1] // 2)
    return found


def _cost(shape: tuple[int, int], size: tuple[int, int], m: Dim, n: Dim) -> int:
    """Time per step of ``k`` over a whole matmul of ``size``: rows, and vectors of columns.

    A symbolic ``m`` has a tile of every height for the last rows. A symbolic ``n`` has panels that
    are packed at each run, the last one in full.
    """
    (rows, vectors), (all_rows, all_vectors) = shape, size
    panels = -(-all_vectors // vectors)
    if isinstance(m, int):
        time = -(-all_rows // rows) * _tile_time(rows, vectors)
    else:
        full, rest = divmod(all_rows, rows)
        time = full * _tile_time(rows, vectors) + (_tile_time(rest, vectors) if rest else 0)
    packing = 0 if isinstance(n, int) else 2 * vectors
    return panels * (time + packing)


def _even_rows(m: Dim, most: int) -> int:
    """Rows of as few tiles as can be, each about as high; the most where ``m`` is symbolic."""
    rows = max(1, bounds(m)[1])
    if not isinstance(m, int):
        return min(most, rows)
    return -(-rows // -(-rows // most))


def _row_choices(m: int, most: int) -> range:
    """Heights worth considering: at least half of what fits, if there are as many rows."""
    highest = max(1, min(m, most))
    return range(highest, (highest + 1) // 2 - 1, -1)


def _tile_time(rows: int, vectors: int) -> int:
    """Cycles per step of ``k``, up to a factor.

    A tile multiplies ``rows * vectors`` vectors, for which it reads a panel row from the
    second-level cache, at half the speed, and one element of each row. To start and to finish
    takes longer, in proportion, the smaller the tile.
    """
    return 1 + max(rows * vectors, rows + 2 * vectors)
