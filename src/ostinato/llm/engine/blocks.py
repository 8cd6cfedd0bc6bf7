"""Reference counts of the blocks of keys and values."""

from __future__ import annotations

__all__ = ["BlockPool"]


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
