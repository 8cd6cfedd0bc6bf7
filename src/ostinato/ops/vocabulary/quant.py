"""The methods for matmuls with quantised operands: integers, and floats of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, DType
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.reduction import ReductionVocabulary

if TYPE_CHECKING:
    from ostinato.ops import float8, quant
else:
    float8 = LazyModule("ostinato.ops.float8")
    quant = LazyModule("ostinato.ops.quant")

__all__ = ["QuantVocabulary"]


class QuantVocabulary(ReductionVocabulary[T]):
    """Methods that multiply 8-bit numbers in place of floats; ``ost.quantize`` makes operands."""

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

    def scaled_matmul(
        self, x: Any, w: Any, x_scale: Any = 1.0, w_scale: Any = 1.0, dtype: Any = "float32"
    ) -> T:
        """``(x @ w) * x_scale * w_scale`` of 8-bit floats, summed in float32 and rounded once.

        The formats are those of the OCP 8-bit Floating Point Specification, E4M3 and E5M2; the
        operands may differ in theirs. :meth:`quantize_rows` makes operands of wide floats.

        Args:
            x: float8_e4m3fn or float8_e5m2 ``[..., K]``.
            w: float8_e4m3fn or float8_e5m2 ``[K, N]``.
            x_scale: float32: a scalar, or one for each row, ``[..., 1]``.
            w_scale: float32: a scalar, or one for each column, ``[N]``.
            dtype: of the result: float32, float16 or bfloat16.

        Raises:
            GraphError: shapes or dtypes do not fit, or ``w`` is no matrix of known sizes.
        """
        scales = self._scale(x_scale), self._scale(w_scale)
        attrs = {"dtype": DType.parse(dtype)}
        return self._one(float8.SCALED_MATMUL, *self._lift(x, w), *scales, **attrs)

    def quantize_rows(self, x: Any, dtype: Any = "float8_e4m3fn") -> tuple[T, T]:
        """``(q, scale)``: rows of ``x`` as 8-bit floats, by the greatest magnitude of each.

        ``scale = max|x| / greatest`` and ``q = x / scale``, rounded to nearest even; ``greatest``
        is 448 of float8_e4m3fn, 57344 of float8_e5m2. A row of zeros has the scale 0. The scale of
        a row with a NaN or an infinity in it makes NaN of every product.

        Args:
            x: floats ``[..., K]``, at least one in a row.
            dtype: float8_e4m3fn or float8_e5m2.

        Returns:
            ``q [..., K]``, and ``scale``, float32 ``[..., 1]``.

        Raises:
            GraphError: another dtype, or ``x`` has no rows.
        """
        found = DType.parse(dtype)
        if found not in float8.GREATEST:
            names = " or ".join(map(str, float8.GREATEST))
            raise GraphError(f"rows become {names}, not {found}")
        x, type_ = self._typed(x)
        if not type_.dtype.is_float:
            raise GraphError(f"rows are of floats, got {type_}")
        return float8.rows_by_magnitude(self, self.cast(x, FLOAT32), found)

    def _scale(self, scale: Any) -> T:
        """A scale; a Python number is one of float32."""
        if isinstance(scale, int | float):
            return self.constant(scale, FLOAT32)
        return self._lift(scale)[0]
