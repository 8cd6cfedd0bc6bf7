"""Parallel builds of kernels."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from ostinato.cache.single_flight import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ostinato.cache.objects import ObjectCache

    #: Does the part that holds the interpreter's lock, and gives a function that does the rest.
    Build: TypeAlias = Callable[[], Callable[[], bytes]]

__all__ = ["build_all"]

#: Builds for each thread that may be begun and not finished: they take memory.
_AHEAD = 4


def build_all(
    cache: ObjectCache,
    builds: Mapping[str, Build],
    *,
    helpers: int = 0,
    report: Callable[[int], None] | None = None,
) -> dict[str, bytes]:
    """Find the object of each key in the cache, or build it.

    Builds are begun by this thread, one after the other: several would take the interpreter from
    each other. They are finished by all threads, which are started when something has to be built;
    until then there are none.

    Args:
        cache: of objects.
        builds: functions that begin to build an object, by its key. Those that take longest should
            be first, lest they be left for the end.
        helpers: how many threads may build besides this one.
        report: called in this thread for each object, with the number of objects so far.

    Raises:
        Exception: the first that a build raised. Builds that were not begun by then are left out.
    """
    work = _Work(cache, report)
    missing = work.find(builds)
    helping: dict[Thread, Promise[None]] = {}
    try:
        for promise in (Promise[None]() for _ in range(min(helpers, len(missing) - 1))):
            thread = Thread(target=promise.keep, args=(work.help,), name="ostinato-build")
            thread.start()
            helping[thread] = promise
        for key in missing:
            work.begin(key, builds[key])
            while work.begun.qsize() > _AHEAD * (1 + helpers):
                work.finish_one()
        while work.finish_one():
            pass
    except BaseException:
        work.failed = True
        raise
    finally:
        for _ in helping:
            work.begun.put(None)
        for thread in helping:
            thread.join()
    for promise in helping.values():
        promise.result()
    work.report()
    return {key: work.objects[key] for key in builds}


class _Work:
    """Builds that are begun and not finished, and the objects so far.

    Attributes:
        begun: keys, each with the function that finishes its object; ``None`` ends a thread.
        objects: by key.
        failed: whether a build raised: nothing more is begun or finished then.
    """

    def __init__(self, cache: ObjectCache, report: Callable[[int], None] | None) -> None:
        self.begun: SimpleQueue[tuple[str, Callable[[], bytes]] | None] = SimpleQueue()
        self.objects: dict[str, bytes] = {}
        self.failed = False
        self._cache = cache
        self._on_report = report
        self._reported = 0

    def find(self, keys: Iterable[str]) -> list[str]:
        """Take objects from the cache; returns the keys that it does not have."""
        missing = []
        for key in keys:
            found = self._cache.find(key)
            if found is None:
                missing.append(key)
            else:
                self.objects[key] = found
                self.report()
        return missing

    def begin(self, key: str, build: Build) -> None:
        """Begin to build an object."""
        if not self.failed:
            self.begun.put((key, build()))

    def finish_one(self) -> bool:
        """Finish one begun build on the calling thread; returns whether there was one."""
        try:
            work = self.begun.get_nowait()
        except Empty:
            return False
        assert work is not None
        self._finish(*work)
        self.report()
        return True

    def help(self) -> None:
        """Finish builds as they are begun, until ``None`` ends the thread."""
        try:
            for key, finish in iter(self.begun.get, None):
                self._finish(key, finish)
        except BaseException:
            self.failed = True
            raise

    def _finish(self, key: str, finish: Callable[[], bytes]) -> None:
        if not self.failed:
            self.objects[key] = self._cache.get_or_build(key, finish)

    def report(self) -> None:
        """Report objects that were not reported yet."""
        while self._on_report is not None and self._reported < len(self.objects):
            self._reported += 1
            self._on_report(self._reported)
