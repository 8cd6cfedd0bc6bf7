"""Blocks of keys and values of sequences: reuse of prefixes, growth, and release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.engine.blocks import BlockKind, BlockPool, blocks_for
from ostinato.llm.engine.prefix_tree import NO_BLOCK, Match, PrefixTree
from ostinato.llm.families.builder import BLOCK_TOKENS
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Items
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from ostinato.llm.engine.interfaces import Step
    from ostinato.llm.engine.prefix_tree import Node
    from ostinato.llm.engine.sequence import Sequence
    from ostinato.llm.families.builder import BlockName

__all__ = ["KVCache", "SavedBlocks"]

#: Tokens between two saved states of a recurrent model.
SAVED_TOKENS = 256


@dataclass(frozen=True)
class SavedBlocks:
    """The blocks of one kind at the start of some tokens.

    Attributes:
        first: number of first blocks that are left out, since nothing behind the tokens attends to
            them.
        data: of the others.
    """

    first: int
    data: Items[Any]


class KVCache:
    """The pools of blocks, the prefix tree, and the tables of a step's sequences.

    Args:
        step: owner of the keys and values. One with blocks of layers with a window apart has two
            kinds of blocks.
        recurrent: whether sequences have states besides, which end reuse at saved ones.
        window: how many tokens, its own included, a token attends to in layers with a window, and
            without such a kind in all; ``None``: all.
        snapshots: most saved states.

    Attributes:
        kinds: of blocks.
    """

    def __init__(
        self,
        step: Step,
        *,
        recurrent: bool = False,
        window: int | None = None,
        snapshots: int = 32,
    ) -> None:
        self._step = step
        limits, inputs = step.limits, step.inputs
        apart = inputs.window_table
        pool = BlockPool(limits.blocks)
        near = window if apart is None else None
        self.kinds = [BlockKind("block", pool, inputs.table, near, limits.rows)]
        if apart is not None:
            pool = BlockPool(limits.window_blocks)
            self.kinds.append(BlockKind("window", pool, apart, window, limits.rows))
        self.tree = PrefixTree(
            [kind.pool for kind in self.kinds],
            [kind.window is not None for kind in self.kinds],
            recurrent=recurrent,
        )
        self.recurrent = recurrent
        self._snapshots = snapshots if recurrent else 0

    def lacks(self, tokens: int) -> BlockKind | None:
        """A kind of which a sequence of ``tokens`` tokens has more blocks than there are."""
        lacking = (k for k in self.kinds if k.most_blocks(tokens) > k.pool.count)
        return next(lacking, None)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Number of first tokens of a waiting sequence that it could reuse."""
        return self._match(sequence).tokens

    def start(self, sequence: Sequence, slot: int, spare: int) -> bool:
        """Give a sequence a slot, and the blocks of its longest cached prefix.

        Args:
            sequence: one that waits.
            slot: a free slot.
            spare: number of blocks that must stay available besides those of its tokens.

        Returns:
            Whether it was started; not, where too few blocks are available for its tokens.
        """
        match = self._match(sequence)
        if self._claim(sequence, match, spare):
            self._begin(sequence, slot, match)
            return True
        if match.partial is None:
            return False
        # The source of a copy takes a block for a moment, which may be the one that is lacking.
        match = match.shortened(0 if self.recurrent else len(match.path))
        if self._claim(sequence, match, spare):
            self._begin(sequence, slot, match)
            return True
        return False

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence blocks for its first ``tokens`` tokens; whether there were enough."""
        for kind, blocks in enumerate(sequence.blocks):
            while len(blocks) * BLOCK_TOKENS < tokens:
                block = self._take(kind)
                if block is None:
                    return False
                self._append(sequence, kind, block)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Cache the blocks that are full; equal ones of other sequences replace its own."""
        while (sequence.committed + 1) * BLOCK_TOKENS <= sequence.computed:
            place = sequence.committed
            first = place * BLOCK_TOKENS
            tokens = sequence.tokens[first : first + BLOCK_TOKENS]
            assert sequence.node is not None
            own = [blocks[place] for blocks in sequence.blocks]
            node = self.tree.insert(sequence.node, tokens, own)
            for kind, found, given in zip(self.kinds, node.blocks, sequence.blocks, strict=True):
                if found != given[place]:
                    kind.pool.retain(found)
                    kind.pool.release(given[place])
                    given[place] = found
                    kind.table[sequence.slot, place] = found
            sequence.node = node
            sequence.committed += 1
        self._free_behind(sequence)
        if sequence.computed and sequence.computed % SAVED_TOKENS == 0:
            self._save(sequence)

    def commit_part(self, sequence: Sequence) -> None:
        """Cache the last block too, of which a part is computed."""
        first = sequence.committed * BLOCK_TOKENS
        if first < sequence.computed:
            assert sequence.node is not None
            tokens = sequence.tokens[first : sequence.computed]
            own = [blocks[sequence.committed] for blocks in sequence.blocks]
            node = self.tree.insert(sequence.node, tokens, own)
            if self.recurrent and node.size == len(tokens) and node.saved is None:
                self.tree.save(node, self._step.pools.save_slot(sequence.slot), self._snapshots)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take slot and blocks from a sequence.

        Args:
            sequence: one with a slot.
            keep: cache what is computed; not, where a step has failed.
        """
        if keep:
            self.commit(sequence)
            self.commit_part(sequence)
        for kind, blocks, freed in zip(self.kinds, sequence.blocks, sequence.freed, strict=True):
            for block in blocks[freed:]:
                kind.pool.release(block)
        sequence.blocks, sequence.freed = [], []
        sequence.node = None
        sequence.slot = -1
        sequence.computed = sequence.committed = sequence.drafts = 0

    # -- prefixes in files -------------------------------------------------------------------------

    def read_prefix(
        self, tokens: NDArray[np.int32], salt: str
    ) -> tuple[int, dict[BlockName, SavedBlocks]]:
        """The whole cached blocks at the start of ``tokens``: their tokens, and those of each kind.

        Blocks that no later token attends to are left out.
        """
        path = self._usable(self.tree.match(tokens, salt)).path
        saved: dict[BlockName, SavedBlocks] = {}
        for k, kind in enumerate(self.kinds):
            first = kind.first_kept(len(path))
            blocks = [node.blocks[k] for node in path[first:]]
            data = [self._step.pools.read_block(block, kind.name) for block in blocks]
            saved[kind.name] = SavedBlocks(first, data)
        return len(path) * BLOCK_TOKENS, saved

    def write_prefix(self, tokens: NDArray[np.int32], salt: str, saved: Items[SavedBlocks]) -> int:
        """Cache whole blocks, the first one first; the number of tokens that found memory.

        Without room for all, none are cached of a model with windows: the last ones count there.
        """
        count = len(tokens) // BLOCK_TOKENS
        for kind, given in zip(self.kinds, saved, strict=True):
            if len(given.data) > kind.available:
                if any(other.window is not None for other in self.kinds):
                    return 0
                count = kind.available
        taken: list[list[int]] = []
        for k, (kind, given) in enumerate(zip(self.kinds, saved, strict=True)):
            taken.append([NO_BLOCK] * given.first)
            for data in given.data[: count - given.first]:
                block = self._take(k)
                assert block is not None, "there were enough"
                self._step.pools.write_block(block, data, kind.name)
                taken[k].append(block)
        node = self.tree.root(salt)
        for place in range(count):
            part = tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
            node = self.tree.insert(node, part, [blocks[place] for blocks in taken])
        for kind, blocks in zip(self.kinds, taken, strict=True):
            for block in blocks:
                if block != NO_BLOCK:
                    kind.pool.release(block)
        return count * BLOCK_TOKENS

    # -- start -------------------------------------------------------------------------------------

    def _claim(self, sequence: Sequence, match: Match, spare: int) -> bool:
        """Retain the blocks of a match, if enough others are available for the other tokens."""
        held = [*self._held(match)]
        for kind, block in held:
            kind.pool.retain(block)
        needed = blocks_for(sequence.length) - len(match.path)
        for kind in self.kinds:
            kept = len(match.path) - kind.first_kept(len(match.path))
            most = kind.most_blocks(sequence.length) - kept
            if kind.available < min(needed, most) + spare:
                break
        else:
            return True
        for kind, block in held:
            kind.pool.release(block)
        return False

    def _held(self, match: Match) -> Iterator[tuple[BlockKind, int]]:
        """The blocks that a sequence needs of a match, those that are copied included."""
        for k, kind in enumerate(self.kinds):
            for node in match.path[kind.first_kept(len(match.path)) :]:
                yield kind, node.blocks[k]
            if match.partial is not None:
                yield kind, match.partial.blocks[k]

    def _begin(self, sequence: Sequence, slot: int, match: Match) -> None:
        """Start a sequence behind a match whose blocks are retained."""
        sequence.slot = slot
        whole, partial = len(match.path), match.partial
        sequence.freed = [kind.first_kept(whole) for kind in self.kinds]
        sequence.blocks = [[] for _ in self.kinds]
        for k, freed in enumerate(sequence.freed):
            for place, node in enumerate(match.path):
                self._append(sequence, k, NO_BLOCK if place < freed else node.blocks[k])
            self._point_past(sequence, k)
        self.tree.touch(match.node)
        sequence.node = match.node
        sequence.committed = whole
        sequence.computed = match.tokens
        saved = match.node.saved
        if partial is not None:
            self.tree.touch(partial)
            saved = partial.saved
            for k, kind in enumerate(self.kinds):
                source = partial.blocks[k]
                target = self._take(k)
                assert target is not None  # _claim has seen to it
                self._step.pools.copy_block(source, target, kind.name)
                kind.pool.release(source)
                self._append(sequence, k, target)
        if self.recurrent and sequence.computed:
            self._step.pools.load_slot(slot, saved)

    def _match(self, sequence: Sequence) -> Match:
        """The longest cached prefix of a waiting sequence that has all blocks of its windows."""
        return self._usable(self.tree.match(self._reusable(sequence), sequence.request.salt))

    def _usable(self, match: Match) -> Match:
        """The part of a match that has the blocks which later tokens attend to."""
        if match.partial is not None and not match.partial.whole:
            match = match.shortened(len(match.path))
        while not all(self._has_window(match.path, kind) for kind in range(len(self.kinds))):
            match = match.shortened(len(match.path) - 1)
        return match

    def _has_window(self, path: Items[Node], kind: int) -> bool:
        first = self.kinds[kind].first_kept(len(path))
        return all(node.blocks[kind] != NO_BLOCK for node in path[first:])

    def _free_behind(self, sequence: Sequence) -> None:
        """Give back blocks that have left the window; the tree may keep them until it is full."""
        for k, kind in enumerate(self.kinds):
            end = min(kind.behind(sequence.computed), sequence.committed - 1)
            if end <= sequence.freed[k]:
                continue
            blocks = sequence.blocks[k]
            for place in range(sequence.freed[k], end):
                kind.pool.release(blocks[place])
                blocks[place] = NO_BLOCK
            sequence.freed[k] = end
            self._point_past(sequence, k)

    def _point_past(self, sequence: Sequence, kind: int) -> None:
        """Let the table name a block of the sequence's own where it has given back others.

        Kernels read keys in groups, of which some are behind the window; these have no weight.
        """
        freed, blocks = sequence.freed[kind], sequence.blocks[kind]
        if 0 < freed < len(blocks):
            self.kinds[kind].table[sequence.slot, :freed] = blocks[freed]

    def _reusable(self, sequence: Sequence) -> NDArray[np.int32]:
        """The tokens that may come from the cache: one row at least is computed."""
        length = sequence.length - 1
        if sequence.scores:
            wanted = sequence.score_from + len(sequence.prompt_logprobs)
            length = min(length, wanted - 1) if wanted < sequence.prompt else length
        return sequence.tokens[: max(length, 0)]

    def _save(self, sequence: Sequence) -> None:
        node = sequence.node
        if self.recurrent and node is not None and node.saved is None:
            self.tree.save(node, self._step.pools.save_slot(sequence.slot), self._snapshots)

    def _append(self, sequence: Sequence, kind: int, block: int) -> None:
        blocks = sequence.blocks[kind]
        self.kinds[kind].table[sequence.slot, len(blocks)] = block
        blocks.append(block)

    def _take(self, kind: int) -> int | None:
        """A free block, for which another may be evicted."""
        pool = self.kinds[kind].pool
        if not pool.free:
            self.tree.evict(kind)
        return pool.take()
