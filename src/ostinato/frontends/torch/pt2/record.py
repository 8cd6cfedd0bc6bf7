"""Objects of a JSON document, whose fields are checked as they are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Record"]


class Record:
    """An object of a JSON document.

    Args:
        fields: by name.
        path: of the object within the document, for messages.
    """

    __slots__ = ("fields", "path")

    def __init__(self, fields: dict[str, Any], path: str) -> None:
        self.fields = fields
        self.path = path

    @classmethod
    def parse(cls, data: bytes, path: str) -> Record:
        """The object that a document consists of.

        Raises:
            ModelFormatError: it is no JSON, or no object.
        """
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(f"{path} is no JSON document: {error}") from error
        if not isinstance(found, dict):
            raise ModelFormatError(f"{path} should be an object, got {type(found).__name__}")
        return cls(found, path)

    def __contains__(self, name: object) -> bool:
        return self.fields.get(name) is not None if isinstance(name, str) else False

    def malformed(self, problem: str) -> NoReturn:
        """Raise the error for an object that breaks the rules of the format."""
        raise ModelFormatError(f"{self.path}: {problem}")

    def _field(self, name: str, *types: type) -> Any:
        found = self.fields.get(name)
        if type(found) not in types:
            wanted = " or ".join(t.__name__ for t in types)
            self.malformed(f"{name!r} should be {wanted}, got {type(found).__name__}")
        return found

    def integer(self, name: str) -> int:
        """A field that is an integer."""
        return int(self._field(name, int))

    def number(self, name: str) -> float:
        """A field that is a number; infinities and NaN may be words."""
        found = self._field(name, float, int, str)
        try:
            return float(found)
        except (ValueError, OverflowError):
            self.malformed(f"{name!r} should be a number, got {found!r:.60}")

    def text(self, name: str) -> str:
        """A field that is a string."""
        return str(self._field(name, str))

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        return bool(self._field(name, bool))

    def items(self, name: str, *types: type) -> list[Any]:
        """A field that is a list of values of ``types``."""
        found: list[Any] = self._field(name, list)
        for item in found:
            if types and type(item) not in types:
                self.malformed(f"{name!r} has an element of type {type(item).__name__}")
        return found

    def record(self, name: str) -> Record:
        """A field that is an object."""
        return Record(self._field(name, dict), f"{self.path}.{name}")

    def each(self, name: str) -> list[Record]:
        """A field that is a list of objects."""
        listed = self.items(name, dict)
        return [Record(item, f"{self.path}.{name}[{i}]") for i, item in enumerate(listed)]

    def records(self) -> Iterator[tuple[str, Record]]:
        """The fields, all of which are objects, by name."""
        for name in self.fields:
            yield name, self.record(name)

    def choice(self) -> tuple[str, Any]:
        """The only field: the object is a union, and its name the kind of value."""
        present = [(name, value) for name, value in self.fields.items() if value is not None]
        if len(present) != 1:
            self.malformed(f"should have one field, got {sorted(self.fields)[:8]}")
        return present[0]
