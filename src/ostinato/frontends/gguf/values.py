"""The values of a GGUF file's metadata, read with every length checked before use.

All integers are Python's, which do not overflow. Nothing is allocated for a count that the rest of
the file could not hold.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_DEPTH", "Cursor", "Damaged", "read_value"]

#: Arrays within arrays, at most.
MAX_DEPTH: Final = 4

_BOOL, _STRING, _ARRAY = 7, 8, 9

#: Numbers by the type's number in the file.
_NUMBERS: Final[Mapping[int, np.dtype[Any]]] = MappingProxyType(
    {
        0: np.dtype("u1"),
        1: np.dtype("i1"),
        2: np.dtype("<u2"),
        3: np.dtype("<i2"),
        4: np.dtype("<u4"),
        5: np.dtype("<i4"),
        6: np.dtype("<f4"),
        _BOOL: np.dtype("u1"),
        10: np.dtype("<u8"),
        11: np.dtype("<i8"),
        12: np.dtype("<f8"),
    }
)

#: Bytes of an empty string, and of an empty array.
_LEAST_STRING, _LEAST_ARRAY = 8, 12


class Damaged(Exception):
    """A defect of a file, with the byte at which it was found."""


class Cursor:
    """A position in the bytes of a file.

    Args:
        data: all bytes.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    @property
    def left(self) -> int:
        """The bytes from here to the end of the file."""
        return len(self._data) - self.position

    def damaged(self, what: str) -> Damaged:
        """The error for a defect just before the position."""
        return Damaged(f"{what} (at byte {self.position:,})")

    def take(self, count: int, what: str) -> memoryview:
        """The next bytes.

        Raises:
            Damaged: there are not as many.
        """
        if count > self.left:
            raise self.damaged(f"{what} would be {count:,} bytes of the {self.left:,} left")
        start = self.position
        self.position += count
        return self._data[start : self.position]

    def unsigned(self, nbytes: int, what: str) -> int:
        """The next integer."""
        return int.from_bytes(self.take(nbytes, what), "little")

    def count(self, least: int, what: str) -> int:
        """The next count of things that take ``least`` bytes each, or more.

        Raises:
            Damaged: the rest of the file could not hold them.
        """
        number = self.unsigned(8, f"the number of {what}")
        if number * least > self.left:
            raise self.damaged(f"{number:,} {what} do not fit in the {self.left:,} bytes left")
        return number

    def strings(self, count: int, what: str) -> list[str]:
        """The next strings, bytes that are no UTF-8 as surrogate escapes.

        Raises:
            Damaged: one ends beyond the file.
        """
        data, found = self._data, []
        # A vocabulary has some hundred thousand of them.
        for _ in range(count):
            start = self.position + _LEAST_STRING
            end = start + int.from_bytes(data[self.position : start], "little")
            if end > len(data):
                self.take(self.unsigned(_LEAST_STRING, f"the length of {what}"), what)
            found.append(str(data[start:end], "utf-8", "surrogateescape"))
            self.position = end
        return found

    def name(self, what: str) -> str:
        """The next string, which is UTF-8.

        Raises:
            Damaged: it is not.
        """
        octets = self.take(self.unsigned(_LEAST_STRING, f"the length of {what}"), what)
        try:
            return str(octets, "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is no UTF-8") from None


def read_value(cursor: Cursor, what: str) -> Any:
    """The next value, after its type.

    Numbers are Python's. An array of numbers is a NumPy array that is not to be written, any other
    array a list. Bytes of a string that are no UTF-8 are surrogate escapes.

    Raises:
        Damaged: no such type, a length beyond the end, arrays too deep in one another, or a bool
            that is neither 0 nor 1.
    """
    return _value(cursor, cursor.unsigned(4, f"the type of {what}"), what)


def _value(cursor: Cursor, kind: int, what: str) -> Any:
    if kind == _STRING:
        return cursor.strings(1, what)[0]
    if kind == _ARRAY:
        return _array(cursor, what, 1)
    return _numbers(cursor, kind, 1, what)[0].item()


def _array(cursor: Cursor, what: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise cursor.damaged(f"{what} has arrays more than {MAX_DEPTH} deep in one another")
    kind = cursor.unsigned(4, f"the type of the elements of {what}")
    if kind == _STRING:
        return cursor.strings(cursor.count(_LEAST_STRING, f"strings of {what}"), what)
    if kind == _ARRAY:
        count = cursor.count(_LEAST_ARRAY, f"arrays of {what}")
        return [_array(cursor, what, depth + 1) for _ in range(count)]
    size = 1 if kind not in _NUMBERS else _NUMBERS[kind].itemsize
    return _numbers(cursor, kind, cursor.count(size, f"elements of {what}"), what)


def _numbers(cursor: Cursor, kind: int, count: int, what: str) -> np.ndarray[Any, Any]:
    dtype = _NUMBERS.get(kind)
    if dtype is None:
        raise cursor.damaged(f"{what} has the type {kind}, which there is not")
    data = bytes(cursor.take(count * dtype.itemsize, what))
    found: np.ndarray[Any, Any] = np.frombuffer(data, dtype)
    if kind != _BOOL:
        return found
    if count and found.max() > 1:
        raise cursor.damaged(f"{what} has a bool that is neither 0 nor 1")
    return found.view(np.bool_)
