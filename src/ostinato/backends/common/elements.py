"""Values of one dtype that behave like NumPy scalars while they generate code.

An op's ``evaluate`` rule is ordinary array code; handed elements instead of arrays, it writes the
inner loop of a kernel. Operators follow :mod:`ostinato.dtypes`: operands promote, Python scalars
take the dtype of the element that they meet. There is no operator ``**``: rules call ``xp.pow``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from ostinato.dtypes import BOOL, FLOAT32, INT32, DType

__all__ = ["Element", "Number", "chosen_dtype", "scalar_dtype"]

Number = bool | int | float


class Element(ABC):
    """A value of one dtype in generated code.

    Attributes:
        dtype: the element type. A 16-bit float is held, and computed on, as float32.
    """

    dtype: DType

    __hash__ = object.__hash__

    @abstractmethod
    def full(self, value: Number) -> Self:
        """The constant ``value`` in this element's dtype."""

    @abstractmethod
    def of(self, operand: Self | Number) -> Self:
        """An operand as an element; a Python scalar takes this one's dtype if it can."""

    @abstractmethod
    def astype(self, dtype: DType) -> Self:
        """Converted to ``dtype``, by the rule of the op ``cast``."""

    @abstractmethod
    def bitcast(self, dtype: DType) -> Self:
        """The same bits in memory read as a dtype of the same width."""

    # Operators that each kind of element defines -------------------------------------------------

    @abstractmethod
    def __add__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __sub__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __mul__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __truediv__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __floordiv__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __mod__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __neg__(self) -> Self: ...

    @abstractmethod
    def __abs__(self) -> Self: ...

    @abstractmethod
    def __eq__(self, other: Self | Number) -> Self: ...  # type: ignore[override]

    @abstractmethod
    def __ne__(self, other: Self | Number) -> Self: ...  # type: ignore[override]

    @abstractmethod
    def __lt__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __le__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __gt__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __ge__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __and__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __or__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __xor__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __lshift__(self, other: Self | Number) -> Self: ...

    @abstractmethod
    def __rshift__(self, other: Self | Number) -> Self: ...

    # Operators that follow from them -------------------------------------------------------------

    def __radd__(self, other: Number) -> Self:
        return self.of(other) + self

    def __rsub__(self, other: Number) -> Self:
        return self.of(other) - self

    def __rmul__(self, other: Number) -> Self:
        return self.of(other) * self

    def __rtruediv__(self, other: Number) -> Self:
        return self.of(other) / self

    def __rfloordiv__(self, other: Number) -> Self:
        return self.of(other) // self

    def __rmod__(self, other: Number) -> Self:
        return self.of(other) % self

    def __rand__(self, other: Number) -> Self:
        return self & other

    def __ror__(self, other: Number) -> Self:
        return self | other

    def __rxor__(self, other: Number) -> Self:
        return self ^ other

    def __rlshift__(self, other: Number) -> Self:
        return self.of(other) << self

    def __rrshift__(self, other: Number) -> Self:
        return self.of(other) >> self

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self ^ (True if self.dtype.is_bool else -1)


def scalar_dtype(scalar: Number, met: DType) -> DType:
    """The dtype of a Python scalar that meets an element of dtype ``met``.

    A float meeting integers gives float32, an int meeting bools int32, as Python scalars are weak
    but cannot lose their kind.
    """
    if isinstance(scalar, float) and not met.is_float:
        return FLOAT32
    if met.is_bool and not isinstance(scalar, bool):
        return INT32
    return met


def chosen_dtype(x: Number, y: Number) -> DType:
    """The dtype of a choice between two Python scalars."""
    if isinstance(x, bool) and isinstance(y, bool):
        return BOOL
    return FLOAT32 if isinstance(x, float) or isinstance(y, float) else INT32
