"""Blocks of keys and values of sequences: reuse of prefixes, growth, and release."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ostinato.llm.engine.blocks import BlockPool
from ostinato.llm.engine.interfaces import BLOCK_TOKENS
from ostinato.llm.engine.prefix_tree import NO_BLOCK, Match, PrefixTree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from ostinato.llm.engine.interfaces import Step
    from ostinato.llm.engine.sequence import Sequence

__all__ = ["KVCache", "blocks_for", "most_blocks"]

#: Tokens between two saved states of a recurrent model.
SAVED_TOKENS = 256


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


class KVCache:
    """The pool of blocks, the prefix tree, and the tables of a step's sequences.

    Args:
        step: owner of the keys and values.
        recurrent: whether sequences have states besides, which end reuse at saved ones.
        window: how many tokens, its own included, a token attends to in any layer; ``None``: all.
            Blocks behind it are given back while a sequence goes on.
        snapshots: most saved states.
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
        self._window = window
        self.pool = BlockPool(step.limits.blocks)
        self.tree = PrefixTree(self.pool, recurrent=recurrent, windowed=window is not None)
        self.recurrent = recurrent
        self._snapshots = snapshots if recurrent else 0

    @property
    def available(self) -> int:
        """Number of blocks that are free or can be evicted."""
        return self.pool.free + self.pool.idle

    def most_blocks(self, tokens: int) -> int:
        """Number of blocks that a sequence of ``tokens`` tokens has at a time, at most."""
        return most_blocks(tokens, self._window, self._step.limits.rows)

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
        whole = self.tree.root(sequence.request.salt) if self.recurrent else match.node
        blocks = () if self.recurrent else match.blocks
        match = Match(whole, blocks, None, len(blocks) * BLOCK_TOKENS)
        if self._claim(sequence, match, spare):
            self._begin(sequence, slot, match)
            return True
        return False

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence blocks for its first ``tokens`` tokens; whether there were enough."""
        while len(sequence.blocks) * BLOCK_TOKENS < tokens:
            block = self._take()
            if block is None:
                return False
            self._append(sequence, block)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Cache the blocks that are full; equal ones of other sequences replace its own."""
        while (sequence.committed + 1) * BLOCK_TOKENS <= sequence.computed:
            place = sequence.committed
            first = place * BLOCK_TOKENS
            tokens = sequence.tokens[first : first + BLOCK_TOKENS]
            assert sequence.node is not None
            node = self.tree.insert(sequence.node, tokens, sequence.blocks[place])
            if node.block != sequence.blocks[place]:
                self.pool.retain(node.block)
                self.pool.release(sequence.blocks[place])
                sequence.blocks[place] = node.block
                self._step.inputs.table[sequence.slot, place] = node.block
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
            node = self.tree.insert(sequence.node, tokens, sequence.blocks[sequence.committed])
            if self.recurrent and node.size == len(tokens) and node.saved is None:
                self.tree.save(node, self._step.save_slot(sequence.slot), self._snapshots)

    def release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take slot and blocks from a sequence.

        Args:
            sequence: one with a slot.
            keep: cache what is computed; not, where a step has failed.
        """
        if keep:
            self.commit(sequence)
            self.commit_part(sequence)
        for block in sequence.blocks[sequence.freed :]:
            self.pool.release(block)
        sequence.blocks = []
        sequence.node = None
        sequence.slot = -1
        sequence.computed = sequence.committed = sequence.freed = sequence.drafts = 0

    def read_prefix(self, tokens: NDArray[np.int32], salt: str) -> list[Any]:
        """The data of the whole cached blocks at the start of ``tokens``."""
        blocks = self.tree.match(tokens, salt).blocks
        return [
            self._step.read_block(block)
            for block in itertools.takewhile(lambda block: block != NO_BLOCK, blocks)
        ]

    def write_prefix(self, tokens: NDArray[np.int32], salt: str, data: Iterable[Any]) -> int:
        """Cache whole blocks, the first one first; the number of tokens that found memory."""
        node = self.tree.root(salt)
        held = list[int]()
        for place, block_data in enumerate(data):
            block = self._take()
            if block is None:
                break
            self._step.write_block(block, block_data)
            part = tokens[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
            node = self.tree.insert(node, part, block)
            if node.block != block:
                self.pool.retain(node.block)
                self.pool.release(block)
            held.append(node.block)
        for block in held:
            self.pool.release(block)
        return len(held) * BLOCK_TOKENS

    def _claim(self, sequence: Sequence, match: Match, spare: int) -> bool:
        """Retain the blocks of a match, if enough others are available for the other tokens."""
        kept = [block for block in match.blocks if block != NO_BLOCK]
        held = [*kept, *([match.partial.block] if match.partial is not None else [])]
        for block in held:
            self.pool.retain(block)
        needed = blocks_for(sequence.length) - len(match.blocks)
        most = self.most_blocks(sequence.length) - len(kept)
        if self.available >= min(needed, most) + spare:
            return True
        for block in held:
            self.pool.release(block)
        return False

    def _begin(self, sequence: Sequence, slot: int, match: Match) -> None:
        """Start a sequence behind a match whose blocks are retained."""
        sequence.slot = slot
        for block in match.blocks:
            self._append(sequence, block)
        sequence.freed = match.blocks.count(NO_BLOCK)
        self._point_past(sequence)
        self.tree.touch(match.node)
        sequence.node = match.node
        sequence.committed = len(match.blocks)
        sequence.computed = match.tokens
        saved = match.node.saved
        if match.partial is not None:
            self.tree.touch(match.partial)
            target = self._take()
            assert target is not None  # _claim has seen to it
            self._step.copy_block(match.partial.block, target)
            self.pool.release(match.partial.block)
            self._append(sequence, target)
            saved = match.partial.saved
        if self.recurrent and sequence.computed:
            self._step.load_slot(slot, saved)

    def _match(self, sequence: Sequence) -> Match:
        """The longest cached prefix of a waiting sequence that has all blocks of its window."""
        match = self.tree.match(self._reusable(sequence), sequence.request.salt)
        if self._window is None:
            return match
        blocks, node, partial, tokens = [*match.blocks], match.node, match.partial, match.tokens
        if partial is not None and partial.block == NO_BLOCK:
            partial, tokens = None, len(blocks) * BLOCK_TOKENS
        while NO_BLOCK in blocks[self._first_kept(len(blocks)) :]:
            blocks.pop()
            assert node.parent is not None
            node, partial, tokens = node.parent, None, len(blocks) * BLOCK_TOKENS
        first = self._first_kept(len(blocks))
        return Match(node, (*([NO_BLOCK] * first), *blocks[first:]), partial, tokens)

    def _first_kept(self, count: int) -> int:
        """Number of first blocks, of ``count`` whole ones, that a sequence behind them can spare.

        The last one stays, so that its node does.
        """
        return min(self._behind(count * BLOCK_TOKENS), max(count - 1, 0))

    def _behind(self, tokens: int) -> int:
        """Number of first blocks that no token from position ``tokens`` on attends to."""
        return 0 if self._window is None else max(tokens - self._window + 1, 0) // BLOCK_TOKENS

    def _free_behind(self, sequence: Sequence) -> None:
        """Give back blocks that have left the window; the tree may keep them until it is full."""
        end = min(self._behind(sequence.computed), sequence.committed - 1)
        if end <= sequence.freed:
            return
        for place in range(sequence.freed, end):
            self.pool.release(sequence.blocks[place])
            sequence.blocks[place] = NO_BLOCK
        sequence.freed = end
        self._point_past(sequence)

    def _point_past(self, sequence: Sequence) -> None:
        """Let the table name a block of the sequence's own where it has given back others.

        Kernels read keys in groups, of which some are behind the window; these have no weight.
        """
        if 0 < sequence.freed < len(sequence.blocks):
            own = sequence.blocks[sequence.freed]
            self._step.inputs.table[sequence.slot, : sequence.freed] = own

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
            self.tree.save(node, self._step.save_slot(sequence.slot), self._snapshots)

    def _append(self, sequence: Sequence, block: int) -> None:
        self._step.inputs.table[sequence.slot, len(sequence.blocks)] = block
        sequence.blocks.append(block)

    def _take(self) -> int | None:
        """A free block, for which another may be evicted."""
        if not self.pool.free:
            self.tree.evict()
        return self.pool.take()
