"""A radix tree over tokens: the blocks of keys and values that later prompts can reuse.

A node is a block: up to 64 tokens that follow its parent's. Only full blocks have children. Where
tokens attend to a window alone, a node may lose its block and keep its children. The
tokens of a child are kept as bytes in their order, so the child with the longest common prefix is a
neighbour of the place where the wanted tokens would be inserted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ostinato.llm.engine.blocks import BlockPool

__all__ = ["NO_BLOCK", "Match", "Node", "PrefixTree"]

_TOKEN_BYTES = 4

#: Stands for the block of a root, and for one that was evicted before its children.
NO_BLOCK = -1


class Node:
    """A cached block.

    Attributes:
        key: its tokens, four bytes each with the highest first.
        block: the block's number, or :data:`NO_BLOCK`.
        parent: the node of the tokens before; ``None`` for a root.
        saved: recurrent states after the node's last token, where the model has any.
    """

    __slots__ = ("block", "children", "key", "keys", "parent", "salt", "saved")

    def __init__(self, key: bytes, block: int, parent: Node | None, salt: str) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.salt = salt
        self.saved: Any = None
        self.keys: list[bytes] = []  # of the children, sorted
        self.children: list[Node] = []

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.key) // _TOKEN_BYTES

    def closest(self, key: bytes) -> tuple[Node | None, int]:
        """The child with the longest common prefix of tokens, and its length in tokens."""
        place = bisect_left(self.keys, key)
        best, length = None, 0
        for child in self.children[max(place - 1, 0) : place + 1]:
            if child.key == key:
                return child, child.size
            common = _common_tokens(child.key, key)
            if common > length:
                best, length = child, common
        return best, length

    def add(self, child: Node) -> None:
        """Insert a child."""
        place = bisect_left(self.keys, child.key)
        self.keys.insert(place, child.key)
        self.children.insert(place, child)

    def remove(self, child: Node) -> None:
        """Remove a child."""
        place = bisect_left(self.keys, child.key)
        del self.keys[place], self.children[place]


@dataclass(frozen=True)
class Match:
    """The longest cached prefix of some tokens.

    Attributes:
        node: the last node that is whole; its path to the root has the blocks before.
        blocks: the whole blocks, first one first; :data:`NO_BLOCK` for those without memory.
        partial: a node that shares its first tokens only, whose block is to be copied.
        tokens: number of tokens of all, those of ``partial`` included.
    """

    node: Node
    blocks: tuple[int, ...]
    partial: Node | None
    tokens: int


class PrefixTree:
    """Cached blocks by the tokens before and in them, apart for each salt.

    Args:
        pool: reference counts of the blocks.
        recurrent: whether a prefix can only end at nodes with saved states.
        windowed: whether blocks may be evicted before those behind them.
    """

    def __init__(self, pool: BlockPool, *, recurrent: bool = False, windowed: bool = False) -> None:
        self._pool = pool
        self._recurrent = recurrent
        self._windowed = windowed
        self._roots: dict[str, Node] = {}
        # From the least recently used on. A parent is used after its children, or before them with
        # windows: what can be evicted stands near the front.
        self._order: OrderedDict[Node, None] = OrderedDict()
        self._saved: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def root(self, salt: str) -> Node:
        """The node before the first token of all sequences with this salt."""
        return self._roots.get(salt) or Node(b"", -1, None, salt)

    def match(self, tokens: NDArray[Any], salt: str) -> Match:
        """The longest cached prefix of ``tokens``, an int32 array; uses nothing."""
        key = tokens.astype(">i4").tobytes()
        node, blocks = self.root(salt), list[int]()
        partial: Node | None = None
        common = 0
        for place in range(0, len(key), BLOCK_TOKENS * _TOKEN_BYTES):
            child, common = node.closest(key[place : place + BLOCK_TOKENS * _TOKEN_BYTES])
            if child is None or common < BLOCK_TOKENS:
                partial = child
                break
            node = child
            blocks.append(child.block)
        if self._recurrent and not (
            partial and partial.saved is not None and common == partial.size
        ):
            partial = None
            while node.parent is not None and node.saved is None:
                blocks.pop()
                node = node.parent
        extra = common if partial is not None else 0
        return Match(node, tuple(blocks), partial, len(blocks) * BLOCK_TOKENS + extra)

    def touch(self, node: Node) -> None:
        """Mark a node and those before it as used now."""
        path = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        # With a window, a later prompt rather needs the last blocks than the first.
        for used in reversed(path) if self._windowed else path:
            if used.block != NO_BLOCK:
                self._order.move_to_end(used)
            if used.saved is not None:
                self._saved.move_to_end(used)

    def insert(self, parent: Node, tokens: NDArray[Any], block: int) -> Node:
        """Cache a block behind ``parent``, unless its tokens are cached already.

        Returns:
            The node of the tokens, which may have another block, or tokens beyond these.
        """
        if parent.parent is None:
            parent = self._roots.setdefault(parent.salt, parent)
        key = tokens.astype(">i4").tobytes()
        found, common = parent.closest(key)
        if found is not None and common == len(tokens):
            if found.block == NO_BLOCK:
                found.block = block
                self._pool.cache(block)
                self._order[found] = None
            return found
        if found is not None and common == found.size:  # a part of these tokens: all replace it
            self._drop(found)
        node = Node(key, block, parent, parent.salt)
        parent.add(node)
        self._pool.cache(block)
        self._order[node] = None
        self.touch(node)
        return node

    def save(self, node: Node, saved: Any, most: int) -> None:
        """Keep recurrent states with a node; of more than ``most``, the least recent go."""
        node.saved = saved
        self._saved[node] = None
        if len(self._saved) > most:
            oldest = next(iter(self._saved))
            oldest.saved = None
            del self._saved[oldest]

    def evict(self) -> bool:
        """Evict the least recently used block without other references; whether there was one.

        It is a leaf's, unless tokens attend to a window alone.
        """
        for node in self._order:
            if self._pool.references(node.block) != 1:
                continue
            if not node.children:
                self._drop(node)
                self._prune(node.parent)
                return True
            if self._windowed:
                del self._order[node]
                self._pool.evict(node.block)
                node.block = NO_BLOCK
                return True
        return False

    def _prune(self, node: Node | None) -> None:
        """Remove nodes without a block that have lost their last child, and an empty root."""
        while node is not None and not node.children:
            parent = node.parent
            if parent is None:
                self._roots.pop(node.salt, None)
            elif node.block == NO_BLOCK:
                parent.remove(node)
            else:
                return
            node = parent

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        parent.remove(node)
        del self._order[node]
        self._saved.pop(node, None)
        node.saved = None
        self._pool.evict(node.block)


def _common_tokens(first: bytes, second: bytes) -> int:
    """The number of leading tokens that two keys share."""
    size = min(len(first), len(second))
    difference = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // _TOKEN_BYTES
