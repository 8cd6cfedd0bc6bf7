"""Stop strings in a stream of text, found across its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StopStrings", "held_back"]

_LONGEST_STOP, _MOST_STOPS = 1 << 12, 256


def held_back(text: str, marks: Sequence[str]) -> int:
    """Characters at the end of a text that may be the beginning of a mark, but not all of it."""
    longest = max(map(len, marks), default=0) - 1
    for count in range(min(longest, len(text)), 0, -1):
        end = text[-count:]
        if any(len(mark) > count and mark.startswith(end) for mark in marks):
            return count
    return 0


class StopStrings:
    """Ends a stream of text before the first stop string that is complete.

    Of several that are complete at the same character, the longest counts. Text that may be the
    beginning of one is held back. The result does not depend on the parts in which text comes.

    Args:
        stops: the strings.

    Attributes:
        found: the stop string that ended the text; ``None``: not yet.

    Raises:
        InputError: an empty stop string, or too many or too long ones.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
            raise InputError("stop strings are a list of strings")
        if not all(stops):
            raise InputError("an empty stop string would stop any text")
        if len(stops) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in stops):
            raise InputError(
                f"at most {_MOST_STOPS} stop strings of at most {_LONGEST_STOP:,} characters"
            )
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """The text that is certain, given some more."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, start, self.found = min(ends)
            self._held = ""
            return text[:start]
        held = held_back(text, self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def pass_by(self, text: str) -> str:
        """All text so far, given some more in which no stop string counts."""
        return "" if self.found is not None else self.finish() + text

    def finish(self) -> str:
        """The text that was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held
