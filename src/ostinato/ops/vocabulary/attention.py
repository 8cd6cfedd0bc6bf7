"""The methods of transformers: attention, rotary embedding, embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.linalg import LinalgVocabulary
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.variables import floor_div

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ops import attention, attention_rows
    from ostinato.ops.attention_rows import Scores
    from ostinato.variables import Dim
else:
    attention = LazyModule("ostinato.ops.attention")
    attention_rows = LazyModule("ostinato.ops.attention_rows")

__all__ = ["AttentionVocabulary"]


class AttentionVocabulary(LinalgVocabulary[T], ReductionVocabulary[T], IndexingVocabulary[T]):
    """Methods over sequences of tokens; they raise :class:`~ostinato.errors.GraphError`."""

    @overload
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
        return_logsumexp: Literal[False] = False,
    ) -> T: ...

    @overload
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
        return_logsumexp: Literal[True],
    ) -> tuple[T, T]: ...

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
        return_logsumexp: bool = False,
    ) -> T | tuple[T, T]:
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
            return_logsumexp: whether to return, besides, ``log(sum(exp(scores)))`` of each query:
                ``[batch, heads, queries]``, of 16-bit floats in float32.

        Returns:
            ``[batch, heads, queries, value_dim]`` in the dtype of ``q``.
        """
        operands = [self._typed(x)[0] for x in (q, k, v, mask) if x is not None]
        result = self._one(
            attention.ATTENTION,
            *operands,
            causal=bool(causal),
            window=window,
            scale=None if scale is None else float(scale),
            softcap=None if softcap is None else float(softcap),
        )
        if not return_logsumexp:
            return result
        scores = self._scores(operands[0], operands[1], mask, causal, window, scale, softcap)
        return result, attention_rows.logsumexp(scores)

    def attention_backward(
        self,
        grad: Any,
        q: Any,
        k: Any,
        v: Any,
        result: Any,
        logsumexp: Any,
        *,
        mask: Any = None,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[T, T, T]:
        """The gradients of the first three operands of :meth:`attention`.

        Args:
            grad: the gradient of its result.
            q, k, v, mask, causal, window, scale, softcap: its operands.
            result, logsumexp: its results, with ``return_logsumexp``.
        """
        query, type_ = self._typed(q)
        key, value = self._typed(k)[0], self._typed(v)[0]
        wide = type_.dtype.accumulator
        scores = self._scores(query, key, mask, causal, window, scale, softcap)
        rest = (self.cast(self._typed(x)[0], wide) for x in (result, logsumexp, grad))
        found = attention_rows.gradients(
            scores, self._for_all_heads(value, type_.shape[1], wide), *rest
        )
        shares = self._typed(key)[1].shape[1]
        kept = (found[0], *(self._for_shared_heads(part, shares) for part in found[1:]))
        first, second, third = (self.cast(part, type_.dtype) for part in kept)
        return first, second, third

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

    # -- machinery --------------------------------------------------------------------------

    def _scores(
        self,
        q: T,
        k: T,
        mask: Any,
        causal: bool,
        window: int | None,
        scale: float | None,
        softcap: float | None,
    ) -> Scores:
        type_ = self._typed(q)[1]
        depth, wide = type_.shape[3], type_.dtype.accumulator
        assert isinstance(depth, int), "the op attention has checked it"
        return attention_rows.Scores(
            self,
            self.cast(q, wide),
            self._for_all_heads(k, type_.shape[1], wide),
            None if mask is None else self._typed(mask)[0],
            bool(causal),
            window,
            1 / math.sqrt(depth) if scale is None else float(scale),
            None if softcap is None else float(softcap),
        )

    def _for_all_heads(self, x: T, heads: Dim, dtype: DType) -> T:
        """Keys or values, once for each query head that they serve."""
        shares = self._typed(x)[1].shape[1]
        wide = self.cast(x, dtype)
        return wide if shares == heads else self.repeat(wide, floor_div(heads, shares), axis=1)

    def _for_shared_heads(self, x: T, shares: Dim) -> T:
        """Gradients of all query heads, summed over those that share keys or values."""
        batch, heads, *rest = self._typed(x)[1].shape
        if shares == heads:
            return x
        return self.sum(self.reshape(x, (batch, shares, floor_div(heads, shares), *rest)), axis=2)
