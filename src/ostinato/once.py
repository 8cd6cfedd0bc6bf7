"""Values that are made once, however many threads ask for them at the same time.

Making one value may ask for another. Where that leads back to a value that is being made, in one
thread or over several, waiting would never end: it raises :class:`CircularBuildError` instead.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

from ostinato.errors import CircularBuildError

__all__ = ["Once", "Promise", "call_after_fork"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Promise(Generic[V]):
    """A value that one thread makes while others wait for it.

    As ``concurrent.futures`` has it, but for what takes longer to import than a small model to run.

    Attributes:
        name: of the value, for messages.
        needs: while the value is made, the one that it waits for at the moment.
    """

    def __init__(self, name: str = "value") -> None:
        self.name = name
        self.needs: Promise[Any] | None = None
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


#: The value that the running code is making, the innermost one where that is nested.
_MAKING: ContextVar[Promise[Any] | None] = ContextVar("ostinato_making", default=None)


class Once(Generic[K, V]):
    """Values by key, each made by the first thread that asks for it while others wait.

    A child of ``os.fork`` has the values that were finished by then. What another thread of the
    parent was making is nobody's business there: whoever asks for it makes it.

    Args:
        capacity: how many values are kept, the least recently used dropped first; ``None``: all.
        kind: what a value is, for messages.

    Attributes:
        hits: how many calls found their value, or waited for another's.
        misses: how many made it.
        evictions: how many values were dropped.
    """

    def __init__(self, capacity: int | None = None, *, kind: str = "value") -> None:
        self.hits = self.misses = self.evictions = 0
        self._capacity = capacity
        self._kind = kind
        self._values: OrderedDict[K, Promise[V]] = OrderedDict()
        self._lock = threading.Lock()
        call_after_fork(self._forget_unfinished)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, from ``make()`` if there is none.

        What ``make`` raises reaches everyone who waits, and is not kept: the next call tries again.

        Raises:
            CircularBuildError: this call is part of making the value, or of making one that the
                value waits for.
        """
        with self._lock:
            promise = self._values.get(key)
            ours = promise is None
            if promise is None:
                promise = self._values[key] = Promise(f"{self._kind} {key!r:.80}")
                self.misses += 1
            else:
                self.hits += 1
                self._values.move_to_end(key)
        if ours:
            with _making(promise):
                promise.keep(lambda: self._make(promise, key, make))
            with self._lock:
                if self._values.get(key) is promise:
                    self._values.move_to_end(key)
                self._make_room()
        elif not promise.settled:
            _wait(promise)
        return promise.result()

    def find(self, key: K) -> V | None:
        """The value of ``key`` if it is made, or just being made; else ``None``.

        Raises:
            CircularBuildError: as :meth:`get`.
        """
        with self._lock:
            promise = self._values.get(key)
            if promise is None:
                return None
            self.hits += 1
            self._values.move_to_end(key)
        if not promise.settled:
            _wait(promise)
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
        """Drop what is beyond the capacity; never a value that is being made."""
        if self._capacity is None:
            return
        finished = [key for key, promise in self._values.items() if promise.settled]
        for key in finished[: max(0, len(finished) - self._capacity)]:
            del self._values[key]
            self.evictions += 1

    def _forget_unfinished(self) -> None:
        self._lock = threading.Lock()
        finished = [(key, made) for key, made in self._values.items() if made.settled]
        self._values = OrderedDict(finished)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values


@contextmanager
def _making(promise: Promise[Any]) -> Iterator[None]:
    """Have the code inside make the value of ``promise``."""
    outer = _MAKING.get()
    token = _MAKING.set(promise)
    if outer is not None:
        outer.needs = promise
    try:
        yield
    finally:
        if outer is not None:
            outer.needs = None
        _MAKING.reset(token)


def _wait(promise: Promise[Any]) -> None:
    """Wait for a value that another call makes.

    The need is noted before the circle is looked for. So of the threads that close a circle
    together, the last one to note its need, at least, finds it.

    Raises:
        CircularBuildError: making that value waits, perhaps over others, for this very call.
    """
    outer = _MAKING.get()
    if outer is None:
        promise.failed()
        return
    outer.needs = promise
    try:
        _check_circle(outer, promise)
        promise.failed()
    finally:
        outer.needs = None


def _check_circle(made: Promise[Any], needed: Promise[Any]) -> None:
    path = [made]
    following: Promise[Any] | None = needed
    while following is not None:
        if following is made:
            raise CircularBuildError(
                f"{' needs '.join(p.name for p in (*path, made))}: none of them can be built "
                "before the other; let no build ask, directly or over others, for its own result"
            )
        if following in path:  # a circle that others are in, and find themselves
            return
        path.append(following)
        following = following.needs


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
