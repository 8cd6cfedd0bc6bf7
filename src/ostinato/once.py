"""Values that are made once, however many threads ask for them at the same time."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from concurrent import futures
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["Once", "call_after_fork"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """Values by key, each made by the first thread that asks for it while others wait.

    A child of ``os.fork`` has the values that were finished by then. What another thread of the
    parent was making is nobody's business there: whoever asks for it makes it.

    Args:
        capacity: how many values are kept, the least recently used dropped first; ``None``: all.

    Attributes:
        hits: how many calls found their value, or waited for another's.
        misses: how many made it.
        evictions: how many values were dropped.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.hits = self.misses = self.evictions = 0
        self._capacity = capacity
        self._values: OrderedDict[K, futures.Future[V]] = OrderedDict()
        self._lock = threading.Lock()
        call_after_fork(self._forget_unfinished)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, from ``make()`` if there is none.

        What ``make`` raises reaches everyone who waits, and is not kept: the next call tries again.
        """
        with self._lock:
            future = self._values.get(key)
            ours = future is None
            if future is None:
                future = self._values[key] = futures.Future()
                self.misses += 1
                self._make_room()
            else:
                self.hits += 1
                self._values.move_to_end(key)
        if ours:
            self._fulfil(future, key, make)
        return future.result()

    def find(self, key: K) -> V | None:
        """The value of ``key`` if somebody made it, or is just making it; else ``None``."""
        with self._lock:
            future = self._values.get(key)
            if future is None:
                return None
            self.hits += 1
            self._values.move_to_end(key)
        return None if future.exception() is not None else future.result()

    def _fulfil(self, future: futures.Future[V], key: K, make: Callable[[], V]) -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            with self._lock:
                if self._values.get(key) is future:
                    del self._values[key]
            future.set_exception(error)

    def _make_room(self) -> None:
        if self._capacity is not None and len(self._values) > self._capacity:
            self._values.popitem(last=False)
            self.evictions += 1

    def _forget_unfinished(self) -> None:
        self._lock = threading.Lock()
        finished = [(key, future) for key, future in self._values.items() if future.done()]
        self._values = OrderedDict(finished)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values


def call_after_fork(method: Callable[[], None]) -> None:
    """Have a bound method called in every child of ``os.fork``, as long as its object lives.

    Only the thread that forked exists there. Locks that others held are held for good, so whoever
    has some makes them anew.
    """
    reference = weakref.WeakMethod(method)

    def call() -> None:
        living = reference()
        if living is not None:
            living()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
