"""Blocks of keys and values: their reference counts, and their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.records import dataclass

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from ostinato.llm.families.builder import BlockName

__all__ = ["BlockKind", "BlockPool", "blocks_for", "most_blocks"]


def blocks_for(tokens: int) -> int:
    """Number of blocks that ``tokens`` tokens take."""
    return -(-tokens // BLOCK_TOKENS)


def most_blocks(tokens: int, window: int | None, rows: int) -> int:
    """Number of blocks that a sequence has at a time, at most.

    Args:
        tokens: of the sequence.
        window: tokens that a token attends to; ``None``: all.
        rows: of a step.
    """
    whole = blocks_for(tokens)
    return whole if window is None else min(whole, blocks_for(window + rows) + 2)


class BlockPool:
    """The blocks of a pool: free ones, and those in use with their reference counts.

    A sequence has one reference to each block in its table, and the prefix tree has one to each
    block that it caches.

    Args:
        count: number of blocks.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._references = [0] * count
        self._cached = bytearray(count)
        self.cached = 0  #: blocks that the tree has a reference to
        self.idle = 0  #: blocks that only the tree has a reference to

    @property
    def free(self) -> int:
        """Number of blocks without a reference."""
        return len(self._free)

    def references(self, block: int) -> int:
        """The reference count of ``block``."""
        return self._references[block]

    def take(self) -> int | None:
        """A free block with one reference; ``None`` if none is free."""
        if not self._free:
            return None
        block = self._free.pop()
        self._references[block] = 1
        return block

    def retain(self, block: int) -> None:
        """Add a sequence's reference to a block that has one."""
        self.idle -= self._references[block] == 1 and self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a sequence's reference."""
        self._references[block] -= 1
        left = self._references[block]
        if left == 0:
            self._free.append(block)
        self.idle += left == 1 and self._cached[block]

    def cache(self, block: int) -> None:
        """Add the tree's reference to a block that a sequence has."""
        self._cached[block] = 1
        self._references[block] += 1
        self.cached += 1

    def evict(self, block: int) -> None:
        """Drop the tree's reference."""
        self._cached[block] = 0
        self.cached -= 1
        self.idle -= self._references[block] == 1
        self._references[block] -= 1
        if not self._references[block]:
            self._free.append(block)


@dataclass(frozen=True, eq=False)
class BlockKind:
    """The blocks of layers that share a table.

    Attributes:
        name: of the kind in a step.
        pool: reference counts.
        table: of the step: the blocks of each sequence.
        window: how many tokens, its own included, a token attends to; ``None``: all. Blocks behind
            it are given back while a sequence goes on.
        rows: of a step.
    """

    name: BlockName
    pool: BlockPool
    table: NDArray[Any]
    window: int | None
    rows: int

    @property
    def available(self) -> int:
        """Number of blocks that are free or can be evicted."""
        return self.pool.free + self.pool.idle

    def most_blocks(self, tokens: int) -> int:
        """Number of blocks that a sequence of ``tokens`` tokens has at a time, at most."""
        return most_blocks(tokens, self.window, self.rows)

    def behind(self, tokens: int) -> int:
        """Number of first blocks that no token from position ``tokens`` on attends to."""
        return 0 if self.window is None else max(tokens - self.window + 1, 0) // BLOCK_TOKENS

    def first_kept(self, count: int) -> int:
        """Number of first blocks, of ``count`` whole ones, that a sequence behind them can spare.

        The last one stays, so that its node does.
        """
        return min(self.behind(count * BLOCK_TOKENS), max(count - 1, 0))
