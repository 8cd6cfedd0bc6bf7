"""A fork-safe queue of calls on a thread of its own."""

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
    """Calls that run one after the other on a thread of their own.

    The thread starts with the first call and ends once the queue is garbage, or with the
    interpreter, after the queued calls. In a child of ``os.fork`` the queue is empty.
    """

    def __init__(self) -> None:
        self._guard = Mutex()
        self._process = -1  # no thread yet
        self._last: futures.Future[None] | None = None
        self._outcome = _Outcome()

    def submit(self, accesses: Accesses, call: Callable[[], object]) -> None:
        """Queue ``call``, which touches this memory, and return at once.

        It enters the order of submissions now, and runs after the earlier ones it conflicts with.
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
        """Whether all calls that this process queued are done."""
        last = self._last
        return last is None or last.done() or self._process != os.getpid()

    def wait(self) -> None:
        """Wait for all calls queued so far; their first error is kept for :meth:`sync`."""
        last = self._last
        if last is not None and not self.idle:
            last.result()

    def sync(self) -> None:
        """Wait, then raise the first error since the last ``sync``, if there was one."""
        self.wait()
        with self._guard:
            error, self._outcome.error = self._outcome.error, None
        if error is not None:
            raise error


class _Outcome:
    """The first error of the calls; separate, so that the thread does not refer to the queue."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def run(self, submission: Submission, call: Callable[[], object]) -> None:
        try:
            with submission:
                call()
        except BaseException as error:  # raised by sync, whatever it is
            if self.error is None:
                self.error = error
