"""Objects of several kernels, built by several threads where there is something to build."""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from ostinato.once import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.codegen.object_cache import ObjectCache

__all__ = ["build_all"]


def build_all(
    cache: ObjectCache,
    builds: Mapping[str, Callable[[], bytes]],
    *,
    helpers: int = 0,
    report: Callable[[int], None] | None = None,
) -> dict[str, bytes]:
    """The object of each key, from the cache, or from what ``builds`` has for it.

    Threads are started when something has to be built; until then there are none.

    Args:
        cache: of objects.
        builds: by key, what builds its object. Those that take longest should be first, lest they
            be left for the end.
        helpers: how many threads may build besides this one.
        report: told by this thread, for each object, how many there are now.

    Raises:
        Exception: whatever a build has raised. Builds that were not begun by then are left out.
    """
    work = _Work(cache, builds)
    helping: dict[Thread, Promise[None]] = {}

    def call_for_help() -> None:
        count = min(helpers, len(work.waiting))
        if count and not helping:
            for promise in (Promise[None]() for _ in range(count)):
                thread = Thread(target=promise.keep, args=(work.run,), name="ostinato-build")
                thread.start()
                helping[thread] = promise

    try:
        work.run(before=call_for_help, after=partial(work.tell, report))
    finally:
        for thread in helping:
            thread.join()
    for promise in helping.values():
        promise.result()
    work.tell(report)
    return work.objects


class _Work:
    """What is left to do, shared by those who do it."""

    def __init__(self, cache: ObjectCache, builds: Mapping[str, Callable[[], bytes]]) -> None:
        self.waiting = deque(builds)
        self.objects: dict[str, bytes] = {}
        self._cache = cache
        self._builds = builds
        self._told = 0

    def run(
        self, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> None:
        """Do it, calling ``before`` before each build, and ``after`` after each object.

        Once something has been raised, nothing more is begun.
        """
        try:
            self._run(before, after)
        except BaseException:
            self.waiting.clear()
            raise

    def _run(self, before: Callable[[], None] | None, after: Callable[[], None] | None) -> None:
        while self.waiting:
            try:
                key = self.waiting.popleft()
            except IndexError:
                return  # somebody else was faster
            self.objects[key] = self._cache.get_or_build(key, partial(self._build, key, before))
            if after is not None:
                after()

    def _build(self, key: str, before: Callable[[], None] | None) -> bytes:
        if before is not None:
            before()
        return self._builds[key]()

    def tell(self, report: Callable[[int], None] | None) -> None:
        """Report objects that were not reported yet."""
        while report is not None and self._told < len(self.objects):
            self._told += 1
            report(self._told)
