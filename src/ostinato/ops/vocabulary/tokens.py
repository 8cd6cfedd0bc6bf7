"""The methods of language models' last step: masks over tokens, and their choice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, INT64, UINT32
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary

if TYPE_CHECKING:
    from ostinato.ops import tokens
else:
    tokens = LazyModule("ostinato.ops.tokens")

__all__ = ["TokenVocabulary"]


class TokenVocabulary(ShapeVocabulary[T], ElementwiseVocabulary[T]):
    """Methods over logits ``[rows, vocabulary]``."""

    def mask_tokens(self, logits: Any, bits: Any) -> T:
        """``logits`` with minus infinity where a token's bit is 0.

        Args:
            logits: floats ``[rows, vocabulary]``.
            bits: uint32 ``[rows, ceil(vocabulary / 32)]``: bit ``v % 32`` of word ``v // 32`` is
                that of token ``v``. Bits beyond the vocabulary do not matter.

        Raises:
            GraphError: logits of another form, or not a bit for each.
        """
        x, type_ = self._typed(logits)
        words, bits_type = self._typed(bits)
        known = type_.ndim == 2 and isinstance(type_.shape[1], int)
        if not known or not type_.dtype.is_float:
            raise GraphError(f"logits are floats [rows, vocabulary], got {type_}")
        rows, vocabulary = type_.shape
        assert isinstance(vocabulary, int)
        count = -(-vocabulary // 32)
        if bits_type.dtype != UINT32 or bits_type.shape != (rows, count):
            raise GraphError(f"bits are uint32 [{rows},{count}] for {type_}, got {bits_type}")
        single = self.bitwise_right_shift(
            self.reshape(words, (rows, count, 1)), self.iota((1, 1, 32), 2, UINT32)
        )
        flags = self.reshape(self.bitwise_and(single, 1), (rows, 32 * count))
        flags = self.slice(flags, [0], [vocabulary], axes=[1])
        return self.where(self.not_equal(flags, 0), x, -math.inf)

    def sample(
        self, logits: Any, uniform: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any
    ) -> T:
        """A token for each row, int32 ``[rows]``, drawn from its filtered distribution.

        The filters apply in the order of the arguments. Tokens are ranked by probability, equal
        ones by number. Of logits, a NaN is minus infinity; a row of nothing else gives token 0.

        Args:
            logits: floats ``[rows, vocabulary]``.
            uniform: floats ``[rows]`` from 0 up to below 1. The token is the lowest one at which
                the sum of the kept probabilities, in order of token numbers, exceeds it.
            temperature: floats ``[rows]``, divisors of the logits. 0: the token of the greatest
                logit, of several the lowest; filters do not matter then.
            top_k: integers ``[rows]``: so many of the first ranks are kept; 0: all.
            top_p: floats ``[rows]``: of these the fewest first ones whose probabilities, out of
                all that are left, add up to it, at least one; 1: all.
            min_p: floats ``[rows]``: of these the ones with that probability at least, relative
                to the first; 0: all.

        Raises:
            GraphError: operands of another form.
        """
        given = (logits, uniform, temperature, top_k, top_p, min_p)
        return self._one(tokens.SAMPLE, *(self._typed(x)[0] for x in given))

    def draw(self, weights: Any, uniform: Any, top_k: Any, top_p: Any, min_p: Any) -> T:
        """A token for each row, int32 ``[rows]``, drawn in proportion to weights that are kept.

        Args:
            weights: ``[rows, vocabulary]``, converted to float32. Those that are not above 0 are
                never drawn; a row of nothing else gives token 0.
            uniform, top_k, top_p, min_p: as for :meth:`sample`, with tokens ranked by weight.

        Raises:
            GraphError: operands of another form.
        """
        floats = [self.cast(x, FLOAT32) for x in (weights, uniform, top_p, min_p)]
        ranks = self.cast(top_k, INT64)
        return self._one(tokens.DRAW, floats[0], floats[1], ranks, floats[2], floats[3])
