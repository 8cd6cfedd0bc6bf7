"""Attention by rows: the logarithms of its sums, and its gradients.

Scores of all queries with all keys grow with the square of the length. They are computed for some
queries at a time, whose results are joined.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.records import dataclass
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.variables import Dim

__all__ = ["Scores", "gradients", "logsumexp"]

#: Scores that are held at a time, unless sizes depend on Variables.
_MOST_SCORES = 2**22


@dataclass(frozen=True)
class Scores:
    """The scores of queries with keys, before the softmax.

    Attributes:
        g: the graph.
        q: ``[batch, heads, queries, head_dim]``.
        k: ``[batch, heads, keys, head_dim]``, repeated for all query heads.
        mask: bools or floats that broadcast to the scores, or ``None``.
        causal, window, softcap: see the op ``attention``.
        scale: factor of the products.
    """

    g: Any
    q: Any
    k: Any
    mask: Any
    causal: bool
    window: int | None
    scale: float
    softcap: float | None

    def blocks(self) -> Iterator[tuple[Dim, Dim]]:
        """Ranges of queries that together are all of them."""
        *lead, length, _ = self.g.type_of(self.q).shape
        keys = self.g.type_of(self.k).shape[2]
        if not isinstance(length, int):
            yield 0, length
            return
        rows = max(_MOST_SCORES // max(bounds(prod(lead) * keys)[1], 1), 64)
        for start in range(0, max(length, 1), rows):
            yield start, min(start + rows, length)

    def rows(self, x: Any, start: Dim, stop: Dim) -> Any:
        """A range of the queries' axis, the third one."""
        return self.g.slice(x, [start], [stop], axes=[2])

    def of(self, start: Dim, stop: Dim) -> tuple[Any, Any]:
        """The masked scores of a range of queries, and the slope of the soft limit, if any."""
        g = self.g
        keys = g.matrix_transpose(self.k)
        scores = g.multiply(g.matmul(self.rows(self.q, start, stop), keys), self.scale)
        slope = None
        if self.softcap is not None:
            limited = g.tanh(g.divide(scores, self.softcap))
            slope = g.subtract(1.0, g.square(limited))
            scores = g.multiply(limited, self.softcap)
        if self.mask is not None:
            scores = self._masked(scores, start, stop)
        return self._banded(scores, start, stop), slope

    def _masked(self, scores: Any, start: Dim, stop: Dim) -> Any:
        g, mask = self.g, self.mask
        type_ = g.type_of(mask)
        if type_.ndim >= 2 and type_.shape[-2] != 1:
            mask = g.slice(mask, [start], [stop], axes=[type_.ndim - 2])
        if type_.dtype.is_bool:
            return g.where(mask, scores, -math.inf)
        return g.add(scores, g.cast(mask, g.type_of(scores).dtype))

    def _banded(self, scores: Any, start: Dim, stop: Dim) -> Any:
        if not self.causal and self.window is None:
            return scores
        g = self.g
        length, keys = g.type_of(self.q).shape[2], g.type_of(self.k).shape[2]
        # The queries are the last of the keys' positions.
        query = g.add(g.iota((stop - start, 1), 0, INT64), g.dim_value(keys - length + start))
        ahead = g.subtract(query, g.iota((1, keys), 1, INT64))
        if self.causal:
            scores = g.where(g.greater_equal(ahead, 0), scores, -math.inf)
        if self.window is not None:
            scores = g.where(g.less(ahead, self.window), scores, -math.inf)
        return scores


def logsumexp(scores: Scores) -> Any:
    """``log(sum(exp(scores)))`` of each query: ``[batch, heads, queries]``."""
    g = scores.g
    parts = [g.logsumexp(scores.of(*block)[0], axis=3) for block in scores.blocks()]
    return g.concat(parts, axis=2)


def gradients(scores: Scores, v: Any, out: Any, sums: Any, grad: Any) -> tuple[Any, Any, Any]:
    """The gradients of queries, keys and values.

    Args:
        scores: of the attention.
        v: the values, repeated for all query heads as the keys are.
        out: the result of the attention.
        sums: its :func:`logsumexp`.
        grad: the gradient of the result.
    """
    g = scores.g
    inner = g.sum(g.multiply(grad, out), axis=3, keepdims=True)
    shift = g.expand_dims(g.where(g.equal(sums, -math.inf), 0.0, sums), 3)
    queries, keys, values = [], None, None
    for block in scores.blocks():
        found, slope = scores.of(*block)
        above = scores.rows(grad, *block)
        weights = g.exp(g.subtract(found, scores.rows(shift, *block)))
        change = g.subtract(g.matmul(above, g.matrix_transpose(v)), scores.rows(inner, *block))
        change = g.multiply(g.multiply(weights, change), scores.scale)
        if slope is not None:
            change = g.multiply(change, slope)
        queries.append(g.matmul(change, scores.k))
        for_keys = g.matmul(g.matrix_transpose(change), scores.rows(scores.q, *block))
        for_values = g.matmul(g.matrix_transpose(weights), above)
        keys = for_keys if keys is None else g.add(keys, for_keys)
        values = for_values if values is None else g.add(values, for_values)
    return g.concat(queries, axis=2), keys, values
