"""Sets of characters: ranges, classes, their complements, and other cases of letters."""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass

__all__ = ["ASCII_CLASSES", "CharacterSet", "Part", "category", "is_word"]

_LAST = 0x10FFFF

#: No letter from here on has several cases.
_CASELESS = 0x20000

#: The general categories of Unicode, by their first letters.
_CATEGORIES = {
    "C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps",
}  # fmt: skip

Ranges = tuple[tuple[int, int], ...]


def _ranges(*pairs: str) -> Ranges:
    return tuple((ord(pair[0]), ord(pair[-1])) for pair in pairs)


_DIGIT, _LOWER, _UPPER = _ranges("09"), _ranges("az"), _ranges("AZ")

#: The classes of POSIX, as in ``[[:digit:]]``; ``perl space`` is that of ``\s``.
ASCII_CLASSES: dict[str, Ranges] = {
    "alnum": (*_DIGIT, *_UPPER, *_LOWER),
    "alpha": (*_UPPER, *_LOWER),
    "ascii": ((0, 0x7F),),
    "blank": _ranges("\t", " "),
    "cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "digit": _DIGIT,
    "graph": _ranges("!~"),
    "lower": _LOWER,
    "print": _ranges(" ~"),
    "punct": _ranges("!/", ":@", "[`", "{~"),
    "space": _ranges("\t\r", " "),
    "upper": _UPPER,
    "word": (*_DIGIT, *_UPPER, *_LOWER, *_ranges("_")),
    "xdigit": (*_DIGIT, *_ranges("AF", "af")),
    "perl space": _ranges("\t\n", "\f\r", " "),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Characters of some ranges, or of a general category of Unicode.

    Attributes:
        ranges: of code points, both ends included.
        category: the first letters of a general category, or ``None``.
        negated: whether all other characters are meant.
    """

    ranges: Ranges = ()
    category: str | None = None
    negated: bool = False

    def holds(self, character: str) -> bool:
        """Whether ``character`` is within the ranges or the category, negated or not."""
        code = ord(character)
        if any(low <= code <= high for low, high in self.ranges):
            return True
        return self.category is not None and unicodedata.category(character).startswith(
            self.category
        )


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """The characters that an instruction takes.

    Attributes:
        parts: their union.
        negated: whether all other characters are meant.
        any_case: whether a letter stands for its other cases, too.
    """

    parts: tuple[Part, ...]
    negated: bool = False
    any_case: bool = False

    def __contains__(self, character: str) -> bool:
        cases = _cases(character) if self.any_case else (character,)
        found = any(any(map(part.holds, cases)) is not part.negated for part in self.parts)
        return found is not self.negated


def category(name: str) -> Part | None:
    """The part of a general category of Unicode; ``None`` if there is none of the name."""
    if name == "Any":
        return Part(((0, _LAST),))
    if name[:1] in _CATEGORIES and name[1:] in ("", *_CATEGORIES[name[:1]]):
        return Part(category=name)
    return None


def is_word(character: str) -> bool:
    """Whether a character is part of a word: an ASCII letter, a digit or ``_``."""
    return character.isascii() and (character.isalnum() or character == "_")


def _cases(character: str) -> tuple[str, ...]:
    return _folded().get(_fold(character), (character,))


@functools.cache
def _folded() -> dict[str, tuple[str, ...]]:
    """By the folded form of letters with several cases, these."""
    found: dict[str, list[str]] = {}
    for character in map(chr, range(_CASELESS)):
        if (folded := _fold(character)) != character:
            found.setdefault(folded, [folded]).append(character)
    return {folded: tuple(cases) for folded, cases in found.items()}


def _fold(character: str) -> str:
    """The simple case folding of Unicode, of one character to one."""
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character
