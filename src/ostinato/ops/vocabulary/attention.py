"""The methods of transformers: attention, rotary embedding, embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.linalg import LinalgVocabulary
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.variables import floor_div

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ops import attention, attention_rows, paged_attention
    from ostinato.ops.attention_rows import Scores
    from ostinato.variables import Dim
else:
    attention = LazyModule("ostinato.ops.attention")
    paged_attention = LazyModule("ostinato.ops.paged_attention")
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
        sinks: Any = None,
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
        sinks: Any = None,
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
        sinks: Any = None,
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
            sinks: ``[heads]``: a score for each head that the softmax counts as one more, which has
                no value. It is neither scaled nor masked. (gpt-oss; ONNX Runtime's ``head_sink``.)
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
        if sinks is not None and return_logsumexp:
            raise GraphError("return_logsumexp with sinks is not supported; leave one out")
        operands = [self._typed(x)[0] for x in (q, k, v, sinks, mask) if x is not None]
        result = self._one(
            attention.ATTENTION if sinks is None else attention.SINK_ATTENTION,
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

    def paged_attention(
        self,
        q: Any,
        keys: Any,
        values: Any,
        table: Any,
        sequence: Any,
        position: Any,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Any = None,
        key_scales: Any = None,
        value_scales: Any = None,
    ) -> T:
        """Causal attention of rows of many sequences to keys and values in blocks of a pool.

        Row ``n`` attends to the positions 0 to ``position[n]`` of its sequence, and no other
        element of the pools matters. Its result does not depend on the other rows, to the bit.

        Args:
            q: ``[rows, heads, head_dim]``, the rows of all sequences one below the other. Rows of
                one sequence that follow one another are computed together.
            keys: ``[blocks, T, key_heads, head_dim]``, blocks of ``T`` positions; ``key_heads``
                divides ``heads``.
            values: ``[blocks, T, key_heads, value_dim]``.
            table: integers ``[sequences, P]``: ``table[s, p]`` is the block with the positions from
                ``p * T`` on of sequence ``s``. Only the blocks that rows need are looked up.
            sequence: integers ``[rows]``.
            position: integers ``[rows]``; a row at a negative one gives zeros.
            scale: factor of the scores, ``1 / sqrt(head_dim)`` unless given.
            softcap: scores become ``softcap * tanh(scores / softcap)``.
            window: a row attends to the last so many positions alone, its own included.
            sinks: see :meth:`attention`.
            key_scales, value_scales: with pools of int8, and only then, factors of all features of
                a key or value: floats ``[blocks, T, key_heads]``.

        Returns:
            ``[rows, heads, value_dim]`` in the dtype of ``q``; pools may have another float dtype.
        """
        if (key_scales is None) != (value_scales is None):
            raise GraphError("key_scales and value_scales go together; one of them is missing")
        scales = (key_scales, value_scales)
        given = (q, keys, values, table, sequence, position, *scales, sinks)
        return self._one(
            paged_attention.PAGED_ATTENTION,
            *(self._typed(x)[0] for x in given if x is not None),
            scale=None if scale is None else float(scale),
            softcap=None if softcap is None else float(softcap),
            window=window,
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
