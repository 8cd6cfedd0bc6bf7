"""Single flight: values that are made once, however many threads ask for them at the same time.

Making one value may ask for another. Where that leads back to a value that is being made, in one
thread or over several, waiting would never end: it raises :class:`CircularBuildError` instead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

from ostinato.cache.per_process import PerProcess
from ostinato.errors import CircularBuildError

__all__ = ["Promise", "SingleFlight"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Promise(Generic[V]):
    """A value that one thread makes while others wait for it.

    Like ``concurrent.futures.Future``, whose import takes longer than a small model to run.

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
        """Whether the value, or the error of making it, is there."""
        return self._settled.is_set()

    def keep(self, make: Callable[[], V]) -> None:
        """Make the value; an exception of ``make`` is raised by :meth:`result`."""
        try:
            self._value = make()
        except BaseException as error:
            self._error = error
        self._settled.set()

    def failed(self) -> bool:
        """Wait; returns whether making the value has raised."""
        if not self.settled:  # else no lock is taken, which a fork may have left locked
            self._settled.wait()
        return self._error is not None

    def result(self) -> V:
        """Wait; the value, or the exception of making it."""
        if self.failed():
            raise cast("BaseException", self._error)
        return cast("V", self._value)


#: The value that the running code is making, the innermost one where that is nested.
_MAKING: ContextVar[Promise[Any] | None] = ContextVar("ostinato_making", default=None)


class _Table(Generic[K, V]):
    """Promises by key, least recently used first, and the sizes of the values that were made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.promises: OrderedDict[K, Promise[V]] = OrderedDict()
        self.sizes: dict[K, int] = {}
        self.total = 0

    def add(self, key: K, size: int) -> None:
        """Count a value that was made."""
        self.sizes[key] = size
        self.total += size

    def drop(self, key: K) -> None:
        """Forget a value that was made."""
        del self.promises[key]
        self.total -= self.sizes.pop(key)

    def settled(self) -> _Table[K, V]:
        """A table of what is finished: a forked child has no thread that would finish the rest."""
        table = _Table[K, V]()
        for key, promise in self.promises.items():
            if promise.settled and key in self.sizes:
                table.promises[key] = promise
                table.add(key, self.sizes[key])
        return table


class SingleFlight(Generic[K, V]):
    """Values by key, each made by the first thread that asks for it while others wait.

    A child of ``os.fork`` has the values that were finished by then. A value that another thread of
    the parent was making is made again in the child, by the first thread that asks for it.

    Args:
        capacity: the bound on the values' total size; the least recently used go first. Values that
            are being made are never dropped, so each is made once. ``None``: no bound.
        size: of a value; by default 1, so that ``capacity`` is a number of values.
        kind: of a value, for messages.

    Attributes:
        hits: how many calls found their value, or waited for another's.
        misses: how many made it.
        evictions: how many values were dropped.
    """

    def __init__(
        self,
        capacity: int | None = None,
        size: Callable[[V], int] = lambda _: 1,
        *,
        kind: str = "value",
    ) -> None:
        self.hits = self.misses = self.evictions = 0
        self._capacity = capacity
        self._size = size
        self._kind = kind
        self._tables = PerProcess[_Table[K, V]](_Table(), _Table.settled)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, from ``make()`` if there is none.

        An exception of ``make`` reaches all threads that wait, and is not kept: the next call tries
        again.

        Raises:
            CircularBuildError: this call is part of making the value, or of making one that the
                value waits for.
        """
        table = self._tables.get()
        with table.lock:
            promise = table.promises.get(key)
            ours = promise is None
            if promise is None:
                promise = table.promises[key] = Promise(f"{self._kind} {key!r:.80}")
                self.misses += 1
            else:
                self.hits += 1
                table.promises.move_to_end(key)
        if ours:
            with _making(promise):
                promise.keep(lambda: self._make(table, key, make))
        elif not promise.settled:
            _wait(promise)
        return promise.result()

    def find(self, key: K) -> V | None:
        """The value of ``key`` if it was made, or is just being made; else ``None``.

        Raises:
            CircularBuildError: as :meth:`get`.
        """
        table = self._tables.get()
        with table.lock:
            promise = table.promises.get(key)
            if promise is None:
                return None
            self.hits += 1
            table.promises.move_to_end(key)
        if not promise.settled:
            _wait(promise)
        return None if promise.failed() else promise.result()

    def _make(self, table: _Table[K, V], key: K, make: Callable[[], V]) -> V:
        try:
            value = make()
            size = self._size(value)
        except BaseException:
            with table.lock:
                del table.promises[key]
            raise
        with table.lock:
            table.promises.move_to_end(key)
            table.add(key, size)
            self._make_room(table)
        return value

    def _make_room(self, table: _Table[K, V]) -> None:
        while self._capacity is not None and table.total > self._capacity:
            table.drop(next(key for key in table.promises if key in table.sizes))
            self.evictions += 1

    def __len__(self) -> int:
        return len(self._tables.get().promises)

    def __contains__(self, key: K) -> bool:
        return key in self._tables.get().promises


@contextmanager
def _making(promise: Promise[Any]) -> Iterator[None]:
    """Mark the current thread as the maker of ``promise`` inside the block."""
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
