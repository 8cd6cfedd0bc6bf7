"""Programs of a nondeterministic automaton, composed of parts.

A program is a tuple of instructions with relative targets, so that a part can stand anywhere, any
number of times. It starts at its first instruction, and has matched where it runs past its last.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ostinato.frontends.onnx.regular_expressions.characters import CharacterSet

__all__ = [
    "Assertion",
    "Instruction",
    "Jump",
    "PatternError",
    "Program",
    "Split",
    "alternation",
    "repeated_size",
    "repetition",
]


class PatternError(ValueError):
    """A pattern that is malformed, not supported, or too expensive."""


class Assertion(enum.Enum):
    """A condition on a position of the text, which takes no character."""

    TEXT_START = enum.auto()
    TEXT_END = enum.auto()
    LINE_START = enum.auto()
    LINE_END = enum.auto()
    WORD_BOUNDARY = enum.auto()
    NO_WORD_BOUNDARY = enum.auto()


@dataclass(frozen=True, slots=True)
class Jump:
    """Continues ``offset`` instructions further on."""

    offset: int


@dataclass(frozen=True, slots=True)
class Split:
    """Continues with the next instruction, and ``offset`` instructions further on."""

    offset: int


Instruction: TypeAlias = "CharacterSet | Assertion | Jump | Split"
Program: TypeAlias = "tuple[Instruction, ...]"


def alternation(parts: list[Program]) -> Program:
    """A program that matches what one of ``parts`` matches."""
    size = sum(len(part) + 2 for part in parts) - 2
    program: list[Instruction] = []
    for part in parts[:-1]:
        program += (Split(len(part) + 2), *part)
        program.append(Jump(size - len(program)))
    return (*program, *parts[-1])


def repetition(part: Program, least: int, most: int | None) -> Program:
    """A program that matches ``part`` so many times in a row; ``None``: no limit."""
    size = len(part)
    if most is not None:
        optional = (most - least) * (size + 1)
        splits = (Split(optional - i * (size + 1)) for i in range(most - least))
        rest = [instruction for split in splits for instruction in (split, *part)]
        return (*part * least, *rest)
    if least:
        return (*part * least, Split(-size))
    return (Split(size + 2), *part, Jump(-(size + 1)))


def repeated_size(part: Program, least: int, most: int | None) -> int:
    """The number of instructions of :func:`repetition`."""
    size = len(part)
    if most is not None:
        return size * most + most - least
    return size * least + 1 if least else size + 2
