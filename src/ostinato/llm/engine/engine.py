"""The engine: a thread that runs the steps of a model for all requests."""

from __future__ import annotations

import atexit
import secrets
from collections import deque
from math import inf
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from ostinato.errors import (
    Cancelled,
    InputError,
    OstinatoError,
    Overloaded,
    SessionStateError,
)
from ostinato.llm.engine.admission import check_request
from ostinato.llm.engine.requests import Ticket
from ostinato.llm.engine.scheduler import Scheduler
from ostinato.llm.engine.sequence import Sequence
from ostinato.llm.engine.settings import EngineStats
from ostinato.llm.generation import Stream
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ostinato.llm.engine.interfaces import AheadStep, Step
    from ostinato.llm.engine.kv_cache import KVCache
    from ostinato.llm.engine.requests import Listener, PreparedRequest, Request
    from ostinato.llm.engine.scheduler import Proposer
    from ostinato.llm.engine.settings import EngineSettings
    from ostinato.llm.generation import Delta

__all__ = ["Engine"]


class _Request:
    """A request under way: its answers, and those that wait for them."""

    def __init__(self, ticket: Ticket, listener: Listener | None, branches: list[Sequence]) -> None:
        self.ticket = ticket
        self.listener = listener
        self.branches = branches
        self.left = len(branches)
        self.error: OstinatoError | None = None


class Engine:
    """Runs requests together: each step has rows of all that run.

    On the CPU, a request's tokens and log-probabilities do not depend on the other requests, on the
    limits, or on when it is submitted. All methods may be called from any thread.

    Args:
        step: the model's step, which this engine alone runs.
        cache: its keys and values.
        prepare: makes a request ready for the step: its tokens, and the formats of its answer.
        settings: limits.
        proposer: speculation.
        ahead: the step, if the device computes while the host goes on.

    Raises:
        InputError: ``step_rows`` is above the step's bound.
    """

    def __init__(
        self,
        step: Step,
        cache: KVCache,
        prepare: Callable[[Request], PreparedRequest],
        settings: EngineSettings,
        *,
        proposer: Proposer | None = None,
        ahead: AheadStep | None = None,
    ) -> None:
        if settings.step_rows > step.limits.rows:
            raise InputError(
                f"step_rows is at most {step.limits.rows}, for which the model is compiled, "
                f"got {settings.step_rows}"
            )
        self.settings = settings
        self._limits = step.limits
        self._vocabulary = step.outputs.logits.shape[1]
        self._prepare = prepare
        self._scheduler = Scheduler(
            step,
            cache,
            self._branch_ended,
            step_rows=settings.step_rows,
            prefill_rows=settings.prefill_rows,
            policy=settings.policy,
            proposer=proposer,
            ahead=ahead,
        )
        self._wake = Condition()
        # What other threads hand over, guarded by the condition's lock.
        self._arrivals: deque[_Request] = deque()
        self._cancels: set[int] = set()
        self._tasks: deque[Callable[[], None]] = deque()
        self._requests: dict[int, _Request] = {}
        self._queued = 0
        self._count = 0
        self._order = 0
        self._draining = self._closing = False
        self._seconds = 1.0  # a moving average of what answers take
        self._of: dict[Sequence, _Request] = {}
        self._thread = Thread(target=self._run, name="ostinato-engine", daemon=True)
        self._thread.start()
        # A step must not run while the interpreter takes its memory away.
        atexit.register(self.close)

    # -- for all threads -------------------------------------------------------------------------

    def submit(
        self, request: Request, listener: Listener | None = None, *, wait: bool = False
    ) -> Ticket:
        """Queue a request.

        Args:
            request: the prompt and its parameters.
            listener: called on the engine's thread with each part of the answers as it is there,
                and with ``None`` at the end. It must not block.
            wait: wait for a place in the queue instead of refusing the request.

        Raises:
            InputError: a parameter or a token is out of range.
            ContextError: prompt and answer exceed the context or the memory for keys and values.
            Overloaded: the queue is full, or the engine takes no more requests.
            SessionStateError: the engine is closed.
        """
        prepared = self.check(request)
        sampling = request.sampling
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        seconds = request.seconds or self.settings.request_seconds or inf
        branches = [
            Sequence(
                request,
                prepared,
                order=0,
                branch=branch,
                seed=seed,
                deadline=perf_counter() + seconds,
            )
            for branch in range(sampling.n)
        ]
        for other in branches[1:]:
            other.waits_for = branches[0]
        with self._wake:
            while wait and self._full(sampling.n) and not self._closing and not self._draining:
                self._wake.wait()
            self._refuse(sampling.n)
            self._count += 1
            ticket = Ticket(self._count, self.cancel)
            entry = _Request(ticket, listener, branches)
            for branch in branches:
                self._order += 1
                branch.order = self._order
                self._of[branch] = entry
            self._requests[ticket.id] = entry
            self._queued += len(branches)
            self._arrivals.append(entry)
            self._wake.notify_all()
        return ticket

    def check(self, request: Request) -> PreparedRequest:
        """Refuse a request that can never be served; its tokens and formats otherwise.

        Raises:
            InputError: a parameter or a token is out of range.
            ContextError: prompt and answer exceed the context or the memory for keys and values.
        """
        prepared = self._prepare(request)
        check_request(request, prepared, self._limits, self._vocabulary, self._scheduler.cache)
        return prepared

    def open_stream(self, request: Request) -> Stream:
        """Queue a request, and iterate over the parts of its answers.

        Raises:
            OstinatoError: see :meth:`submit`.
        """
        parts: SimpleQueue[Delta | None] = SimpleQueue()
        ticket = self.submit(request, parts.put)

        def deltas() -> Iterator[Delta]:
            while (delta := parts.get()) is not None:
                yield delta
            ticket.result()  # an error of the engine is the reader's too

        return Stream(deltas(), ticket.cancel, ticket.result)

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Queue a request, and iterate over the parts of its answers on the running event loop.

        A reader that stops early, or is cancelled, cancels the request.

        Raises:
            OstinatoError: see :meth:`submit`.
        """
        import asyncio  # here: the import takes longer than the rest of this package

        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[Delta | None] = asyncio.Queue()
        ticket = self.submit(
            request, lambda delta: loop.call_soon_threadsafe(parts.put_nowait, delta)
        )
        try:
            while (delta := await parts.get()) is not None:
                yield delta
            ticket.result(1.0)
        finally:
            ticket.cancel()

    def cancel(self, number: int) -> bool:
        """End a request within a step; whether it was under way."""
        with self._wake:
            known = number in self._requests
            if known:
                self._cancels.add(number)
                self._wake.notify_all()
            return known

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function between two steps, on the engine's thread, and return its result.

        Raises:
            SessionStateError: the engine is closed.
        """
        outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def task() -> None:
            try:
                outcome.put((function(), None))
            except BaseException as error:
                outcome.put((None, error))

        with self._wake:
            if self._closing:
                raise SessionStateError("the engine is closed")
            self._tasks.append(task)
            self._wake.notify_all()
        result, error = outcome.get()
        if error is not None:
            raise error
        return result

    def stats(self) -> EngineStats:
        """State and counts."""
        with self._wake:
            scheduler = self._scheduler
            counters = scheduler.counters
            pools = [kind.pool for kind in scheduler.cache.kinds]
            running = len(scheduler.running)
            return EngineStats(
                running=running,
                waiting=self._queued,
                finished=counters.finished,
                cancelled=counters.cancelled,
                failed=counters.failed,
                preempted=counters.preempted,
                steps=counters.steps,
                rows=counters.rows,
                prompt_tokens=counters.prompt,
                cached_tokens=counters.cached,
                completion_tokens=counters.completion,
                drafted_tokens=counters.drafted,
                accepted_tokens=counters.accepted,
                blocks=sum(pool.count for pool in pools),
                blocks_used=sum(pool.count - pool.free for pool in pools),
                blocks_cached=sum(pool.cached for pool in pools),
            )

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        with self._wake:
            return not self._requests

    def drain(self, timeout: float) -> bool:
        """Refuse new requests, and wait for those under way; whether all ended in time."""
        limit = monotonic() + timeout
        with self._wake:
            self._draining = True
            self._wake.notify_all()
            while self._requests:
                left = limit - monotonic()
                if left <= 0:
                    return False
                self._wake.wait(left)
        return True

    def close(self) -> None:
        """Cancel all requests and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    # -- admission -------------------------------------------------------------------------------

    def _full(self, count: int) -> bool:
        # An empty queue takes any request, or one with a large `n` could never be served.
        return self._queued > 0 and self._queued + count > self.settings.queue

    def _refuse(self, count: int) -> None:
        if self._closing:
            raise SessionStateError("the engine is closed")
        if self._draining:
            raise Overloaded("the engine takes no more requests: it is being drained", 60.0)
        if self._full(count):
            slots = self._limits.sequences
            seconds = max(self._seconds * self._queued / slots, 0.1)
            raise Overloaded(
                f"{self._queued} answers wait, of at most {self.settings.queue}; "
                f"try again in {seconds:.1f} seconds",
                seconds,
            )

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        scheduler = self._scheduler
        while self._hand_over():
            try:
                served = scheduler.advance()
            except Exception as error:
                failure = OstinatoError(f"a step failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                scheduler.fail([*scheduler.running], failure)
                continue
            for sequence in served:
                if sequence.finish is None:
                    self._deliver(sequence)
            with self._wake:
                waiting = len(scheduler.waiting) + sum(len(e.branches) for e in self._arrivals)
                if waiting != self._queued:
                    self._queued = waiting
                    self._wake.notify_all()
        scheduler.settle()

    def _hand_over(self) -> bool:
        """Take in what other threads have handed over; ``False`` at the end."""
        scheduler = self._scheduler
        with self._wake:
            while not (
                self._arrivals
                or self._cancels
                or self._tasks
                or self._closing
                or not scheduler.idle
            ):
                self._wake.wait()
            arrivals, cancels, tasks = [*self._arrivals], [*self._cancels], [*self._tasks]
            self._arrivals.clear()
            self._cancels.clear()
            self._tasks.clear()
            closing = self._closing
            cancelled = [self._requests[number] for number in cancels if number in self._requests]
            everything = [*self._requests.values()]
        for entry in arrivals:
            scheduler.add(entry.branches)
        for entry in cancelled:
            scheduler.cancel(entry.branches)
        for task in tasks:
            task()
        if closing:
            for entry in everything:
                scheduler.fail(entry.branches, Cancelled("the engine was closed"))
        return not closing

    def _deliver(self, sequence: Sequence) -> None:
        """Hand the newest part of an answer to its listener."""
        entry = self._of[sequence]
        if entry.listener is None:
            return
        delta = sequence.delta()
        if delta is not None:
            self._tell(entry, delta)

    def _tell(self, entry: _Request, delta: Delta | None) -> None:
        """Call a listener; one that fails ends its request."""
        assert entry.listener is not None
        try:
            entry.listener(delta)
        except Exception:
            entry.listener = None
            self.cancel(entry.ticket.id)

    def _branch_ended(self, sequence: Sequence, error: OstinatoError | None) -> None:
        """Complete the request of an answer that has ended, if it was the last one."""
        self._deliver(sequence)
        entry = self._of.pop(sequence)
        entry.left -= 1
        entry.error = entry.error or error
        if entry.left:
            return
        self._complete(entry)

    def _complete(self, entry: _Request) -> None:
        first, *others = (branch.generation() for branch in entry.branches)
        generation = replace(first, alternatives=tuple(others)) if others else first
        entry.ticket.complete(generation, entry.error)
        if entry.listener is not None:
            self._tell(entry, None)
        with self._wake:
            del self._requests[entry.ticket.id]
            self._cancels.discard(entry.ticket.id)
            self._seconds += 0.1 * (first.timings.total - self._seconds)
            self._wake.notify_all()
