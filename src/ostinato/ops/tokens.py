"""The choice of tokens from logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, INT32, INT64
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Value

__all__ = ["DRAW", "FAMILY", "SAMPLE", "Draw", "Sample"]

#: Names of the operands of ``sample`` that hold a number for each row.
_SETTINGS = ("uniform", "temperature", "top_k", "top_p", "min_p")

#: The greatest temperature: a division by infinity would make NaNs of impossible tokens.
_HOTTEST = 3e38


class Sample(Op):
    """A token for each row of ``logits [R, V]``, int32 ``[R]``.

    The other operands are ``[R]``: ``uniform``, ``temperature``, ``top_k`` (integers), ``top_p``
    and ``min_p``. Where ``temperature`` is 0 (or less), the token of the greatest logit, of several
    the lowest. Else a token's weight is ``exp((logit - greatest) / temperature)``, in float32, and,
    in this order, with tokens ranked by weight and equal ones by number,

    - ``top_k``, unless 0 or less, keeps the first so many;
    - ``top_p``, if less than 1, keeps of these the fewest first ones whose weights add up to
      ``top_p`` times the sum of all, at least one;
    - ``min_p`` keeps of these the tokens whose weight is ``min_p`` at least, and the first.

    The token is the lowest kept one at which the sum of the kept weights up to and including it
    exceeds ``uniform`` times their whole sum: the inverse of the cumulative distribution in order
    of token numbers. With ``uniform`` at or above 1 it is the last one with a weight.

    A NaN among the logits is minus infinity, whose weight is 0. A row of nothing else gives token
    0.
    """

    name = "sample"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 6)
        logits, *settings = operands
        _expect_rows(self, "logits", logits)
        rows = logits.shape[0]
        for name, numbers in zip(_SETTINGS, settings, strict=True):
            integers = name == "top_k"
            fits = numbers.dtype.is_integer if integers else numbers.dtype.is_float
            kind = "integers" if integers else "floats"
            self.expect(
                fits and numbers.shape == (rows,),
                f"{name} is {kind} [{rows}], one for each row of logits, got {numbers}",
            )
        return (TensorType(INT32, (rows,)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return DRAW.evaluate(xp, *self._weighed(xp, *operands))

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        wide = [g.cast(x, x.dtype.accumulator) if x.dtype.is_float else x for x in operands]
        return g.draw(*self._weighed(g, *wide))

    @staticmethod
    def _weighed(
        xp: Any, logits: Any, uniform: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any
    ) -> tuple[Any, ...]:
        """The operands of ``draw``; where the temperature is 0, the first rank alone."""
        cold = xp.logical_not(xp.greater(temperature, 0.0))
        divisor = xp.minimum(xp.where(cold, 1.0, temperature), _HOTTEST)
        logits = xp.where(xp.isnan(logits), -math.inf, logits)
        greatest = xp.max(logits, axis=1, keepdims=True)
        below = xp.where(xp.equal(logits, greatest), 0.0, logits - greatest)
        weights = xp.exp(below / xp.reshape(divisor, (logits.shape[0], 1)))
        weights = xp.where(xp.greater(logits, -math.inf), weights, 0.0)
        return weights, uniform, xp.where(cold, 1, xp.cast(top_k, INT64)), top_p, min_p


class Draw(Op):
    """A token for each row of ``weights [R, V]``, float32, in proportion to those that are kept.

    The other operands are ``[R]``: ``uniform``, ``top_p`` and ``min_p``, float32, and ``top_k``,
    int64. The result is int32 ``[R]``. Tokens are ranked by weight, equal ones by number. The
    filters, and the token, are those of ``sample``, which explains them; ``min_p`` is relative to
    the greatest weight. Weights that are not above 0 are never drawn; in a row of nothing else the
    token is 0.
    """

    name = "draw"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 5)
        weights, *settings = operands
        _expect_rows(self, "weights", weights)
        self.expect(weights.dtype == FLOAT32, f"weights are float32, got {weights}; cast them")
        for name, numbers in zip(("uniform", "top_k", "top_p", "min_p"), settings, strict=True):
            wanted = TensorType(INT64 if name == "top_k" else FLOAT32, weights.shape[:1])
            self.expect(numbers == wanted, f"{name} is {wanted}, got {numbers}")
        return (TensorType(INT32, weights.shape[:1]),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self._rule(xp, *operands)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return self._rule(g, *operands)

    @staticmethod
    def _rule(xp: Any, weights: Any, uniform: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
        rows, vocabulary = weights.shape
        uniform, top_k, top_p, min_p = (
            xp.reshape(x, (rows, 1)) for x in (uniform, top_k, top_p, min_p)
        )
        token = xp.iota((1, vocabulary), 1, INT64)
        weights = xp.where(xp.greater(weights, 0.0), weights, 0.0)
        # All filters keep tokens of the first ranks, so the last one that is kept says it all.
        order = xp.argsort(weights, axis=1, descending=True)
        ranked = xp.take_along_axis(weights, order, axis=1)
        limit = xp.where(xp.greater(top_k, 0), top_k, vocabulary)
        sums = xp.cumsum(xp.where(xp.less(token, limit), ranked, 0.0), axis=1)
        kept = xp.less(sums - ranked, top_p * sums[:, vocabulary - 1 :])
        kept = xp.logical_or(kept, xp.logical_not(xp.less(top_p, 1.0)))
        kept = xp.logical_and(kept, xp.less(token, limit))
        likely = xp.logical_not(xp.less(ranked, min_p * ranked[:, :1]))
        count = xp.sum(xp.cast(xp.logical_and(kept, likely), INT64), axis=1, keepdims=True)
        last = xp.take_along_axis(order, xp.maximum(count - 1, 0), axis=1)
        least = xp.take_along_axis(weights, last, axis=1)
        equal = xp.logical_and(xp.equal(weights, least), xp.less_equal(token, last))
        chosen = xp.where(xp.logical_or(xp.greater(weights, least), equal), weights, 0.0)
        possible = xp.greater(chosen, 0.0)
        sums = xp.cumsum(chosen, axis=1)
        drawn = xp.where(xp.greater(uniform, 0.0), uniform, 0.0) * sums[:, vocabulary - 1 :]
        beyond = xp.logical_and(possible, xp.greater(sums, drawn))
        first = xp.min(xp.where(beyond, token, vocabulary), axis=1)
        return xp.cast(xp.minimum(first, xp.max(xp.where(possible, token, 0), axis=1)), INT32)


def _expect_rows(op: Op, name: str, rows: TensorType) -> None:
    """Refuse what is no float for each token of a known vocabulary."""
    op.expect(
        rows.ndim == 2 and rows.dtype.is_float,
        f"{name} are floats [rows, vocabulary], got {rows}",
    )
    vocabulary = rows.shape[1]
    op.expect(
        isinstance(vocabulary, int) and 0 < vocabulary < 2**31,
        f"the vocabulary is a known size of 1 to 2**31 - 1 tokens, got {vocabulary}",
    )


SAMPLE, DRAW = Sample(), Draw()
FAMILY: tuple[Op, ...] = (SAMPLE, DRAW)
