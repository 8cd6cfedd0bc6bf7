"""Accesses of a kernel's arrays: its arguments, and the temps of an outer point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.clike.dialect import Dialect
    from ostinato.backends.common.clike.scopes import Index
    from ostinato.backends.common.clike.values import CValue
    from ostinato.dtypes import DType

__all__ = ["Arrays", "NamedArrays"]


class Arrays(Protocol):
    """Writes accesses of arrays, which are numbered: the arguments, then the temps."""

    def load(self, number: int, dtype: DType, index: Index) -> str:
        """An element, in the form that registers have."""

    def store(self, number: int, index: Index, value: CValue) -> Sequence[str]:
        """The statements that store a value of an array's dtype in an element."""


class NamedArrays:
    """Arrays of elements that are variables of the language, as in C.

    Args:
        dialect: the language.
        names: by number, the variable.
    """

    def __init__(self, dialect: Dialect, names: Sequence[str]) -> None:
        self._dialect = dialect
        self._names = names

    def load(self, number: int, dtype: DType, index: Index) -> str:
        return self._dialect.from_memory(f"{self._names[number]}[{index.text}]", dtype)

    def store(self, number: int, index: Index, value: CValue) -> Sequence[str]:
        return [f"{self._names[number]}[{index.text}] = {value.stored};"]
