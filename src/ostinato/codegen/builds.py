"""Objects of several kernels, built by several threads where there is something to build."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

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
    with ExitStack() as stack:
        helping: list[Future[None]] = []

        def call_for_help() -> None:
            count = min(helpers, len(work.waiting))
            if count and not helping:
                from concurrent.futures import ThreadPoolExecutor

                pool = stack.enter_context(ThreadPoolExecutor(count, "ostinato-build"))
                helping.extend(pool.submit(work.run) for _ in range(count))

        stack.callback(work.waiting.clear)
        work.run(before=call_for_help, after=partial(work.tell, report))
        for helper in helping:
            helper.result()
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
        """Do it, calling ``before`` before each build, and ``after`` after each object."""
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
