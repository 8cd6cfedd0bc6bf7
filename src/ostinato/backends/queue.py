"""A queue of calls that a forked process does not inherit in use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ostinato.backends.turns import Turn
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent import futures
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["Queue"]


class Queue:
    """Calls made one after the other on a thread of their own.

    The thread starts with the first call and ends when nobody refers to the queue any more, or with
    the interpreter, which lets the queued calls finish. A child of ``os.fork`` finds it empty.
    """

    def __init__(self) -> None:
        self._guard = Turn()
        self._process = -1  # nothing is there yet
        self._last: futures.Future[None] | None = None
        self._outcome = _Outcome()

    def submit(self, call: Callable[[], object]) -> None:
        """Queue ``call`` and return at once."""
        with self._guard:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="ostinato-queue")
                self._outcome = _Outcome()
            self._last = self._thread.submit(self._outcome.run, call)

    @property
    def used(self) -> bool:
        """Whether anything was ever queued."""
        return self._last is not None

    @property
    def idle(self) -> bool:
        """Whether everything that this process queued is done."""
        last = self._last
        return last is None or last.done() or self._process != os.getpid()

    def settle(self) -> None:
        """Wait until everything queued so far is done; what it raised stays for :meth:`sync`."""
        last = self._last
        if last is not None and not self.idle:
            last.result()

    def sync(self) -> None:
        """Wait, then raise the first error since the last ``sync``, if there was one."""
        self.settle()
        with self._guard:
            error, self._outcome.error = self._outcome.error, None
        if error is not None:
            raise error


class _Outcome:
    """The first error of the calls; apart from the queue, so that its thread does not hold that."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # whatever it is belongs to the one who syncs
            if self.error is None:
                self.error = error
