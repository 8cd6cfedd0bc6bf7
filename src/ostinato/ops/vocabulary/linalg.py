"""The methods for matmuls and einsum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import promote
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.elementwise import ElementwiseVocabulary

if TYPE_CHECKING:
    from ostinato.ops import einsum, linalg
else:
    einsum = LazyModule("ostinato.ops.einsum")
    linalg = LazyModule("ostinato.ops.linalg")

__all__ = ["LinalgVocabulary"]


class LinalgVocabulary(ElementwiseVocabulary[T]):
    """Methods that sum products; operands promote to one dtype."""

    def matmul(self, a: Any, b: Any) -> T:
        """``a @ b`` as NumPy's: ``[..., M, K] @ [..., K, N]``, leading dims broadcast.

        A 1-D side is a row or a column, which the result does not have. Integers wrap.

        Raises:
            GraphError: inner dimensions differ, batch dims do not broadcast, or a side is a scalar
                or bool.
        """
        return self._one(linalg.MATMUL, *self._promoted(a, b))

    def widening_matmul(self, a: Any, b: Any) -> T:
        """``a @ b`` of two float16 or two bfloat16, summed in float32 and left that wide.

        Raises:
            GraphError: as :meth:`matmul`, or a side is of another dtype.
        """
        return self._one(linalg.WIDENING_MATMUL, *self._promoted(a, b))

    def einsum(self, equation: str, *operands: Any) -> T:
        """Einstein summation in NumPy's syntax, ellipsis and implicit result included.

        Operands are multiplied from left to right, as matrix products wherever two share what is
        summed. A label that one operand repeats takes its diagonal; a dim of 1 broadcasts.

        Raises:
            GraphError: the equation is malformed or does not fit the operands.
        """
        promoted = self._promoted(*operands)
        shapes = [self._typed(operand)[1].shape for operand in promoted]
        return einsum.contract(self, einsum.parse_equation(equation, shapes), promoted)  # type: ignore[no-any-return]

    def _promoted(self, *operands: Any) -> tuple[T, ...]:
        """Operands lifted, and cast to the one dtype that they promote to."""
        lifted = self._lift(*operands)
        if not lifted:
            raise GraphError("expected at least one operand, got none")
        dtypes = [self._typed(operand)[1].dtype for operand in lifted]
        common = dtypes[0]
        for dtype in dtypes[1:]:
            common = promote(common, dtype)
        if common.is_bool:
            raise GraphError("matmul and einsum take numbers, got bools; cast them first")
        pairs = zip(lifted, dtypes, strict=True)
        return tuple(o if dtype == common else self.cast(o, common) for o, dtype in pairs)
