"""Integers of a few bits, and their positions among the bytes of a block."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Digit", "Field", "Integers"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Digit:
    """A digit of the number of an integer, and the distance that it moves the integer.

    Attributes:
        count: values of the digit.
        nbytes: bytes from one value of the digit to the next.
        bits: bits from one value of the digit to the next, within a byte.
    """

    count: int
    nbytes: int = 0
    bits: int = 0


@dataclass(frozen=True)
class Field:
    """Bits of each of the integers of a block, none of which is in two bytes.

    Attributes:
        bits: of each integer.
        byte: where those of the first integer are; ``shift``, the lowest bit there.
        digits: of an integer's number, the most significant first.
        to: the position of the bits in the integer.
        flip: bits of the field that are stored inverted.
    """

    bits: int
    byte: int
    digits: tuple[Digit, ...]
    shift: int = 0
    to: int = 0
    flip: int = 0

    @property
    def mask(self) -> int:
        """A one for each bit."""
        return (1 << self.bits) - 1

    @cached_property
    def bytes(self) -> Array:
        """The byte of each integer, int64."""
        return self._walk(self.byte, [(digit.count, digit.nbytes) for digit in self.digits])

    @cached_property
    def shifts(self) -> Array:
        """The lowest bit of each integer in its byte, int64."""
        return self._walk(self.shift, [(digit.count, digit.bits) for digit in self.digits])

    @staticmethod
    def _walk(start: int, steps: list[tuple[int, int]]) -> Array:
        places = np.array([start])
        for count, step in steps:
            places = np.add.outer(places, np.arange(count) * step).reshape(-1)
        return places


@dataclass(frozen=True)
class Integers:
    """Unsigned integers made of fields, less one number.

    Attributes:
        fields: with bits that do not overlap.
        zero: the unsigned integer that stands for zero.
    """

    fields: tuple[Field, ...]
    zero: int = 0

    @property
    def bits(self) -> int:
        """The bits of an integer."""
        return sum(field.bits for field in self.fields)

    def codes(self, xp: Any, blocks: Any, widen: Callable[[Any], Any]) -> Any:
        """The unsigned integers of blocks ``[B, bytes]``: ``[B, integers]``, as ``widen`` gives.

        Args:
            xp: the functions of the vocabulary.
            blocks: uint8.
            widen: makes int32 of uint8.
        """
        total: Any = None
        for field in self.fields:
            part = widen(xp.take(blocks, field.bytes, axis=1))
            part = xp.bitwise_right_shift(part, field.shifts.astype(np.int32)[None])
            part = xp.bitwise_and(part, np.int32(field.mask))
            if field.flip:
                part = xp.bitwise_xor(part, np.int32(field.flip))
            if field.to:
                part = xp.bitwise_left_shift(part, np.int32(field.to))
            total = part if total is None else xp.bitwise_or(total, part)
        return total
