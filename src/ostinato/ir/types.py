"""The type of a value: an element type and a shape."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.records import dataclass
from ostinato.variables import bounds, prod

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.variables import Dim

__all__ = ["MAX_TENSOR_BYTES", "TensorType"]

#: No tensor can be larger: addresses, and the indices that kernels compute, have 64 bits.
MAX_TENSOR_BYTES = 1 << 56


@dataclass(frozen=True)
class TensorType:
    """A dtype and a shape whose dimensions are ints or expressions of Variables."""

    dtype: DType
    shape: tuple[Dim, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.shape))

    def __hash__(self) -> int:
        return self._hash

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """The number of elements, as a dim."""
        return prod(self.shape)

    @cached_property
    def max_bytes(self) -> int:
        """Bytes at the largest value of every Variable."""
        return bounds(self.size)[1] * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"
