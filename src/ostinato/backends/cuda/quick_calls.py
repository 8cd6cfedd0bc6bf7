"""The driver's calls of every run, without the conversions of the general bindings.

A run makes four calls of the driver, each of which takes the bindings a microsecond: they convert
every argument to an object of their own. Here arguments are plain ints.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EntryPoints", "QuickCalls"]

#: The driver's library.
_LIBRARY = "libcuda.so.1"


class EntryPoints(NamedTuple):
    """Addresses of functions of the driver; each returns a status, 0 where it succeeds.

    Attributes:
        push, pop: of the calling thread's current context.
        launch_graph: an executable graph on a stream.
        synchronize: with a stream.
    """

    push: int
    pop: int
    launch_graph: int
    synchronize: int


class QuickCalls:
    """Calls of the driver that return its status, 0 where they succeed.

    Args:
        short: the library, for calls that return at once: other threads of Python wait meanwhile.
        waiting: the library, for calls that wait: other threads of Python run meanwhile.

    Attributes:
        push, pop: of the calling thread's current context.
        launch_graph: an executable graph on a stream.
        synchronize: with a stream.
    """

    def __init__(self, short: ctypes.CDLL, waiting: ctypes.CDLL) -> None:
        handle = ctypes.c_void_p
        push = _function(short, "cuCtxPushCurrent_v2", handle)
        pop = _function(short, "cuCtxPopCurrent_v2", handle)
        self._popped = ctypes.byref(ctypes.c_void_p())
        self.push: Callable[[int], int] = push
        self.pop: Callable[[], int] = lambda: pop(self._popped)
        self.launch_graph = _function(short, "cuGraphLaunch", handle, handle)
        self.synchronize = _function(waiting, "cuStreamSynchronize", handle)
        self._functions = push, pop, self.launch_graph, self.synchronize

    @property
    def entry_points(self) -> EntryPoints:
        """The same calls for native code."""
        functions: tuple[Any, ...] = self._functions
        return EntryPoints(*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions))

    @staticmethod
    def find() -> QuickCalls | None:
        """Those of this machine's driver; ``None``: its library has another name here."""
        try:
            return QuickCalls(ctypes.PyDLL(_LIBRARY), ctypes.CDLL(_LIBRARY))
        except (OSError, AttributeError):
            return None


def _function(library: ctypes.CDLL, name: str, *types: type) -> Callable[..., int]:
    """A function of the library that takes these types, and returns a status."""
    function = getattr(library, name)
    function.argtypes, function.restype = types, ctypes.c_int
    found: Callable[..., int] = function
    return found
