"""The methods of packed weights, as GGUF files hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32, DType
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T, VocabularyCore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ops import packed_weights
else:
    packed_weights = LazyModule("ostinato.ops.packed_weights")

__all__ = ["PackedWeightsVocabulary"]


class PackedWeightsVocabulary(VocabularyCore[T]):
    """Methods that decode blocks of a few bits per element, or compute with them as they are."""

    def dequantize_packed(
        self, x: Any, format: str, shape: Sequence[int], dtype: Any = FLOAT32
    ) -> T:
        """The elements of packed blocks. (ONNX ``DequantizePacked``.)

        Args:
            x: uint8, the bytes of the blocks, in any shape.
            format: such as ``"gguf:q4_k"``.
            shape: of the result.
            dtype: of the result: elements are decoded to float32, then converted.

        Raises:
            GraphError: no such format, or not as many bytes as the elements take.
        """
        attrs = {"format": format, "shape": tuple(shape), "dtype": DType.parse(dtype)}
        return self._one(packed_weights.DEQUANTIZE_PACKED, *self._lift(x), **attrs)

    def packed_embedding(self, ids: Any, w: Any, format: str, dtype: Any = FLOAT32) -> T:
        """Rows of a packed table, decoded: ``[..., K]`` of ``ids [...]``.

        Args:
            ids: integers, taken as :meth:`take` takes indices.
            w: uint8 ``[rows, bytes]``, each row whole blocks.
            format: of ``w``.
            dtype: of the result.

        Raises:
            GraphError: no such format, or rows are not whole blocks.
        """
        attrs = {"format": format, "dtype": DType.parse(dtype)}
        return self._one(packed_weights.PACKED_EMBEDDING, *self._lift(ids, w), **attrs)

    def packed_matmul(self, x: Any, w: Any, format: str) -> T:
        """``x @ W.T`` of packed weights, ``x`` rounded to 8 bits by blocks: ``[..., rows]``.

        Args:
            x: float32, float16 or bfloat16 ``[..., K]``.
            w: uint8 ``[rows, bytes]``, each row the blocks of ``K`` elements; or a stack of such
                matrices, ``[count, rows, bytes]``, beside ``x [count, M, K]``.
            format: of ``w``.

        Raises:
            GraphError: no such format, shapes or dtypes do not fit, or ``K`` is zero.
        """
        return self._one(packed_weights.PACKED_MATMUL, *self._lift(x, w), format=format)

    def packed_block_matmul(self, q: Any, q_scales: Any, q_sums: Any, w: Any, format: str) -> T:
        """``packed_matmul`` of activations that are 8-bit integers already, in float32.

        Args:
            q: int8 ``[..., K]``; where a ``clip`` shows that it is within -127..127, products take
                less time under AVX2.
            q_scales: float32, a scale for each block of ``w`` along ``K``.
            q_sums: int32, the sum of ``q`` over each group of elements with a common factor.
            w: as in ``packed_matmul``.
            format: of ``w``.

        Raises:
            GraphError: no such format, or shapes or dtypes do not fit.
        """
        operands = self._lift(q, q_scales, q_sums, w)
        return self._one(packed_weights.PACKED_BLOCK_MATMUL, *operands, format=format)
