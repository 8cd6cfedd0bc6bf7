"""The shapes of blocks of attention by groups of four warps; see :mod:`attention_groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["CHUNK", "GROUP", "KEYS", "PANEL", "ROWS", "GroupShape"]

CHUNK, PANEL = 8, 64
"""Elements of 16 bytes, and of a line of shared memory as tensor cores read it."""

GROUP, ROWS = 128, 64
"""Threads of a group, and its rows."""

KEYS = 128
"""Keys of a tile."""


@dataclass(frozen=True)
class _Block:
    """A block.

    Attributes:
        groups: that have rows.
        slots: of tiles of keys or values.
        registers: of a thread of these groups.
        copying: registers of a thread of the group that copies.
        resident: blocks of a multiprocessor.
    """

    groups: int
    slots: int
    registers: int
    copying: int
    resident: int = 1


#: The blocks for rows of up to 64 elements, and for wider ones, the largest first.
_NARROW = (_Block(3, 8, 160, 32), _Block(1, 6, 216, 40, 2))
_WIDE = (_Block(2, 5, 232, 40),)


@dataclass(frozen=True)
class GroupShape:
    """A block, and the elements of its rows.

    Attributes:
        block: how many groups and slots it has.
        depth: elements of a query.
        features: those of a value.
        sets: sets of tiles, one of which a block has at a time.
    """

    block: _Block
    depth: int
    features: int
    sets: int

    @staticmethod
    def of(
        depth: int, features: int, sets_of: Callable[[int], int], target: CudaTarget
    ) -> GroupShape:
        """The largest of the blocks of which there are enough.

        Args:
            depth, features: see above.
            sets_of: the number of sets for so many groups.
            target: the GPU.
        """
        *larger, smallest = _WIDE if max(depth, features) > PANEL else _NARROW
        enough = (each for each in larger if sets_of(each.groups) >= target.multiprocessors)
        block = next(enough, smallest)
        return GroupShape(block, depth, features, sets_of(block.groups))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * (self.block.groups + 1)

    @property
    def query_tile(self) -> int:
        """Elements of the queries of a group."""
        return ROWS * self._padded

    @property
    def slot(self) -> int:
        """Elements of a tile of keys or values."""
        return KEYS * max(self._padded, self.features)

    @property
    def _padded(self) -> int:
        """Elements of a query in whole panels."""
        return -(-self.depth // PANEL) * PANEL

    def launch(self, target: CudaTarget, most: int | None = None) -> Launch:
        """As many blocks as stay, or fewer.

        Args:
            target: the GPU.
            most: the most items that there may be; ``None``: those of the sets.
        """
        block = self.block
        elements = block.groups * self.query_tile + block.slots * self.slot
        items = self.sets if most is None else most
        grid = max(1, min(items, block.resident * target.multiprocessors))
        early = target.starts_kernels_early
        return Launch(grid, self.threads, 2 * elements, programmatic=early)

    def places(self) -> dict[str, object]:
        """Values for the names in the texts of :mod:`attention_group_code`."""
        block = self.block
        return {
            "groups": block.groups,
            "slots": block.slots,
            "registers": block.registers,
            "copying": block.copying,
            "query_tile": self.query_tile,
            "slot": self.slot,
            "depth": self.depth,
            "features": self.features,
            "keys": KEYS,
        }
