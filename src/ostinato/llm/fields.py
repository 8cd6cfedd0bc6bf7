"""Checked reading of the fields of a configuration, which a stranger may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Fields"]

T = TypeVar("T")

#: The largest size that a field may have: products of a few of them stay countable.
MOST: Final = 1 << 32

#: Stands for the absence of a default.
_NEEDED: Final[Any] = object()

_EMPTY: Final[tuple[Any, ...]] = (None, False, "", 0)


class Fields:
    """Named values, each checked as it is read; a record of those that were.

    Values are Python's, or arrays of NumPy. A field that is ``None`` is as good as absent.

    Args:
        values: by name.
        source: the file, for messages.
        prefix: of all names, in messages and in ``values``.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._values = values
        self._source = source
        self._prefix = prefix
        self._read: set[str] = set()

    def error(self, name: str, expected: str, found: object) -> ModelFormatError:
        """The error for a field that is not as expected."""
        return ModelFormatError(
            f"{self._source!r}: {self._prefix}{name} is {expected}, got {found!r:.80}"
        )

    def unsupported(self, name: str, why: str) -> ModelFormatError:
        """The error for a field whose value is understood, and not computed here."""
        found = self._values.get(self._prefix + name)
        return ModelFormatError(
            f"{self._source!r}: {self._prefix}{name} is {found!r:.80}, and {why}"
        )

    def __contains__(self, name: str) -> bool:
        return self._found(name) is not None

    def size(self, name: str, default: Any = _NEEDED, *, least: int = 1, most: int = MOST) -> Any:
        """A whole number between bounds."""
        value = self._given(name, default)
        if value is default:
            return default
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and least <= value <= most):
            raise self.error(name, f"a whole number from {least} to {most}", value)
        return value

    def number(self, name: str, default: Any = _NEEDED, *, above: float = -math.inf) -> Any:
        """A finite number greater than a bound."""
        value = self._given(name, default)
        if value is default:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, "a number", value)
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not (math.isfinite(found) and found > above):
            bound = "" if above == -math.inf else f" above {above:g}"
            raise self.error(name, f"a finite number{bound}", value)
        return found

    def flag(self, name: str, default: Any = _NEEDED) -> Any:
        """True or false."""
        value = self._given(name, default)
        if value is not default and not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return value

    def word(self, name: str, default: Any = _NEEDED) -> Any:
        """A string."""
        value = self._given(name, default)
        if value is not default and not isinstance(value, str):
            raise self.error(name, "a string", value)
        return value

    def one_of(self, name: str, choices: Mapping[str, T], default: Any = _NEEDED) -> T:
        """A string that stands for something.

        Args:
            name: of the field.
            choices: by string.
            default: the string of an absent field.
        """
        word = self.word(name, default)
        if word not in choices:
            raise self.error(name, f"one of {', '.join(choices)}", word)
        return choices[word]

    def numbers(self, name: str, default: Any = _NEEDED, *, count: int | None = None) -> Any:
        """A list of finite numbers, as a tuple."""
        value = self._given(name, default)
        if value is default:
            return default
        listed = value.tolist() if isinstance(value, np.ndarray) else value
        wanted = "finite numbers" if count is None else f"{count} finite numbers"
        if not isinstance(listed, list | tuple) or (count is not None and len(listed) != count):
            raise self.error(name, f"a list of {wanted}", value)
        for item in listed:
            fits = isinstance(item, int | float) and not isinstance(item, bool)
            if not fits or not -1e30 < item < 1e30:
                raise self.error(name, f"a list of {wanted}", item)
        return tuple(listed)

    def words(self, name: str, count: int, choices: Collection[str]) -> list[str] | None:
        """A list of so many strings out of a few; ``None`` if the field is absent."""
        value = self._given(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count:
            raise self.error(name, f"a list of {count} strings", value)
        for item in value:
            if not isinstance(item, str) or item not in choices:
                raise self.error(name, f"a list of {', '.join(choices)}", item)
        return value

    def flags(self, name: str, count: int) -> list[bool] | None:
        """A list of so many truth values; ``None`` if the field is absent or no list."""
        value = self._given(name, None)
        listed = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(listed, list):
            return None
        if len(listed) != count or not all(isinstance(item, bool) for item in listed):
            raise self.error(name, f"a list of {count} truth values", value)
        return listed

    def part(self, name: str) -> Fields | None:
        """The fields within a field; ``None`` if it is absent."""
        value = self._given(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "an object", value)
        return Fields(value, f"{self._source}: {self._prefix}{name}")

    def count(self, name: str, default: int) -> int:
        """The number of entries of an object or a list."""
        value = self._given(name, None)
        if value is None:
            return default
        if not isinstance(value, Mapping | list) or not value:
            raise self.error(name, "an object or a list with entries", value)
        return len(value)

    def skip(self, *names: str) -> None:
        """Take fields as read, whatever they hold."""
        self._read.update(names)

    def also_called(self, names: Mapping[str, str]) -> None:
        """Read absent fields under other names, which count as read themselves.

        Args:
            names: the other name of each.
        """
        given = {
            self._prefix + name: self._found(other)
            for name, other in names.items()
            if name not in self and other in self
        }
        self._values = {**self._values, **given}
        self._read.update(names.values())

    def expect(self, name: str, *wanted: object) -> None:
        """Refuse a field that is neither absent nor one of some values."""
        value = self._found(name)
        self._read.add(name)
        if value is not None and value not in wanted:
            choices = " or ".join(map(repr, wanted))
            raise self.unsupported(name, f"only {choices} is computed")

    def finish(self, ignored: Collection[str] = ()) -> None:
        """Refuse fields that were not read and say more than nothing.

        Args:
            ignored: names that change no result.

        Raises:
            ModelFormatError: naming them all.
        """
        left = [
            name
            for name, value in self._values.items()
            if name.startswith(self._prefix)
            and name.removeprefix(self._prefix) not in self._read
            and name.removeprefix(self._prefix) not in ignored
            and not _says_nothing(value)
        ]
        if left:
            shown = ", ".join(f"{name!r:.80}" for name in left[:8])
            raise ModelFormatError(
                f"{self._source!r} has fields that are not known here and may change results: "
                f"{shown}"
            )

    # -- machinery ---------------------------------------------------------------------------------

    def _found(self, name: str) -> Any:
        return self._values.get(self._prefix + name)

    def _given(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._found(name)
        if value is not None:
            return value
        if default is _NEEDED:
            raise ModelFormatError(f"{self._source!r} lacks {self._prefix}{name}")
        return default


def _says_nothing(value: object) -> bool:
    """Whether a value is what an absent field would be."""
    if isinstance(value, np.ndarray):
        return value.size == 0
    if isinstance(value, list | dict):
        return not value
    return any(value is item or value == item for item in _EMPTY)
