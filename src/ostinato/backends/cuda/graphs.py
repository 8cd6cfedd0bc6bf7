"""CUDA graphs: work that was launched before is launched as one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Gpu, Stream

__all__ = ["Graph", "Graphs"]


class Graphs:
    """The graphs of some work on a stream, by the addresses that it takes place on.

    Making a graph takes longer than a launch: work becomes one when it is launched for the second
    time.

    Args:
        stream: takes the work.
        most: how many graphs are kept; the least recently used one goes first.
        after: how often the same work is launched step by step before it becomes a graph.
    """

    def __init__(self, stream: Stream, most: int, after: int = 1) -> None:
        self._stream = stream
        self._most = most
        self._after = after
        self._graphs: dict[tuple[int, ...], Graph | int] = {}
        self._latest: tuple[tuple[int, ...], Graph] | None = None

    def launch(self, driver: Driver, key: tuple[int, ...], work: Callable[[], None]) -> None:
        """Launch work.

        Args:
            driver: the driver.
            key: the work, and the addresses that it takes place on.
            work: launches it on the stream.
        """
        latest = self._latest
        if latest is not None and latest[0] == key:
            driver.launch_graph(latest[1].handle, self._stream.handle)
            return
        found = self._graphs.pop(key, 0)
        if not isinstance(found, Graph):
            if found < self._after:
                self._keep(key, found + 1)
                work()
                return
            found = self._captured(driver, work)
        self._keep(key, found)
        self._latest = key, found
        driver.launch_graph(found.handle, self._stream.handle)

    def find(self, key: tuple[int, ...]) -> Graph | None:
        """The graph of work that has become one and was launched lately."""
        found = self._graphs.get(key)
        return found if isinstance(found, Graph) else None

    def clear(self) -> None:
        """Forget all graphs."""
        self._latest = None
        self._graphs.clear()

    def _keep(self, key: tuple[int, ...], graph: Graph | int) -> None:
        if len(self._graphs) >= self._most:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[key] = graph

    def _captured(self, driver: Driver, work: Callable[[], None]) -> Graph:
        stream = self._stream.handle
        driver.begin_capture(stream)
        try:
            work()
        except BaseException:
            driver.end_capture(stream, keep=False)
            raise
        return Graph(self._stream.gpu, driver.end_capture(stream))


class Graph:
    """An executable graph, destroyed with the last reference.

    Attributes:
        handle: the driver's.
    """

    def __init__(self, gpu: Gpu, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, gpu.release, "destroy_graph", handle).atexit = False
