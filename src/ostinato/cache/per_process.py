"""Values that a forked child must not share with its parent, such as locks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PerProcess"]

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value of which each process has its own.

    Only the thread that called ``os.fork`` exists in the child: a lock that another thread held
    stays locked there for good. Process ids are compared at each use, so that nothing has to be
    registered with the interpreter, which would never forget it.

    Args:
        value: for this process.
        inherit: makes the value of a child from that of its parent.
    """

    def __init__(self, value: T, inherit: Callable[[T], T]) -> None:
        self._values = {os.getpid(): value}
        self._inherit = inherit

    def get(self) -> T:
        """The value of the calling process."""
        process = os.getpid()
        value = self._values.get(process)
        if value is None:
            latest = list(self._values.values())[-1]  # a list, since another thread may add one
            # One step, so that two threads of a child agree on the value.
            value = self._values.setdefault(process, self._inherit(latest))
        return value
