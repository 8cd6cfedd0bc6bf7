"""The tile sizes of attention kernels, and the scratch memory that goes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.tiles import RegisterFile, tile_choices
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.variables import Dim, Symbol

__all__ = ["BLOCK_KEYS", "AttentionTiles", "attention_gemm", "scores_tile", "values_tile"]

#: Keys between two corrections of the sums: weights and values of so many stay in the second-level
#: cache.
BLOCK_KEYS = 256


@dataclass(frozen=True)
class AttentionTiles:
    """The tile sizes of the two matmuls of an attention kernel.

    A row's bits depend on ``keys`` alone, and only where there are more than so many: sums start
    anew there. So it is :data:`BLOCK_KEYS` for all kernels that have more.

    Attributes:
        scores: rows and keys of the register tile of ``q @ k^T``.
        values: rows and features of the register tile of ``weights @ v``.
        block: rows of a work item.
        keys: keys whose scores are held at a time, a multiple of the scores' panel.
        features: of a value.
    """

    scores: tuple[int, int]
    values: tuple[int, int]
    block: int
    keys: int
    features: int

    @property
    def value_panels(self) -> int:
        """Panels of the values' features."""
        return -(-self.features // self.values[1])

    @property
    def weight_pitch(self) -> int:
        """Elements from one row of weights to the next: no power of two, for the cache's sake."""
        return self.keys + self.scores[1]

    def scratch_layout(self, depth: int, acc: DType, **more: int) -> dict[str, int]:
        """Offsets in scratch memory, in bytes; ``end`` is its size.

        By row: the ``greatest`` score so far in each lane, the ``shift`` that was taken off the
        scores last, the ``total`` of the weights, and the ``correction`` of sums made with the
        shift before. Then a packed panel of ``keys``, its ``scores``, the ``weights`` of all keys
        at hand, a packed panel of ``values``, the ``sums`` of each panel, and those of the ``last``
        keys.

        Args:
            depth: features of a key.
            acc: the dtype of all of these.
            more: bytes of what else there is.
        """
        item = acc.itemsize
        parts = {
            **more,
            "greatest": self.block * 64,
            "shift": self.block * item,
            "total": self.block * item,
            "correction": self.block * item,
            "keys": depth * self.scores[1] * item,
            "scores": self.block * self.scores[1] * item,
            "weights": self.block * self.weight_pitch * item,
            "values": self.keys * self.values[1] * item,
            "sums": self.value_panels * self.block * self.values[1] * item,
            "last": self.block * self.values[1] * item,
        }
        layout, offset = {}, 0
        for name, size in parts.items():
            layout[name] = offset
            offset += -(-size // 64) * 64
        return layout | {"end": offset}


def attention_gemm(
    row: Symbol,
    inner: Symbol,
    column: Symbol,
    a: tuple[DType, Dim],
    tile: tuple[int, int],
    acc: DType,
) -> Gemm:
    """A GEMM whose register tiles an attention kernel uses, on packed panels in scratch memory.

    Each sum is made in one order, whatever the height of the tile and the number of products.

    Args:
        row, inner, column: the axes; ``inner`` is summed over.
        a: the dtype and the element offset of the left operand.
        tile: rows and columns of the register tile.
        acc: the dtype of the sums, and of the panels.
    """
    return Gemm(
        args=(),
        batch=(),
        m=row,
        n=column,
        k=(inner,),
        a=0,
        a_dtype=a[0],
        a_index=a[1],
        b=0,
        b_group=0,
        panel=tile[1],
        rows=tile[0],
        acc=acc,
        epilogue=(),
        chains=1,
    )


def scores_tile(registers: RegisterFile, acc: DType, rows: Dim, keys: Dim) -> tuple[int, int]:
    """The tile of ``q @ k^T``; if there may be more than :data:`BLOCK_KEYS`, panels divide them."""
    every = tile_choices(registers.vector_bytes, registers.count, acc, rows, keys)
    if bounds(keys)[1] <= BLOCK_KEYS:
        return every[0]
    return next(tile for tile in every if BLOCK_KEYS % tile[1] == 0)


def values_tile(registers: RegisterFile, acc: DType, rows: Dim, features: Dim) -> tuple[int, int]:
    """The tile for the values: a fast one that leaves no features over, so that none are copied."""
    every = tile_choices(registers.vector_bytes, registers.count, acc, rows, features)
    choices = every[:8]
    even = (tile for tile in choices if isinstance(features, int) and features % tile[1] == 0)
    return next(even, choices[0])
