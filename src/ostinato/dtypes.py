"""Element types: their names, their NumPy counterparts and how they promote.

Promotion follows PyTorch and JAX where both agree: within a kind the wider type wins, an integer
meeting a float takes the float, ``bool`` takes the other side, and float16 with bfloat16 gives
float32. Python scalars are *weak*: they take the dtype of the array they meet.
"""

from __future__ import annotations

import enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = [
    "ALL_DTYPES",
    "BFLOAT16",
    "BOOL",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "DType",
    "Kind",
    "promote",
]


class Kind(enum.Enum):
    """The family of numbers that a dtype belongs to."""

    BOOL = "bool"
    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float"


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: the NumPy-style name, such as ``"float32"``.
        short: the name in the text form of graphs, such as ``"f32"``.
        kind: the family of numbers.
        itemsize: bytes per element.
    """

    name: str
    short: str
    kind: Kind
    itemsize: int

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (``ml_dtypes`` supplies bfloat16)."""
        if self.name == "bfloat16":
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same as :attr:`numpy`: lets NumPy take a DType wherever it takes a dtype."""
        return self.numpy

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_signed(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.FLOAT)

    @property
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @property
    def bits(self) -> int:
        return 8 * self.itemsize

    @property
    def accumulator(self) -> DType:
        """The dtype in which sums and products of this dtype are accumulated."""
        return FLOAT32 if self in (FLOAT16, BFLOAT16) else self

    def __str__(self) -> str:
        return self.name

    # Compared and looked up all the time while compiling: the name identifies a dtype.

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.name == other.name
        return NotImplemented  # NumPy's dtypes compare themselves with these

    def __hash__(self) -> int:
        return hash(self.name)

    @staticmethod
    def parse(dtype: DType | DTypeLike) -> DType:
        """The :class:`DType` for a name, a short name, a NumPy dtype or a DType.

        Raises:
            GraphError: no such element type.
        """
        if isinstance(dtype, DType):
            return dtype
        if isinstance(dtype, str) and dtype in _BY_NAME:
            return _BY_NAME[dtype]
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
        if name in _BY_NAME:
            return _BY_NAME[name]
        known = ", ".join(d.name for d in ALL_DTYPES)
        raise GraphError(f"unknown dtype {dtype!r}; Ostinato has {known}")


BOOL = DType("bool", "bool", Kind.BOOL, 1)
INT8 = DType("int8", "i8", Kind.SIGNED, 1)
INT16 = DType("int16", "i16", Kind.SIGNED, 2)
INT32 = DType("int32", "i32", Kind.SIGNED, 4)
INT64 = DType("int64", "i64", Kind.SIGNED, 8)
UINT8 = DType("uint8", "u8", Kind.UNSIGNED, 1)
UINT16 = DType("uint16", "u16", Kind.UNSIGNED, 2)
UINT32 = DType("uint32", "u32", Kind.UNSIGNED, 4)
UINT64 = DType("uint64", "u64", Kind.UNSIGNED, 8)
FLOAT16 = DType("float16", "f16", Kind.FLOAT, 2)
BFLOAT16 = DType("bfloat16", "bf16", Kind.FLOAT, 2)
FLOAT32 = DType("float32", "f32", Kind.FLOAT, 4)
FLOAT64 = DType("float64", "f64", Kind.FLOAT, 8)

ALL_DTYPES = (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    FLOAT16,
    BFLOAT16,
    FLOAT32,
    FLOAT64,
)

_BY_NAME = {name: d for d in ALL_DTYPES for name in (d.name, d.short)}


def promote(a: DType, b: DType) -> DType:
    """The dtype of a binary operation between arrays of ``a`` and ``b``.

    Raises:
        GraphError: the two have no common type (``uint64`` with a signed integer).
    """
    if a == b:
        return a
    if a.kind is b.kind:
        if a.itemsize == b.itemsize:  # float16 with bfloat16
            return FLOAT32
        return a if a.itemsize > b.itemsize else b
    order = (Kind.BOOL, Kind.UNSIGNED, Kind.SIGNED, Kind.FLOAT)
    low, high = sorted((a, b), key=lambda d: order.index(d.kind))
    if high.is_float or low.is_bool or high.itemsize > low.itemsize:
        return high
    for wider in (INT16, INT32, INT64):
        if wider.itemsize > low.itemsize:
            return wider
    raise GraphError(f"{a} and {b} have no common dtype; cast one of them first")
