"""A sequential model of all submissions to two contexts.

Calls have the same names and arguments as those of :class:`~.world.World`, and give the same
outcomes: arrays, ``None``, booleans, or the name of an error. An element that is undefined, such as
a row beyond the active extent, is NaN here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .graphs import ROWS, Array, filled

#: Contexts, and buffers that sessions made on each of them.
CONTEXTS, BUFFERS = 2, 4

#: Initial numbers of the buffers, by position.
NUMBERS = (10.0, 20.0, 30.0, 40.0)


class Refused(Exception):
    """A call that raises; its argument is the name of the error."""


@dataclass(frozen=True)
class Feed:
    """Inputs of one run.

    Attributes:
        x: the number in the first input of a ledger, or in all rows.
        h: that in the input which has a handle; ``None`` leaves it to the handle.
        heavy: whether a ledger's run takes milliseconds.
        bad: whether an input has a wrong shape.
    """

    x: float
    h: float | None = 0.0
    heavy: bool = False
    bad: bool = False


@dataclass(frozen=True)
class Step:
    """One op of a session: ``target = op(source, target or number)``.

    Attributes:
        op: ``"add"`` with the number, ``"maximum"`` and ``"minimum"`` with the target.
        source: ``("state" or "weight", graph)`` or ``("buffer", position)``.
        target: position of a buffer.
        number: what ``"add"`` adds.
    """

    op: str
    source: tuple[str, int]
    target: int
    number: float = 0.0


@dataclass
class Handle:
    """The buffer that stands in for an input; a new one has a new token."""

    value: Array
    token: int


@dataclass
class Graph:
    """A compiled graph between two calls.

    Attributes:
        ledger: whether it is a ledger, else it is made of rows.
        context: position of its context.
        family: token of the weights' memory, which clones share until one writes.
        last: outputs of the last run, ``None`` before the first one.
        error: name of the first error of queued runs.
    """

    ledger: bool
    context: int
    family: int
    weight: Array
    state: Array
    handle: Handle | None = None
    feed: int | None = None
    last: list[Array] | None = None
    error: str | None = None
    sticky: int | None = None
    released: bool = False

    def input(self, number: float) -> Array:
        """The array that a number stands for, for the input that can have a handle."""
        return filled(number) if self.ledger else rows_of(number)


@dataclass
class Bound:
    """A call of ``bind``, and what its output arrays hold."""

    graph: int
    feed: Feed
    outputs: list[Array]


@dataclass
class Item:
    """A recorded submission: its effect, and the memory that it touches.

    Attributes:
        bound: position of a bound call.
        graph, feed, output: of a queued run: where, on what, and the output that a handle takes.
        steps: of a session.
    """

    touches: frozenset[tuple[str, int]]
    bound: int | None = None
    graph: int | None = None
    feed: Feed | None = None
    output: int | None = None
    steps: Sequence[Step] = ()


@dataclass
class Recording:
    """The calls that one thread records, or has recorded.

    Attributes:
        exclusive: whether the thread may submit nothing to another context meanwhile.
        dropped: whether memory that it touches has changed since.
        failed: whether it can not be kept, for that reason or since the thread did.
    """

    thread: int
    exclusive: bool = False
    items: list[Item] = field(default_factory=list)
    dropped: bool = False
    failed: bool = False


def rows_of(number: float) -> Array:
    """Rows that differ: ``number``, ``number + 1`` and so on."""
    column = np.arange(ROWS, dtype=np.float32)[:, None] + np.float32(number)
    return column * np.ones(4, np.float32)


class Model:
    """The expected state of two contexts after each call: a ledger on one, rows on the other."""

    def __init__(self) -> None:
        self._tokens = 0
        self.graphs = [self._new(0), self._new(1)]
        self.buffers: list[Array | None] = [filled(n) for n in NUMBERS]
        self.bounds: list[Bound] = []
        self.sessions: list[tuple[int, Sequence[Step]]] = []
        self.recordings: list[dict[int, Recording]] = [{} for _ in range(CONTEXTS)]
        self.captures: dict[int, Recording] = {}  # by context
        self.blocks: dict[tuple[int, int], list[int]] = {}  # extents by thread and graph

    def call(self, name: str, *args: Any, thread: int = 0, **kwargs: Any) -> Any:
        """The outcome of a call: what it returns, or the name of the error that it raises."""
        self.thread = thread
        try:
            return getattr(self, name)(*args, **kwargs)
        except Refused as refused:
            return str(refused)

    # -- runs --------------------------------------------------------------------------------------

    def run(self, graph: int, feed: Feed) -> list[Array]:
        self._wait(self.graphs[graph].context)
        return self._run(graph, feed, self.graphs[graph].feed)

    def run_feed_handle(self, graph: int, feed: Feed, output: int) -> Array:
        self._wait(self.graphs[graph].context)
        return self._run(graph, feed, output)[output]

    def run_pipelined(self, graph: int, feeds: Sequence[Feed]) -> list[list[Array]]:
        g = self.graphs[graph]
        self._wait(g.context)
        bound = g.handle is not None
        for feed in feeds:
            if feed.bad or (feed.h is None and not bound):
                raise Refused("InputError")
            bound = bound or g.feed is not None
        return [self._run(graph, feed, g.feed) for feed in feeds]

    def commit_no_wait(self, graph: int, feed: Feed) -> None:
        g = self.graphs[graph]
        if (recording := self._submit(g.context)) is None:
            try:
                self._run(graph, feed, g.feed)
            except Refused as refused:
                g.error = g.error or str(refused)
            return
        if feed.bad or (feed.h is None and g.handle is None):
            raise Refused("InputError")
        if g.feed is not None and g.handle is None:
            raise Refused("CaptureError")
        touches = {("program", graph)}
        if g.handle is not None and (feed.h is None or g.feed is not None):
            touches.add(("handle", g.handle.token))
        item = Item(frozenset(touches), graph=graph, feed=feed, output=g.feed)
        recording.items.append(item)

    def sync_pending(self, graph: int) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        error, g.error = g.error, None
        if error is not None:
            raise Refused(error)

    def bind(self, graph: int, feed: Feed) -> None:
        whole = (4,) if self.graphs[graph].ledger else (ROWS, 4)
        outputs = [np.zeros(shape, np.float32) for shape in (whole, (4,))]
        self.bounds.append(Bound(graph, feed, outputs))

    def bound_call(self, position: int) -> list[Array] | None:
        bound = self.bounds[position]
        if (recording := self._submit(self.graphs[bound.graph].context)) is None:
            bound.outputs = self._compute(bound.graph, bound.feed)
            return bound.outputs
        touches = frozenset({("program", bound.graph)})
        recording.items.append(Item(touches, bound=position))
        return None

    def read_bound(self, position: int) -> list[Array]:
        return self.bounds[position].outputs

    def _run(self, graph: int, feed: Feed, output: int | None) -> list[Array]:
        """A run whose output, if any, the handle takes in exchange for its buffer."""
        g = self.graphs[graph]
        results = self._compute(graph, feed)
        g.last = results
        if output is not None:
            self._exchange(g, results[output])
        return results

    def _compute(self, graph: int, feed: Feed) -> list[Array]:
        g = self.graphs[graph]
        if feed.bad:
            raise Refused("InputError")
        if feed.h is not None:
            given = g.input(feed.h)
        elif g.handle is not None:
            given = g.handle.value
        else:
            raise Refused("InputError")
        if g.ledger:
            x = filled(feed.x)
            g.state = g.state + x * g.weight
            return [g.state + given, given + x]
        g.state = g.state + given
        out = given + g.weight
        out[self._extent(graph) :] = np.nan
        return [out, given.sum(axis=0)]

    # -- params, handles, states -------------------------------------------------------------------

    def set_param(self, graph: int, number: float) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        if sum(other.family == g.family for other in self.graphs) > 1:
            g.family = self._token()
            self._drop("weight", graph)
        g.weight = filled(number)

    def bind_handle(self, graph: int, number: float) -> bool:
        g = self.graphs[graph]
        self._wait(g.context)
        self._exchange(g, g.input(number))
        return True

    def unbind_handle(self, graph: int) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        if g.handle is not None:
            self._drop("handle", g.handle.token)
        g.handle = g.feed = None

    def set_handle_feed(self, graph: int, output: int | None) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        g.feed = output

    def write_state(self, graph: int, number: float | None) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        g.state = np.full_like(g.state, 0 if number is None else number)

    def read_state(self, graph: int) -> Array:
        self._wait(self.graphs[graph].context)
        return self.graphs[graph].state

    def read_handle(self, graph: int) -> Array | None:
        self._wait(self.graphs[graph].context)
        handle = self.graphs[graph].handle
        return None if handle is None else handle.value

    def read_output_row(self, graph: int, output: int, row: int) -> Array | None:
        g = self.graphs[graph]
        self._wait(g.context)
        if g.last is None or row >= len(g.last[output]):
            return None
        return np.array(g.last[output][row])

    def _exchange(self, g: Graph, value: Array) -> None:
        if g.handle is not None:
            self._drop("handle", g.handle.token)
        g.handle = Handle(value, self._token())

    # -- sessions and their buffers ----------------------------------------------------------------

    def session(self, context: int, steps: Sequence[Step], end: str, heavy: bool) -> None:
        """``end`` is ``"finish"``, ``"commit"`` or ``"keep"``, which finishes and keeps its graph.

        ``heavy`` makes it take milliseconds.
        """
        self._run_session(context, steps)
        if end == "keep":
            self.sessions.append((context, steps))

    def replay_session(self, position: int) -> None:
        self._run_session(*self.sessions[position])

    def _run_session(self, context: int, steps: Sequence[Step]) -> None:
        if not self._touched(steps) <= self._living():
            raise Refused("PlanError")
        if (recording := self._submit(context)) is None:
            self._encode(steps)
        else:
            recording.items.append(Item(self._touched(steps), steps=steps))

    def copyin(self, buffer: int, number: float) -> None:
        self._wait(home(buffer))
        self._check(buffer)
        self.buffers[buffer] = filled(number)

    def copyout(self, buffer: int) -> Array:
        self._wait(home(buffer))
        return self._check(buffer)

    def release(self, buffer: int) -> None:
        self._wait(home(buffer))
        self.buffers[buffer] = None
        self._drop("buffer", buffer)

    def _encode(self, steps: Sequence[Step]) -> None:
        for step in steps:
            source, target = self._read(step.source), self._check(step.target)
            self.buffers[step.target] = {
                "add": lambda s=source, n=step.number: s + np.float32(n),
                "maximum": lambda s=source, t=target: np.maximum(s, t),
                "minimum": lambda s=source, t=target: np.minimum(s, t),
            }[step.op]()

    def _read(self, source: tuple[str, int]) -> Array:
        kind, position = source
        if kind == "buffer":
            return self._check(position)
        g = self.graphs[position]
        return (g.weight if kind == "weight" else g.state).reshape(-1)[:4]

    def _check(self, buffer: int) -> Array:
        held = self.buffers[buffer]
        if held is None:
            raise Refused("PlanError")
        return held

    def _touched(self, steps: Sequence[Step]) -> frozenset[tuple[str, int]]:
        return frozenset(t for step in steps for t in (step.source, ("buffer", step.target)))

    def _living(self) -> set[tuple[str, int]]:
        kept = {("buffer", i) for i, held in enumerate(self.buffers) if held is not None}
        alive = [i for i, g in enumerate(self.graphs) if not g.released]
        return kept | {(kind, i) for i in alive for kind in ("state", "weight")}

    # -- recordings --------------------------------------------------------------------------------

    def begin_graph_capture(self, context: int, exclusive: bool = False) -> None:
        if self._submit(context) is not None or context in self.captures:
            raise Refused("CaptureError")
        self.captures[context] = Recording(self.thread, exclusive)

    def end_graph_capture(self, context: int, key: int) -> None:
        if context not in self.captures or self.captures[context].thread != self.thread:
            raise Refused("CaptureError")
        recording = self.captures.pop(context)
        if recording.failed:
            raise Refused("CaptureError")
        self.recordings[context][key] = recording

    def cancel_graph_capture(self, context: int) -> None:
        self.captures.pop(context, None)

    def reset_graph(self, context: int, key: int) -> None:
        self.recordings[context].pop(key, None)

    def replay_graph(self, context: int, key: int) -> bool:
        self._wait(context)
        recording = self.recordings[context].get(key)
        if recording is None or recording.dropped:
            return False
        for item in recording.items:
            self._replay(item)
        return True

    def _replay(self, item: Item) -> None:
        if item.bound is not None:
            bound = self.bounds[item.bound]
            bound.outputs = self._compute(bound.graph, bound.feed)
        elif item.graph is not None:
            assert item.feed is not None
            g = self.graphs[item.graph]
            g.last = self._compute(item.graph, item.feed)
            if item.output is not None:
                assert g.handle is not None
                g.handle.value = g.last[item.output]
        else:
            self._encode(item.steps)

    def _drop(self, kind: str, number: int) -> None:
        """Drop every recording that touches this memory; those that are being made fail."""
        kept = [r for recordings in self.recordings for r in recordings.values()]
        for recording in (*kept, *self.captures.values()):
            if any((kind, number) in item.touches for item in recording.items):
                recording.dropped = recording.failed = True

    def _submit(self, context: int) -> Recording | None:
        """The recording that a submission of this thread becomes a part of; ``None``: it runs."""
        own = {c: r for c, r in self.captures.items() if r.thread == self.thread}
        if context in own:
            return own[context]
        for recording in own.values():
            if recording.exclusive:
                recording.failed = True
                raise Refused("CaptureError")
        return None

    def _wait(self, context: int) -> None:
        """Refuse what a recording of this thread can not hold."""
        if self._submit(context) is not None:
            raise Refused("CaptureError")

    def records(self, thread: int = 0) -> int | None:
        """The context that a thread records."""
        for context, recording in self.captures.items():
            if recording.thread == thread:
                return context
        return None

    # -- extents -----------------------------------------------------------------------------------

    def enter_extent(self, graph: int, actual: int) -> None:
        self.blocks.setdefault((self.thread, graph), []).append(actual)

    def exit_extent(self, graph: int) -> None:
        self.blocks[self.thread, graph].pop()

    def set_active_extent(self, graph: int, actual: int | None) -> None:
        self._wait(self.graphs[graph].context)
        self.graphs[graph].sticky = actual

    def _extent(self, graph: int) -> int:
        blocks = self.blocks.get((self.thread, graph))
        hint = blocks[-1] if blocks else self.graphs[graph].sticky
        return ROWS if hint is None else hint

    # -- clones and plans --------------------------------------------------------------------------

    def clone(self, graph: int, context: int | None) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        target = g.context if context is None else context
        handle = None if g.handle is None else Handle(g.handle.value, self._token())
        twin = Graph(g.ledger, target, g.family, g.weight, g.state, handle, g.feed)
        self.graphs.append(twin)

    def release_intermediate_buffers(self, graph: int) -> None:
        """Results in the arena may or may not outlive it."""
        g = self.graphs[graph]
        self._wait(g.context)
        self._drop("program", graph)
        g.last = None if g.last is None else [np.full_like(a, np.nan) for a in g.last]

    def release_all_buffers(self, graph: int) -> None:
        g = self.graphs[graph]
        self._wait(g.context)
        g.released = True
        for kind in ("program", "state", "weight"):
            self._drop(kind, graph)

    # -- machinery ---------------------------------------------------------------------------------

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _new(self, context: int) -> Graph:
        ledger = context == 0
        shape = (4,) if ledger else (ROWS, 4)
        return Graph(ledger, context, self._token(), filled(1), np.zeros(shape, np.float32))


def home(buffer: int) -> int:
    """The context that a buffer belongs to."""
    return buffer * CONTEXTS // BUFFERS


def agree(real: Any, expected: Any) -> bool:
    """Whether an outcome is the expected one, undefined elements aside."""
    if isinstance(expected, np.ndarray):
        if not isinstance(real, np.ndarray) or real.shape != expected.shape:
            return False
        return bool(((real == expected) | np.isnan(expected)).all())
    if isinstance(expected, list):
        if not isinstance(real, list) or len(real) != len(expected):
            return False
        return all(agree(r, e) for r, e in zip(real, expected, strict=True))
    return type(real) is type(expected) and bool(real == expected)
