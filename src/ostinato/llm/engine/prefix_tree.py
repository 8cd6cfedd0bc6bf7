"""A radix tree over tokens: the blocks of keys and values that later prompts can reuse.

A node is up to 64 tokens that follow its parent's, with a block of each kind: models whose layers
attend differently far have several. Only nodes of 64 tokens have children. Where tokens attend to a
window alone, a node may lose its block and keep its children. The tokens of a child are kept as
bytes in their order, so the child with the longest common prefix is a neighbour of the place where
the wanted tokens would be inserted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ostinato.llm.engine.blocks import BlockPool

__all__ = ["NO_BLOCK", "Match", "Node", "PrefixTree"]

_TOKEN_BYTES = 4

#: Stands for the block of a root, and for one that was evicted before its children.
NO_BLOCK = -1


class Node:
    """Tokens with cached blocks.

    Attributes:
        key: the tokens, four bytes each with the highest first.
        blocks: the number of a block of each kind, or :data:`NO_BLOCK`.
        parent: the node of the tokens before; ``None`` for a root.
        saved: recurrent states after the node's last token, where the model has any.
    """

    __slots__ = ("blocks", "children", "key", "keys", "parent", "salt", "saved")

    def __init__(self, key: bytes, blocks: Sequence[int], parent: Node | None, salt: str) -> None:
        self.key = key
        self.blocks = [*blocks]
        self.parent = parent
        self.salt = salt
        self.saved: Any = None
        self.keys: list[bytes] = []  # of the children, sorted
        self.children: list[Node] = []

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.key) // _TOKEN_BYTES

    @property
    def whole(self) -> bool:
        """Whether it has a block of each kind."""
        return NO_BLOCK not in self.blocks

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
        root: the node before the first token.
        path: the nodes of the whole blocks, first one first; some may lack blocks.
        partial: a node that shares its first tokens only, whose blocks are to be copied.
        tokens: number of tokens of all, those of ``partial`` included.
    """

    root: Node
    path: tuple[Node, ...]
    partial: Node | None
    tokens: int

    @property
    def node(self) -> Node:
        """The last node that is whole."""
        return self.path[-1] if self.path else self.root

    def shortened(self, count: int) -> Match:
        """The first whole blocks alone."""
        return Match(self.root, self.path[:count], None, count * BLOCK_TOKENS)


class PrefixTree:
    """Cached blocks by the tokens before and in them, apart for each salt.

    Args:
        pools: reference counts of the blocks of each kind.
        windowed: of each kind, whether blocks may be evicted before those behind them.
        recurrent: whether a prefix can only end at nodes with saved states.
    """

    def __init__(
        self,
        pools: Sequence[BlockPool],
        windowed: Sequence[bool],
        *,
        recurrent: bool = False,
    ) -> None:
        self._pools = tuple(pools)
        self._windowed = tuple(windowed)
        self._recurrent = recurrent
        self._roots: dict[str, Node] = {}
        # Nodes with a block of each kind, from the least recently used on. A parent is used after
        # its children, or before them with windows: what can be evicted stands near the front.
        self._orders: tuple[OrderedDict[Node, None], ...] = tuple(OrderedDict() for _ in pools)
        self._saved: OrderedDict[Node, None] = OrderedDict()

    def root(self, salt: str) -> Node:
        """The node before the first token of all sequences with this salt."""
        return self._roots.get(salt) or Node(b"", [NO_BLOCK] * len(self._pools), None, salt)

    def match(self, tokens: NDArray[Any], salt: str) -> Match:
        """The longest cached prefix of ``tokens``, an int32 array; uses nothing."""
        key = tokens.astype(">i4").tobytes()
        root = node = self.root(salt)
        path: list[Node] = []
        partial: Node | None = None
        common = 0
        for place in range(0, len(key), BLOCK_TOKENS * _TOKEN_BYTES):
            child, common = node.closest(key[place : place + BLOCK_TOKENS * _TOKEN_BYTES])
            if child is None or common < BLOCK_TOKENS:
                partial = child
                break
            node = child
            path.append(child)
        if self._recurrent and not (
            partial and partial.saved is not None and common == partial.size
        ):
            partial = None
            while path and path[-1].saved is None:
                path.pop()
        extra = common if partial is not None else 0
        return Match(root, tuple(path), partial, len(path) * BLOCK_TOKENS + extra)

    def touch(self, node: Node) -> None:
        """Mark a node and those before it as used now."""
        path = []
        while node.parent is not None:
            path.append(node)
            if node.saved is not None:
                self._saved.move_to_end(node)
            node = node.parent
        for kind, order in enumerate(self._orders):
            # With a window, a later prompt rather needs the last blocks than the first.
            for used in reversed(path) if self._windowed[kind] else path:
                if used.blocks[kind] != NO_BLOCK:
                    order.move_to_end(used)

    def insert(self, parent: Node, tokens: NDArray[Any], blocks: Sequence[int]) -> Node:
        """Cache blocks behind ``parent``, unless their tokens are cached already.

        Args:
            parent: the node of the tokens before.
            tokens: of the blocks.
            blocks: one of each kind; :data:`NO_BLOCK` for none.

        Returns:
            The node of the tokens, which may have other blocks, or tokens beyond these.
        """
        if parent.parent is None:
            parent = self._roots.setdefault(parent.salt, parent)
        key = tokens.astype(">i4").tobytes()
        found, common = parent.closest(key)
        if found is not None and common == len(tokens):
            if found.size == common:
                self._fill(found, blocks)
            return found
        if found is not None and common == found.size:  # a part of these tokens: all replace it
            self._drop(found)
        node = Node(key, [NO_BLOCK] * len(self._pools), parent, parent.salt)
        parent.add(node)
        self._fill(node, blocks)
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

    def evict(self, kind: int) -> bool:
        """Evict the least recently used block of a kind without other references.

        It is a leaf's, unless tokens attend to a window alone.

        Returns:
            Whether there was one.
        """
        pool, order = self._pools[kind], self._orders[kind]
        windowed = self._windowed[kind]
        for node in order:
            if pool.references(node.blocks[kind]) != 1:
                continue
            if windowed and (node.children or _has_others(node, kind)):
                del order[node]
                pool.evict(node.blocks[kind])
                node.blocks[kind] = NO_BLOCK
                return True
            if not node.children:
                self._drop(node)
                self._prune(node.parent)
                return True
        return False

    def _fill(self, node: Node, blocks: Sequence[int]) -> None:
        """Cache blocks of the kinds that a node lacks."""
        for kind, block in enumerate(blocks):
            if node.blocks[kind] == NO_BLOCK and block != NO_BLOCK:
                node.blocks[kind] = block
                self._pools[kind].cache(block)
                self._orders[kind][node] = None

    def _prune(self, node: Node | None) -> None:
        """Remove nodes without blocks that have lost their last child, and an empty root."""
        while node is not None and not node.children:
            parent = node.parent
            if parent is None:
                self._roots.pop(node.salt, None)
            elif not _has_others(node):
                parent.remove(node)
            else:
                return
            node = parent

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        parent.remove(node)
        self._saved.pop(node, None)
        node.saved = None
        for kind, block in enumerate(node.blocks):
            if block != NO_BLOCK:
                del self._orders[kind][node]
                self._pools[kind].evict(block)
                node.blocks[kind] = NO_BLOCK


def _has_others(node: Node, kind: int = -1) -> bool:
    """Whether a node has blocks of other kinds than one."""
    return any(block != NO_BLOCK for k, block in enumerate(node.blocks) if k != kind)


def _common_tokens(first: bytes, second: bytes) -> int:
    """The number of leading tokens that two keys share."""
    size = min(len(first), len(second))
    difference = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
    return (size - (difference.bit_length() + 7) // 8) // _TOKEN_BYTES
