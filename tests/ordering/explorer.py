"""A deterministic explorer of schedules: real threads, of which exactly one runs at any time.

At every switch point, a seeded random choice decides which thread goes on: where the order of
submissions calls its hook, where a thread waits for a lock or for queued work, and, with some
probability, at any line of the chosen source files. So a seed is a schedule, which can be had
again."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import ostinato
from ostinato.backends.common import context, mutex, queue
from ostinato.eager import compute_graph
from ostinato.plan import buffer, execution_plan
from ostinato.plan.order import ORDER

HOME = Path(ostinato.__file__).parent

#: Files in which threads are switched between lines.
FILES = frozenset(
    str(path)
    for pattern in (
        "runtime/*.py",
        "backends/*.py",
        "backends/common/*.py",
        "eager/*.py",
        "backends/cpu/context.py",
        "backends/cpu/executable.py",
        "plan/execution_plan.py",
        "plan/buffer.py",
    )
    for path in HOME.glob(pattern)
)

#: Seconds after which a thread that neither ends nor switches is taken to hang.
PATIENCE = 20


#: Of the running thread: its explorer, and what that knows it by.
_here = threading.local()


def switch(point: str) -> None:
    """A switch point of whichever explorer runs this thread; see :meth:`Explorer.switch`.

    Locks outlive an explorer: contexts of earlier schedules are still told of memory that changes.
    """
    explorer: Explorer | None = getattr(_here, "explorer", None)
    if explorer is not None:
        explorer.switch(point)


class Deadlock(BaseException):
    """Every thread waits for another one; passes through all that catches exceptions."""


class Explorer:
    """Runs threads one at a time, in an order that follows from a seed.

    Args:
        seed: of all choices.
        lines: probability of a switch at a line of :data:`FILES`.

    Attributes:
        switches: how often another thread went on.
        stopped: whether threads only come to their end: all work is done, or one has failed.
    """

    def __init__(self, seed: int, lines: float = 0.02) -> None:
        self.switches = 0
        self._random = Random(seed)
        self._lines = lines
        self._threads: list[_Thread] = []
        self._errors: list[BaseException] = []
        self._over = threading.Event()
        self.stopped = False

    # -- running -----------------------------------------------------------------------------------

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        """Run each of ``works`` on a thread of its own, and what they queue, to the end.

        Raises:
            Deadlock: every thread waits.
            BaseException: what one of them raised.
        """
        for work in works:
            self._add(work)
        self._resume(self._choose(None))
        if not self._over.wait(PATIENCE):
            raise Deadlock(f"a thread waits for what the explorer does not know of:{self._shown()}")
        if self._errors:
            raise self._errors[0]

    def _add(self, work: Callable[[], object], *, idle: Callable[[], bool] | None = None) -> None:
        """A thread that runs when it is chosen; ``idle`` tells of a worker without work."""
        thread = _Thread(idle)
        self._threads.append(thread)

        def main() -> None:
            _here.explorer, _here.thread = self, thread
            thread.ident = threading.get_ident()
            thread.baton.acquire()
            sys.settrace(self._trace)
            try:
                if not self.stopped:
                    work()
            except BaseException as error:
                self._errors.append(error)
            finally:
                sys.settrace(None)
                thread.ended = True
                self._progress()
                self._resume(self._choose(None))

        threading.Thread(target=main, daemon=True).start()

    def _shown(self) -> str:
        """Stacks of the threads that have not ended."""
        frames = sys._current_frames()
        known = {thread.ident: thread for thread in self._threads if not thread.ended}
        stacks = ["".join(traceback.format_stack(frames[i])) for i in known if i in frames]
        return "\n" + "\n".join(stacks)

    # -- switching ---------------------------------------------------------------------------------

    def switch(self, point: str = "line") -> None:
        """Let another thread go on, perhaps; at ``"wait"``, this one needs another to go on first.

        It is for threads that the explorer has started.
        """
        here: _Thread = _here.thread
        if self.stopped:
            if point == "wait":
                raise Deadlock("another thread has failed")
            return
        if point == "wait":
            here.waits += 1
        else:
            self._progress()
        chosen = self._choose(here)
        if chosen is not here:
            self.switches += 1
            self._resume(chosen)
            here.baton.acquire()
        if self.stopped and point == "wait":
            raise Deadlock("another thread has failed")

    def _choose(self, here: _Thread | None) -> _Thread | None:
        """The next thread to run; one that waits only after all others had their chance."""
        if self._errors:
            self.stopped = True
        living = [thread for thread in self._threads if not thread.ended]
        ready = [thread for thread in living if self.stopped or not thread.without_work]
        if not ready:
            self.stopped = True
            return living[0] if living else None
        least = min(thread.waits for thread in ready)
        if least > 2 and not self.stopped:
            self._errors.append(Deadlock(f"{len(ready)} threads wait for each other"))
            self.stopped = True
        return self._pick([thread for thread in ready if thread.waits == least])

    def _pick(self, candidates: Sequence[_Thread]) -> _Thread:
        return self._random.choice(candidates)

    def _progress(self) -> None:
        for thread in self._threads:
            thread.waits = 0

    def _resume(self, thread: _Thread | None) -> None:
        if thread is None:
            self._over.set()
        else:
            thread.baton.release()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_line if frame.f_code.co_filename in FILES else None

    def _trace_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and self._random.random() < self._lines:
            self.switch()
        return self._trace_line

    # -- what blocks -------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Locks, futures and queues of objects that are made inside wait by switching."""
        locks = {"Lock": Lock, "RLock": Lock}
        waiting = SimpleNamespace(Future=_Future, ThreadPoolExecutor=lambda *_, **__: _Worker(self))
        with ExitStack() as stack:
            for module in (mutex, buffer, execution_plan):
                ours = SimpleNamespace(**{**vars(threading), **locks})
                stack.enter_context(mock.patch.object(module, "threading", ours))
            for module in (queue, context):
                stack.enter_context(mock.patch.object(module, "futures", waiting))
            for cached in _cached_properties(len(sys.modules)):
                stack.enter_context(mock.patch.object(cached, "lock", Lock()))
            former, ORDER.on_yield = ORDER.on_yield, switch
            try:
                yield
            finally:
                ORDER.on_yield = former


class Preemption(Explorer):
    """A schedule with one preemption, at a chosen point of the first thread.

    Every line of :data:`FILES` is a switch point. The first thread runs up to its ``position``-th
    point; then the others run to their ends, in the order in which they were started, and only then
    the rest of the first. Queued work comes last. A thread that waits gives way to the next.

    Args:
        position: number of points of the first thread before the preemption.

    Attributes:
        reached: whether the first thread has as many points.
    """

    def __init__(self, position: int) -> None:
        super().__init__(seed=0, lines=1)
        self.reached = False
        self._left = position

    def switch(self, point: str = "line") -> None:
        """As for any schedule; where it is plain that the same thread goes on, without a choice."""
        here: _Thread = _here.thread
        if point == "wait" or self.stopped or here.works_for_a_queue:
            super().switch(point)
        elif here is self._threads[0] and not self.reached and self._left > 0:
            self._left -= 1
            self._progress()
        elif here in self._threads[1:2] and self.reached:
            self._progress()
        else:
            super().switch(point)

    def _choose(self, here: _Thread | None) -> _Thread | None:
        if here is self._threads[0]:
            self.reached = self.reached or self._left == 0
            self._left -= 1
        return super()._choose(here)

    def _pick(self, candidates: Sequence[_Thread]) -> _Thread:
        first = self._threads[0]

        def priority(thread: _Thread) -> tuple[bool, bool]:
            return thread.works_for_a_queue, (thread is first) == self.reached

        return min(candidates, key=priority)


def preemptions() -> Iterator[Preemption]:
    """A schedule for each point of the first thread; ends when it has no further points."""
    for position in itertools.count():
        schedule = Preemption(position)
        yield schedule
        if not schedule.reached:
            return


@cache
def _cached_properties(imported: int) -> list[Any]:
    """Those that hold a lock, which all objects of a class share: before Python 3.12.

    Args:
        imported: number of modules: the list grows with them.
    """
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("ostinato")]
    modules.append(compute_graph)  # which is loaded as late as it is needed, but for this
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type)}
    attributes = [a for c in classes for a in vars(c).values() if isinstance(a, cached_property)]
    return [attribute for attribute in attributes if hasattr(attribute, "lock")]


class _Thread:
    """A thread, and the lock that it waits for while others run."""

    def __init__(self, idle: Callable[[], bool] | None) -> None:
        self.baton = threading.Semaphore(0)
        self.ident = 0
        self.waits = 0  # since anything went on
        self.ended = False
        self._idle = idle

    @property
    def works_for_a_queue(self) -> bool:
        return self._idle is not None

    @property
    def without_work(self) -> bool:
        return self._idle is not None and self._idle()


class Lock:
    """A lock that its holder may take again; others switch until it is free."""

    def __init__(self) -> None:
        self._holder: int | None = None
        self._depth = 0

    def acquire(self) -> bool:
        switch("lock")
        while self._holder not in (None, threading.get_ident()):
            switch("wait")
        self._holder = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        switch("unlock")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class _Future:
    """A result to come; a thread that asks for it switches until it is there."""

    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = False

    def done(self) -> bool:
        return self._done

    def result(self) -> Any:
        while not self._done:
            switch("wait")
        if self._error is not None:
            raise self._error
        return self._result

    def set_result(self, result: Any) -> None:
        self._result, self._done = result, True

    def set_exception(self, error: BaseException) -> None:
        self._error, self._done = error, True


class _Worker:
    """The thread of a queue, which runs what is submitted to it in order."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._calls: deque[tuple[_Future, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._busy = False
        explorer._add(self._work, idle=lambda: not self._calls and not self._busy)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> _Future:
        future = _Future()
        self._calls.append((future, call, arguments))
        return future

    def _work(self) -> None:
        while not self._explorer.stopped:
            if not self._calls:
                self._explorer.switch("idle")
                continue
            future, call, arguments = self._calls.popleft()
            self._busy = True
            try:
                future.set_result(call(*arguments))
            except Exception as error:
                future.set_exception(error)
            self._busy = False
            del future, call, arguments  # nothing keeps alive what the calls held
