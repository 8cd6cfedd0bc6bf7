"""The syntax of RE2: patterns become programs while they are read, without recursion."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NoReturn

from ostinato.frontends.onnx.regular_expressions.characters import (
    ASCII_CLASSES,
    CharacterSet,
    Part,
    category,
)
from ostinato.frontends.onnx.regular_expressions.program import (
    Assertion,
    PatternError,
    Program,
    alternation,
    repeated_size,
    repetition,
)

__all__ = ["parse"]

#: The most repetitions, those of repeated groups multiplied.
_MOST_REPEATS = 1000

#: Groups within groups.
_DEEPEST = 1000

#: The most instructions: RE2's default memory allows some more.
_LARGEST = 100_000

_COUNTS = re.compile(r"\{(0|[1-9][0-9]{0,7})(,(0|[1-9][0-9]{0,7})?)?\}")
_GROUP_NAME = re.compile(r"\?P?<(\w+)>")
_FLAGS = re.compile(r"\?([imsU]*)(-[imsU]+)?([:)])")
_CODE = re.compile(r"x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|(0[0-7]{0,2}|[1-7][0-7]{1,2})")

_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS = {
    "A": Assertion.TEXT_START,
    "z": Assertion.TEXT_END,
    "b": Assertion.WORD_BOUNDARY,
    "B": Assertion.NO_WORD_BOUNDARY,
}
_CLASSES = {"d": "digit", "s": "perl space", "w": "word"}


def parse(text: str) -> Program:
    """The program of a pattern.

    Raises:
        PatternError: the pattern is malformed, too large, or has a part that is not supported.
    """
    if len(text) > _LARGEST:
        raise PatternError(f"it has {len(text):,} characters, expected at most {_LARGEST:,}")
    return _Parser(text).program()


@dataclass(frozen=True, slots=True)
class _Flags:
    """The flags of a group: ``i``, ``m`` and ``s``. ``U`` matters to captures alone."""

    any_case: bool = False
    lines: bool = False
    dot_newline: bool = False


@dataclass(slots=True)
class _Item:
    """A part of a concatenation.

    Attributes:
        program: of the part.
        repeats: the product of the counted repetitions within it.
    """

    program: Program
    repeats: int = 1


@dataclass(slots=True)
class _Group:
    """A group that is not closed yet.

    Attributes:
        flags: those around it.
        alternatives: complete ones, each the items of a concatenation.
        items: those of the last alternative.
    """

    flags: _Flags
    alternatives: list[list[_Item]] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)

    def closed(self) -> _Item:
        """The group as an item."""
        parts = [*self.alternatives, self.items]
        programs = [tuple(chain.from_iterable(item.program for item in part)) for part in parts]
        repeats = max((item.repeats for part in parts for item in part), default=1)
        return _Item(alternation(programs), repeats)


class _Parser:
    """A reader of one pattern.

    Args:
        text: the pattern.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._repeated_at = -1  # behind the last repetition
        self._size = 0
        self._flags = _Flags()
        self._groups = [_Group(self._flags)]
        self._names: set[str] = set()

    def program(self) -> Program:
        while self._at < len(self._text):
            self._read()
        if len(self._groups) > 1:
            self._fail("a ) is missing")
        return self._groups[0].closed().program

    def _read(self) -> None:
        """Read the next part."""
        start = self._at
        group, character = self._groups[-1], self._text[self._at]
        match character:
            case "(":
                self._open()
            case "|":
                group.alternatives.append(group.items)
                group.items = []
                self._at += 1
            case ")":
                if len(self._groups) == 1:
                    self._fail("unexpected )")
                self._groups.pop()
                self._groups[-1].items.append(group.closed())
                self._flags = group.flags
                self._at += 1
            case "*" | "+" | "?":
                self._at += 1
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
                self._repeat(start, least, most)
            case "{" if counts := _COUNTS.match(self._text, self._at):
                self._at = counts.end()
                least = int(counts[1])
                unlimited = counts[2] == ","
                most = None if unlimited else int(counts[3] or least)
                self._check_counts(least, most)
                self._repeat(start, least, most)
            case "[":
                self._append(self._class())
            case "\\":
                self._escape()
            case _:
                self._at += 1
                self._single(character)

    def _single(self, character: str) -> None:
        """Append what a single character outside of classes stands for."""
        match character:
            case ".":
                newline = () if self._flags.dot_newline else (Part(((10, 10),)),)
                self._append(CharacterSet(newline, negated=True))
            case "^":
                self._append(Assertion.LINE_START if self._flags.lines else Assertion.TEXT_START)
            case "$":
                self._append(Assertion.LINE_END if self._flags.lines else Assertion.TEXT_END)
            case _:
                self._append(self._one(character))

    def _one(self, character: str) -> CharacterSet:
        code = ord(character)
        return CharacterSet((Part(((code, code),)),), any_case=self._flags.any_case)

    def _append(self, instruction: CharacterSet | Assertion) -> None:
        self._grow(1)
        self._groups[-1].items.append(_Item((instruction,)))

    # -- groups ------------------------------------------------------------------------------

    def _open(self) -> None:
        """Read the start of a group, or flags for the rest of one."""
        outside = self._flags
        self._at += 1
        if self._text.startswith("?", self._at):
            if name := _GROUP_NAME.match(self._text, self._at):
                if name[1] in self._names:
                    self._fail(f"the group {name[1]} stands there twice")
                self._names.add(name[1])
                self._at = name.end()
            elif flags := _FLAGS.match(self._text, self._at):
                self._at = flags.end()
                self._set(flags[1], on=True)
                self._set(flags[2] or "", on=False)
                if flags[3] == ")":
                    return
            else:
                self._fail("RE2 has no such group")
        if len(self._groups) > _DEEPEST:
            self._fail(f"its groups are nested more than {_DEEPEST} deep")
        self._groups.append(_Group(outside))

    def _set(self, letters: str, *, on: bool) -> None:
        names = {"i": "any_case", "m": "lines", "s": "dot_newline"}
        changed = {names[letter]: on for letter in letters if letter in names}
        self._flags = replace(self._flags, **changed)

    # -- repetitions -------------------------------------------------------------------------

    def _check_counts(self, least: int, most: int | None) -> None:
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least):
            self._fail(f"a repetition is at most {_MOST_REPEATS}, its least count first")
        items, factor = self._groups[-1].items, least if most is None else most
        if items and factor:
            items[-1].repeats *= factor
            if items[-1].repeats > _MOST_REPEATS:
                self._fail(f"repetitions within each other are at most {_MOST_REPEATS} in all")

    def _repeat(self, start: int, least: int, most: int | None) -> None:
        """Repeat the last item; the ``?`` of a lazy repetition matters to captures alone."""
        items = self._groups[-1].items
        if not items:
            self._fail("a repetition of nothing")
        if start == self._repeated_at:
            self._fail("a repetition of a repetition needs a group")
        if self._text.startswith("?", self._at):
            self._at += 1
        self._repeated_at = self._at
        self._grow(repeated_size(items[-1].program, least, most) - len(items[-1].program))
        items[-1].program = repetition(items[-1].program, least, most)

    def _grow(self, instructions: int) -> None:
        self._size += instructions
        if self._size > _LARGEST:
            self._fail(f"it has more than {_LARGEST:,} instructions")

    # -- escapes -----------------------------------------------------------------------------

    def _escape(self) -> None:
        """Read an escape outside of classes."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at + 2 : end if end >= 0 else None]
            self._at = end + 2 if end >= 0 else len(self._text)
            for character in quoted:
                self._append(self._one(character))
        elif letter in _ASSERTIONS:
            self._at += 2
            self._append(_ASSERTIONS[letter])
        elif part := self._escaped_class():
            self._append(CharacterSet((part,), any_case=self._flags.any_case))
        else:
            self._append(self._one(self._escaped_character()))

    def _escaped_class(self) -> Part | None:
        r"""The class of an escape such as ``\d`` or ``\pL``; ``None``: it is none."""
        letter = self._text[self._at + 1 : self._at + 2]
        lower = letter.lower()
        if lower in _CLASSES:
            self._at += 2
            return Part(ASCII_CLASSES[_CLASSES[lower]], negated=letter != lower)
        if lower != "p":
            return None
        name = self._text[self._at + 2 : self._at + 3]
        self._at += 3
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                self._fail("a } is missing")
            name = self._text[self._at : end]
            self._at = end + 1
        found = category(name.removeprefix("^"))
        if found is None:
            self._fail(f"no general category of Unicode is called {name!r}")
        negated = (letter == "P") is not name.startswith("^")
        return replace(found, negated=negated)

    def _escaped_character(self) -> str:
        r"""The character of an escape such as ``\n``, ``\x41`` or ``\.``."""
        self._at += 1
        letter = self._text[self._at : self._at + 1]
        if code := _CODE.match(self._text, self._at):
            self._at = code.end()
            number = int(code[1] or code[2], 16) if code[3] is None else int(code[3], 8)
            if number > 0x10FFFF:
                self._fail("Unicode has no such character")
            return chr(number)
        if letter in _CONTROLS:
            self._at += 1
            return _CONTROLS[letter]
        if not letter or not letter.isascii() or letter.isalnum() or letter == "_":
            self._fail(f"RE2 has no escape \\{letter}")
        self._at += 1
        return letter

    # -- classes -----------------------------------------------------------------------------

    def _class(self) -> CharacterSet:
        """Read a class such as ``[^a-z[:digit:]]``."""
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        parts: list[Part] = []
        while not parts or not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                self._fail("a ] is missing")
            parts.append(self._class_part())
        self._at += 1
        return CharacterSet(tuple(parts), negated, self._flags.any_case)

    def _class_part(self) -> Part:
        text, start = self._text, self._at
        end = text.find(":]", start + 2) if text.startswith("[:", start) else -1
        if end >= 0:
            name = text[start + 2 : end]
            self._at = end + 2
            ranges = ASCII_CLASSES.get(name.removeprefix("^"))
            if ranges is None or " " in name:
                self._fail(f"no class is called {name!r}")
            return Part(ranges, negated=name.startswith("^"))
        if text[start] == "\\" and (part := self._escaped_class()):
            return part
        low = high = self._class_character()
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] != "]":
            self._at += 1
            high = self._class_character()
        if high < low:
            self._fail(f"a range of characters from {low!r} to {high!r}")
        return Part(((ord(low), ord(high)),))

    def _class_character(self) -> str:
        if self._at >= len(self._text):
            self._fail("a ] is missing")
        if self._text[self._at] == "\\":
            return self._escaped_character()
        self._at += 1
        return self._text[self._at - 1]

    def _fail(self, problem: str) -> NoReturn:
        raise PatternError(f"{problem}, at {self._at} of {self._text!r:.80}")
