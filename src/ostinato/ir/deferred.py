"""Objects whose attributes are made at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading

__all__ = ["AttributeSource", "Deferrable"]


class AttributeSource(Protocol):
    """The source of the attributes of a deferred object."""

    @property
    def guard(self) -> threading.RLock:
        """A lock that is held while the attributes are made."""

    def attributes(self, owner: Any) -> dict[str, Any]:
        """Make the attributes of ``owner``, by name."""


class Deferrable:
    """A base class of objects that may lack their attributes until one of them is used.

    Python calls ``__getattr__`` for absent attributes only, so all other objects pay nothing. What
    was assigned to a deferred object before its first use stays.
    """

    _source: AttributeSource | None = None

    if not TYPE_CHECKING:  # type checkers would take any attribute to be there

        def __getattr__(self, name: str) -> Any:
            self._fill()
            return object.__getattribute__(self, name)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, for copies and pickles."""
        self._fill()
        return self.__dict__

    def _fill(self) -> None:
        """Make the attributes of a deferred object, once however many threads ask."""
        source = self._source
        if source is None:
            return
        with source.guard:
            if self._source is not None:
                self.__dict__.update(source.attributes(self) | self.__dict__)
                del self._source
