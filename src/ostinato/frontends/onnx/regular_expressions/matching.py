"""Matching: all paths through a program at once, one step for each character.

The sets of instructions that can be reached are the states of a deterministic automaton, which is
built as the text asks for it.
"""

from __future__ import annotations

from ostinato.frontends.onnx.regular_expressions.characters import CharacterSet, is_word
from ostinato.frontends.onnx.regular_expressions.program import (
    Assertion,
    Instruction,
    Jump,
    PatternError,
    Split,
)
from ostinato.frontends.onnx.regular_expressions.syntax import parse

__all__ = ["Pattern"]

#: Instructions that one pattern may visit in states that are not remembered: about a second.
_MOST_STEPS = 1_000_000

#: Instructions in remembered states; beyond, all are forgotten.
_MOST_REMEMBERED = 500_000

State = frozenset[int]


class Pattern:
    """A compiled pattern.

    Args:
        text: in the syntax of RE2.

    Raises:
        PatternError: the pattern is malformed, too large, or has a part that is not supported.
    """

    def __init__(self, text: str) -> None:
        program = parse(text)
        self._end = len(program)
        self._moves = [_targets(at, instruction) for at, instruction in enumerate(program)]
        self._moves.append(())
        self._assertions = {at: i for at, i in enumerate(program) if isinstance(i, Assertion)}
        self._takes = {at: i for at, i in enumerate(program) if isinstance(i, CharacterSet)}
        self._after: dict[tuple[State, str, str], State] = {}
        self._remembered = 0
        self._steps = 0

    def matches(self, text: str) -> bool:
        """Whether the whole of ``text`` matches.

        Raises:
            PatternError: the pattern is too expensive for the texts that it was given.
        """
        state, before = frozenset((0,)), ""
        for character in text:
            if not state:
                return False
            state = self._stepped(state, before, character)
            before = character
        return self._end in self._reached(state, before, "")

    def _stepped(self, state: State, before: str, character: str) -> State:
        """The state after ``character``."""
        key = (state, _context(before), character)
        found = self._after.get(key)
        if found is None:
            reached = self._reached(state, before, character)
            taken = ((at, self._takes[at]) for at in reached if at in self._takes)
            found = frozenset(at + 1 for at, characters in taken if character in characters)
            self._remembered += len(found) + 1
            if self._remembered > _MOST_REMEMBERED:
                self._after.clear()
                self._remembered = len(found) + 1
            self._after[key] = found
        return found

    def _reached(self, state: State, before: str, after: str) -> set[int]:
        """The instructions reached from ``state`` without a character."""
        seen, waiting = set(state), list(state)
        while waiting:
            at = waiting.pop()
            targets = self._moves[at]
            if at in self._assertions and _holds(self._assertions[at], before, after):
                targets = (at + 1,)
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        self._steps += len(seen)
        if self._steps > _MOST_STEPS:
            raise PatternError("it has too many states for these texts")
        return seen


def _targets(at: int, instruction: Instruction) -> tuple[int, ...]:
    """The instructions that follow unconditionally, without a character."""
    match instruction:
        case Jump(offset):
            return (at + offset,)
        case Split(offset):
            return (at + 1, at + offset)
    return ()


def _context(before: str) -> str:
    """A character that is to assertions what ``before`` is."""
    return before if before in ("", "\n") else "a" if is_word(before) else " "


def _holds(assertion: Assertion, before: str, after: str) -> bool:
    """Whether an assertion holds between two characters; ``""``: the text's start or end."""
    match assertion:
        case Assertion.TEXT_START:
            return before == ""
        case Assertion.TEXT_END:
            return after == ""
        case Assertion.LINE_START:
            return before in ("", "\n")
        case Assertion.LINE_END:
            return after in ("", "\n")
    boundary = _in_word(before) is not _in_word(after)
    return boundary is (assertion is Assertion.WORD_BOUNDARY)


def _in_word(character: str) -> bool:
    return character != "" and is_word(character)
