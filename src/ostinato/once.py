"""Values that are made once, however many threads ask for them at the same time."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

__all__ = ["Once", "Promise", "call_after_fork"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Promise(Generic[V]):
    """A value that one thread makes while others wait for it.

    As ``concurrent.futures`` has it, but for what takes longer to import than a small model to run.
    """

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._value: V | None = None
        self._error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether nobody has to wait any more."""
        return self._settled.is_set()

    def keep(self, make: Callable[[], V]) -> None:
        """Make the value; what ``make`` raises is for those who ask for it."""
        try:
            self._value = make()
        except BaseException as error:
            self._error = error
        self._settled.set()

    def failed(self) -> bool:
        """Wait; whether there is no value because making it has raised."""
        if not self.settled:  # else no lock is taken, which a fork may have left locked
            self._settled.wait()
        return self._error is not None

    def result(self) -> V:
        """Wait; the value, or what making it has raised."""
        if self.failed():
            raise cast("BaseException", self._error)
        return cast("V", self._value)


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
        self._values: OrderedDict[K, Promise[V]] = OrderedDict()
        self._lock = threading.Lock()
        call_after_fork(self._forget_unfinished)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, from ``make()`` if there is none.

        What ``make`` raises reaches everyone who waits, and is not kept: the next call tries again.
        """
        with self._lock:
            promise = self._values.get(key)
            ours = promise is None
            if promise is None:
                promise = self._values[key] = Promise()
                self.misses += 1
                self._make_room()
            else:
                self.hits += 1
                self._values.move_to_end(key)
        if ours:
            promise.keep(lambda: self._make(promise, key, make))
        return promise.result()

    def find(self, key: K) -> V | None:
        """The value of ``key`` if somebody made it, or is just making it; else ``None``."""
        with self._lock:
            promise = self._values.get(key)
            if promise is None:
                return None
            self.hits += 1
            self._values.move_to_end(key)
        return None if promise.failed() else promise.result()

    def _make(self, promise: Promise[V], key: K, make: Callable[[], V]) -> V:
        try:
            return make()
        except BaseException:
            with self._lock:
                if self._values.get(key) is promise:
                    del self._values[key]
            raise

    def _make_room(self) -> None:
        if self._capacity is not None and len(self._values) > self._capacity:
            self._values.popitem(last=False)
            self.evictions += 1

    def _forget_unfinished(self) -> None:
        self._lock = threading.Lock()
        finished = [(key, made) for key, made in self._values.items() if made.settled]
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
