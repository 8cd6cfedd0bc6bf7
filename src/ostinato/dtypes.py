"""Element types: their names, their NumPy counterparts and how they promote.

Promotion follows PyTorch and JAX where both agree: within a kind the wider type wins, an integer
meeting a float takes the float, ``bool`` takes the other side, and float16 with bfloat16 gives
float32. Python scalars are *weak*: they take the dtype of the array they meet.
"""

from __future__ import annotations

import enum
import math
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
    "FLOAT8",
    "FLOAT8_E4M3FN",
    "FLOAT8_E5M2",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "NARROW_DTYPES",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "DType",
    "Kind",
    "NarrowFormat",
    "promote",
]


class Kind(enum.Enum):
    """The family of numbers that a dtype belongs to; narrow ones are stored, not computed with."""

    BOOL = "bool"
    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float"
    NARROW = "narrow"


@dataclass(frozen=True)
class NarrowFormat:
    """The bits of a narrow dtype, which fill the low end of a byte.

    Attributes:
        exponent: how many bits the exponent has; 0 for integers.
        mantissa: how many bits the mantissa has, without the hidden one; of an integer, all bits.
        bias: of the exponent.
        signed: whether a sign stands before the exponent, or the integer is in two's complement.
        nan: the lowest code of a NaN; ``None`` for formats without.
        infinity: the code of infinity; ``None`` for formats without.
        zero_is_positive: whether the code of a negative zero stands for something else.
    """

    exponent: int
    mantissa: int
    bias: int = 0
    signed: bool = True
    nan: int | None = None
    infinity: int | None = None
    zero_is_positive: bool = False

    @property
    def is_integer(self) -> bool:
        return self.exponent == 0


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
        """The NumPy dtype (``ml_dtypes`` supplies bfloat16 and the narrow ones)."""
        if self.name == "bfloat16" or self.is_narrow:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
            return found
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
    def is_narrow(self) -> bool:
        """Whether elements are stored and converted only, not computed with."""
        return self.kind is Kind.NARROW

    @property
    def format(self) -> NarrowFormat:
        """The bits of a narrow dtype."""
        return _FORMATS[self.name]

    @property
    def bits(self) -> int:
        """The bits of an element in memory."""
        return 8 * self.itemsize

    @property
    def accumulator(self) -> DType:
        """The dtype in which sums and products of this dtype are accumulated."""
        return FLOAT32 if self in (FLOAT16, BFLOAT16) else self

    @property
    def lowest(self) -> int | float:
        """The least value: minus infinity, or the least integer; 0 of bools."""
        if self.is_float:
            return -math.inf
        return -1 << (self.bits - 1) if self.is_integer and self.is_signed else 0

    @property
    def highest(self) -> int | float:
        """The greatest value: infinity, or the greatest integer; 1 of bools."""
        if self.is_float:
            return math.inf
        return 1 if self.is_bool else (1 << (self.bits - self.is_signed)) - 1

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
            name = str(dtype).removeprefix("mlx.core.")  # MLX has objects of its own
        if name in _BY_NAME:
            return _BY_NAME[name]
        known = ", ".join(d.name for d in (*ALL_DTYPES, *NARROW_DTYPES))
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

#: By name; an element takes a byte in memory, however few bits it has.
_FORMATS: dict[str, NarrowFormat] = {
    "float8_e4m3fn": NarrowFormat(4, 3, 7, nan=0x7F),
    "float8_e4m3fnuz": NarrowFormat(4, 3, 8, nan=0x80, zero_is_positive=True),
    "float8_e5m2": NarrowFormat(5, 2, 15, nan=0x7D, infinity=0x7C),
    "float8_e5m2fnuz": NarrowFormat(5, 2, 16, nan=0x80, zero_is_positive=True),
    "float8_e8m0fnu": NarrowFormat(8, 0, 127, signed=False, nan=0xFF),
    "float4_e2m1fn": NarrowFormat(2, 1, 1),
    "int4": NarrowFormat(0, 4),
    "uint4": NarrowFormat(0, 4, signed=False),
    "int2": NarrowFormat(0, 2),
    "uint2": NarrowFormat(0, 2, signed=False),
}

#: Dtypes of 8 bits and less: tensors of them are stored, moved and converted; two are multiplied.
NARROW_DTYPES = tuple(
    DType(name, short, Kind.NARROW, 1)
    for name, short in (
        ("float8_e4m3fn", "f8e4m3fn"),
        ("float8_e4m3fnuz", "f8e4m3fnuz"),
        ("float8_e5m2", "f8e5m2"),
        ("float8_e5m2fnuz", "f8e5m2fnuz"),
        ("float8_e8m0fnu", "f8e8m0fnu"),
        ("float4_e2m1fn", "f4e2m1fn"),
        ("int4", "i4"),
        ("uint4", "u4"),
        ("int2", "i2"),
        ("uint2", "u2"),
    )
)

FLOAT8_E4M3FN, FLOAT8_E5M2 = NARROW_DTYPES[0], NARROW_DTYPES[2]

#: The 8-bit floats that are multiplied.
FLOAT8 = (FLOAT8_E4M3FN, FLOAT8_E5M2)

_BY_NAME = {name: d for d in (*ALL_DTYPES, *NARROW_DTYPES) for name in (d.name, d.short)}


def promote(a: DType, b: DType) -> DType:
    """The dtype of a binary operation between arrays of ``a`` and ``b``.

    Raises:
        GraphError: the two have no common type (``uint64`` with a signed integer).
    """
    if a == b:
        return a
    if a.is_narrow or b.is_narrow:
        raise GraphError(f"{a} and {b} have no common dtype; cast one of them first")
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
