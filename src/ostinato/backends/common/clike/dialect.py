"""The differences between languages like C: types, literals, operators and function names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Apply, Scalar

__all__ = ["Dialect", "Joined"]


@dataclass(frozen=True, eq=False)
class Joined:
    """An op, perhaps with others that only it reads, as one function of the library.

    Attributes:
        function: its name, perhaps with arguments of a template.
        operands: of all ops together.
        inner: the ops but the last one.
    """

    function: str
    operands: tuple[Scalar, ...]
    inner: tuple[Apply, ...]


class Dialect(ABC):
    """A language that kernels are rendered in; its methods return text.

    *Register* types are those of local variables and expressions: float for all floats of 16 bits
    and less, the language's bool, bytes for narrow integers. *Memory* types are those of arrays.
    """

    @abstractmethod
    def register_type(self, dtype: DType) -> str:
        """The type of a local variable that holds a ``dtype``."""

    @abstractmethod
    def memory_type(self, dtype: DType) -> str:
        """The type of an array's elements."""

    @abstractmethod
    def index_type(self, wide: bool) -> str:
        """The type of an index expression: of 64 bits if ``wide``, else of 32."""

    @abstractmethod
    def index_literal(self, value: int, wide: bool) -> str:
        """An integer of an index type."""

    @abstractmethod
    def resize_index(self, index: str, wide: bool) -> str:
        """An index of the other width that has the same value."""

    def index_sum(self, terms: Sequence[tuple[bool, Sequence[str]]], wide: bool) -> str:
        """A sum of products of indices of one width.

        Args:
            terms: of each, whether it is subtracted, and its factors.
            wide: whether indices have 64 bits.
        """
        parts: list[str] = []
        for negative, factors in terms:
            sign = "-" if negative else "+" if parts else ""
            parts.append(f"{sign} {' * '.join(factors)}".strip())
        return " ".join(parts)

    def is_nonnegative(self, index: str, wide: bool) -> str:
        """A condition: an index is not below zero."""
        return f"{index} >= 0"

    @abstractmethod
    def literal(self, dtype: DType, value: bool | int | float) -> str:
        """A constant of the register type; integers wrap, floats round to the register's format."""

    @abstractmethod
    def call(self, function: str, dtype: DType, *operands: str) -> str:
        """A function of the dialect's library, of operands of one dtype: ``floor_divide``, …"""

    def joined(self, scalar: Apply) -> Joined | None:
        """The function that computes an op, perhaps with some that it reads; ``None``: its rule."""
        return None

    @abstractmethod
    def operator(self, operator: str, dtype: DType, left: str, right: str) -> str:
        """An infix operator on operands of one dtype: a quotient of floats, a comparison, bits."""

    def is_nan(self, value: str, dtype: DType) -> str:
        """Whether a float is NaN."""
        return self.operator("!=", dtype, value, value)

    @abstractmethod
    def select(self, condition: str, chosen: str, otherwise: str) -> str:
        """One of two values that are computed already."""

    @abstractmethod
    def declare(self, type_: str, name: str, value: str | None = None) -> str:
        """A local variable; one with a value is never assigned to again."""

    @abstractmethod
    def convert(self, value: str, source: DType, target: DType) -> str:
        """``value`` as ``target``, by the rule of the op ``cast``."""

    @abstractmethod
    def round(self, value: str, dtype: DType) -> str:
        """A register's float rounded to ``dtype``; other dtypes are untouched."""

    @abstractmethod
    def from_memory(self, value: str, dtype: DType) -> str:
        """An array's element in the form that registers have."""

    @abstractmethod
    def to_memory(self, value: str, dtype: DType, *, rounded: bool = False) -> str:
        """A register in the form that arrays have, floats rounded to nearest even.

        Args:
            value: the register.
            dtype: its dtype.
            rounded: whether it is known to be a number of its dtype.
        """

    @abstractmethod
    def bitcast(self, value: str, source: DType, target: DType) -> str:
        """The same bits in memory, read as a dtype of the same width."""
