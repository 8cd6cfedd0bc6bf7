"""Properties that are computed at their first use, by whichever threads come first.

``functools.cached_property`` has no lock from Python 3.12 on: two threads may both compute a value,
and each goes on with its own. That is as good where values are equal and nothing more; it is not
where a value is a queue, a stream or a pool, of which there must be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["agreed_property"]

T_co = TypeVar("T_co", covariant=True)


class agreed_property(Generic[T_co]):  # noqa: N801, as all decorators
    """A ``cached_property`` whose value is the same one for all threads, and is kept.

    Threads that are there first at once each make a value; one is kept, and the others are dropped
    before anything has used them. There is no lock that a child of ``os.fork`` could find held.

    Args:
        make: computes the value.
    """

    def __init__(self, make: Callable[[Any], T_co]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T_co: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T_co:
        if instance is None:
            return self
        # One step, so that all agree; from then on, Python finds the value without coming here.
        value: T_co = instance.__dict__.setdefault(self._name, self._make(instance))
        return value
