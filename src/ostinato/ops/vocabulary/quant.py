"""The methods for matmuls with quantised weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T, VocabularyCore

if TYPE_CHECKING:
    from ostinato.ops import quant
else:
    quant = LazyModule("ostinato.ops.quant")

__all__ = ["QuantVocabulary"]


class QuantVocabulary(VocabularyCore[T]):
    """Methods that multiply integers in place of floats; ``ost.quantize`` makes their operands."""

    def integer_matmul(self, a: Any, b: Any) -> T:
        """``a @ b`` of int8 or uint8, ``a [..., K]`` and ``b [K, N]``, summed in int32, wrapping.

        Raises:
            GraphError: another dtype, ``b`` is no matrix of known sizes, or ``K`` differs.
        """
        return self._one(quant.INTEGER_MATMUL, *self._lift(a, b))

    def quantized_matmul(self, x: Any, w: Any, scales: Any) -> T:
        """``x @ (w * scales)``, each row of ``x`` rounded to 8 bits between its extremes.

        A row with a NaN or an infinity in it gives NaN throughout.

        Args:
            x: float32, float16 or bfloat16 ``[..., K]``.
            w: int8 ``[K, N]``, within ``-127..127`` where symmetric.
            scales: float ``[N]``, one per column of ``w``.

        Raises:
            GraphError: shapes or dtypes do not fit, or ``K`` is zero or beyond 65536.
        """
        return self._one(quant.QUANTIZED_MATMUL, *self._lift(x, w, scales))

    def int4_matmul(self, x: Any, codes: Any, scales: Any, *, group: int = 32) -> T:
        """``x @ W`` with ``W[k, n] = (code(k, n) - 8) * scales[k // group, n]`` of 4-bit codes.

        Each group of a row of ``x`` is rounded to 8 bits by its largest magnitude. A row with a NaN
        or an infinity in it gives NaN throughout.

        Args:
            x: float32, float16 or bfloat16 ``[..., K]``.
            codes: uint8 ``[ceil(K / 2), N]``: row ``i`` has the code of ``k = 2 i`` in the low half
                of its bytes, that of ``2 i + 1`` in the high half.
            scales: float ``[ceil(K / group), N]``.
            group: 32, 64 or 128.

        Raises:
            GraphError: shapes or dtypes do not fit, or ``K`` is zero.
        """
        return self._one(quant.INT4_MATMUL, *self._lift(x, codes, scales), group=group)

    def blockwise_matmul(
        self, q: Any, q_scales: Any, codes: Any, scales: Any, *, group: int = 32
    ) -> T:
        """``int4_matmul`` of activations that are 8-bit integers already, in float32.

        Args:
            q: int8 ``[..., K]``, with ``K`` a multiple of ``group``.
            q_scales: float32 ``[..., K / group]``.
            codes: as in ``int4_matmul``; rows of codes missing from the last group mean zeros.
            scales: as in ``int4_matmul``.
            group: 32, 64 or 128.

        Raises:
            GraphError: shapes or dtypes do not fit.
        """
        operands = self._lift(q, q_scales, codes, scales)
        return self._one(quant.BLOCKWISE_MATMUL, *operands, group=group)
