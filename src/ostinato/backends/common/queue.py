"""A queue of calls that a forked process does not inherit in use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ostinato.backends.common.mutex import Mutex
from ostinato.lazy import LazyModule
from ostinato.plan.order import Submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent import futures

    from ostinato.plan.order import Accesses
else:
    futures = LazyModule("concurrent.futures")

__all__ = ["Queue"]


class Queue:
    """Calls made one after the other on a thread of their own.

    The thread starts with the first call and ends when nobody refers to the queue any more, or with
    the interpreter, which lets the queued calls finish. A child of ``os.fork`` finds it empty.
    """

    def __init__(self) -> None:
        self._guard = Mutex()
        self._process = -1  # nothing is there yet
        self._last: futures.Future[None] | None = None
        self._outcome = _Outcome()

    def submit(self, accesses: Accesses, call: Callable[[], object]) -> None:
        """Queue ``call``, which touches this memory, and return at once.

        It has its place in the order from now on, and is made when its turn has come.
        """
        with self._guard:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="ostinato-queue")
                self._outcome = _Outcome()
            submission = Submission(accesses)
            self._last = self._thread.submit(self._outcome.run, submission, call)

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

    def run(self, submission: Submission, call: Callable[[], object]) -> None:
        try:
            with submission:
                call()
        except BaseException as error:  # whatever it is belongs to the one who syncs
            if self.error is None:
                self.error = error
