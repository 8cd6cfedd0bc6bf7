"""The methods of transformers: attention, rotary embedding, embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary

if TYPE_CHECKING:
    from ostinato.ops import attention
else:
    attention = LazyModule("ostinato.ops.attention")

__all__ = ["AttentionVocabulary"]


class AttentionVocabulary(IndexingVocabulary[T]):
    """Methods over sequences of tokens; they raise :class:`~ostinato.errors.GraphError`."""

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        mask: Any = None,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> T:
        """``softmax(scale * q @ k^T) @ v``: scaled dot-product attention.

        A query that attends to no key gives zeros.

        Args:
            q: ``[batch, heads, queries, head_dim]``. These are the last of the positions that
                ``k`` holds: query ``i`` stands at ``i + keys - queries``.
            k: ``[batch, key_heads, keys, head_dim]``; ``key_heads`` divides ``heads``, and each
                serves as many query heads in a row.
            v: ``[batch, key_heads, keys, value_dim]``.
            mask: broadcasts to ``[batch, heads, queries, keys]``. Bool: true where a query attends
                to a key. Float: added to the scores.
            causal: no query attends to a later position.
            window: no query attends to a position ``window`` or more before its own; together
                with ``causal``, the ``window`` most recent positions are left.
            scale: factor of the scores, ``1 / sqrt(head_dim)`` unless given.
            softcap: scores become ``softcap * tanh(scores / softcap)``, before masking.

        Returns:
            ``[batch, heads, queries, value_dim]`` in the dtype of ``q``.
        """
        operands = [self._typed(x)[0] for x in (q, k, v, mask) if x is not None]
        return self._one(
            attention.ATTENTION,
            *operands,
            causal=bool(causal),
            window=window,
            scale=None if scale is None else float(scale),
            softcap=None if softcap is None else float(softcap),
        )

    def rope(self, x: Any, cos: Any, sin: Any, *, interleaved: bool = False) -> T:
        """Rotary position embedding: pairs of features turned by an angle of their position.

        Args:
            x: ``[..., length, features]``.
            cos: cosines, ``[..., length, pairs]``, one per pair; leading dims broadcast to those
                of ``x``. ``2 * pairs`` features turn, the rest passes through.
            sin: sines, of the same shape.
            interleaved: pairs are neighbours ``(2 i, 2 i + 1)``, not ``(i, i + pairs)``.

        Returns:
            The shape and dtype of ``x``.
        """
        operands = [self._typed(operand)[0] for operand in (x, cos, sin)]
        return self._one(attention.ROPE, *operands, interleaved=bool(interleaved))

    def embedding(self, ids: Any, table: Any) -> T:
        """Rows of ``table [vocabulary, ...]`` at integer ``ids``: ``[*ids.shape, ...]``."""
        return self.take(table, ids, axis=0)
