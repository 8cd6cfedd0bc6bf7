"""Random calls on one thread, against a model in which they happen one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.devices.catalogue import abilities

from .graphs import ROWS
from .model import BUFFERS, CONTEXTS, Feed, Model, Step, agree
from .world import World

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

CALLS = 30
KEYS = 2

indices = st.integers(0, 5)
keys = st.integers(0, KEYS - 1)
contexts = st.integers(0, CONTEXTS - 1)
numbers = st.integers(-3, 3).map(float)
extents = st.integers(0, ROWS)
rarely = st.integers(0, 11).map(lambda n: n == 7)
feeds = st.builds(
    Feed,
    numbers,
    st.one_of(st.none(), st.none(), numbers),
    st.sampled_from([False, False, True]),
    rarely,
)
outputs = st.integers(0, 1)

#: Op, kind and index of the source, index of the target, number.
raw_steps = st.tuples(
    st.sampled_from(["add", "add", "maximum", "minimum"]),
    st.sampled_from(["state", "state", "weight", "buffer"]),
    indices,
    indices,
    numbers,
)
sessions = st.tuples(
    st.lists(raw_steps, min_size=1, max_size=3),
    st.sampled_from(["finish", "commit", "keep"]),
    st.booleans(),
)
#: Something to record: a queued run, a bound call or a session.
submissions = st.one_of(
    st.tuples(st.just("commit"), indices, feeds),
    st.tuples(st.just("bound"), indices, feeds),
    st.tuples(st.just("session"), sessions),
)


class Calls(RuleBasedStateMachine):
    """Makes each call on the world and on the model, and compares the outcomes."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.world, self.model = World(device), Model()

    def do(self, name: str, *args: Any) -> Any:
        expected = self.model.call(name, *args)
        real = self.world.call(name, *args)
        assert agree(real, expected), f"{name}{args}: expected {expected}, got {real}"
        return expected

    # -- what there is -----------------------------------------------------------------------------

    @property
    def recording(self) -> int | None:
        return self.model.records()

    def graph(self, index: int, *, fed: bool = False) -> int:
        """A graph that was not released; with ``fed``, on the context that is recorded, if any."""
        living = [
            i
            for i, g in enumerate(self.model.graphs)
            if not g.released and (not fed or self.recording in (None, g.context))
        ]
        return living[index % len(living)]

    def buffer(self, index: int) -> int:
        living = [i for i in range(BUFFERS) if self.model.buffers[i] is not None]
        return living[index % len(living)]

    def steps(self, raw: Sequence[tuple[str, str, int, int, float]]) -> tuple[Step, ...]:
        return tuple(
            Step(
                op,
                (kind, self.buffer(index) if kind == "buffer" else self.graph(index)),
                self.buffer(target),
                number if op == "add" else 0,
            )
            for op, kind, index, target, number in raw
        )

    def held(self, index: int, of: Sequence[Any], there: Callable[[Any], bool]) -> int | None:
        found = [i for i, element in enumerate(of) if there(element)]
        return found[index % len(found)] if found else None

    def bound(self, index: int, context: int | None = None) -> int | None:
        """A bound call of a graph that was not released, on a context."""

        def there(bound: Any) -> bool:
            g = self.model.graphs[bound.graph]
            return not g.released and context in (None, g.context)

        return self.held(index, self.model.bounds, there)

    def fitted(self, graph: int, feed: Feed) -> Feed:
        """Add missing inputs to most of the runs that lack one."""
        lacks = feed.h is None and self.model.graphs[graph].handle is None
        return replace(feed, h=feed.x) if lacks and feed.x < 3 else feed

    # -- runs --------------------------------------------------------------------------------------

    @initialize(
        clones=st.lists(st.tuples(indices, st.one_of(st.none(), contexts)), max_size=2),
        fed=st.lists(indices, max_size=2),
    )
    def begin_with(self, clones: list[tuple[int, int | None]], fed: list[int]) -> None:
        for index, context in clones:
            self.do("clone", self.graph(index), context)
        for index in fed:
            self.feed(index, 0)

    @rule(
        index=indices, listed=st.lists(feeds, min_size=1, max_size=3), output=outputs, way=indices
    )
    def run(self, index: int, listed: list[Feed], output: int, way: int) -> None:
        graph = self.graph(index)
        feed = self.fitted(graph, listed[0])
        if way < 2:
            self.do("run", graph, feed)
        elif way < 4:
            batch = [self.fitted(graph, each) for each in listed]
            self.do("run_pipelined", graph, (*batch, replace(feed, bad=way == 3)))
        elif self.recording in (None, self.model.graphs[graph].context):
            fits = output if self.model.graphs[graph].ledger else 0
            self.do("run_feed_handle", graph, feed, fits)

    @rule(index=indices, feed=feeds, count=st.integers(1, 3))
    def commit(self, index: int, feed: Feed, count: int) -> None:
        graph = self.graph(index)
        for _ in range(count):
            self.do("commit_no_wait", graph, self.fitted(graph, feed))

    @rule(index=indices, feed=feeds, number=numbers, again=st.booleans())
    def bound_call(self, index: int, feed: Feed, number: float, again: bool) -> None:
        position = self.bound(index) if again else None
        if position is None:
            explicit = Feed(feed.x, number if feed.h is None else feed.h)
            self.do("bind", self.graph(index), explicit)
            position = len(self.model.bounds) - 1
        self.do("bound_call", position)

    # -- writes and reads --------------------------------------------------------------------------

    @rule(index=indices, number=numbers)
    def set_param(self, index: int, number: float) -> None:
        self.do("set_param", self.graph(index, fed=True), number)

    @rule(index=indices, output=outputs)
    def feed(self, index: int, output: int) -> None:
        """Let a handle take an output from now on."""
        graph = self.graph(index, fed=True)
        self.do("bind_handle", graph, 1.0)
        self.do("set_handle_feed", graph, output if self.model.graphs[graph].ledger else 0)

    @rule(index=indices, number=numbers, name=st.sampled_from(["bind", "unbind", "end", "state"]))
    def write(self, index: int, number: float, name: str) -> None:
        graph = self.graph(index, fed=True)
        if name == "bind":
            self.do("bind_handle", graph, number)
        elif name == "unbind":
            self.do("unbind_handle", graph)
        elif name == "end":
            self.do("set_handle_feed", graph, None)
        else:
            self.do("write_state", graph, None if number < 0 else number)

    @rule(
        index=indices,
        output=outputs,
        row=st.integers(0, ROWS),
        name=st.sampled_from(["read_state", "read_handle", "read_output_row", "sync_pending"]),
    )
    def read(self, index: int, output: int, row: int, name: str) -> None:
        arguments = (output, row) if name == "read_output_row" else ()
        self.do(name, self.graph(index, fed=True), *arguments)

    # -- sessions ----------------------------------------------------------------------------------

    @rule(context=contexts, session=sessions)
    def session(self, context: int, session: Any) -> None:
        raw, end, heavy = session
        self.do("session", context, self.steps(raw), end, heavy)

    @rule(index=indices)
    def replay_session(self, index: int) -> None:
        kept = self.held(index, self.model.sessions, lambda s: self.recording in (None, s[0]))
        if kept is not None:
            self.do("replay_session", kept)

    @precondition(lambda self: self.recording is None)
    @rule(index=indices, number=numbers, name=st.sampled_from(["copyin", "copyout", "release"]))
    def use_buffer(self, index: int, number: float, name: str) -> None:
        buffer = self.buffer(index)
        if name != "release":
            self.do(name, buffer, *((number,) if name == "copyin" else ()))
        elif sum(held is not None for held in self.model.buffers) == BUFFERS:
            self.do("release", buffer)

    # -- recordings --------------------------------------------------------------------------------

    @rule(
        context=contexts,
        key=keys,
        exclusive=st.booleans(),
        name=st.sampled_from(["begin", "end", "cancel", "reset"]),
    )
    def capture(self, context: int, key: int, exclusive: bool, name: str) -> None:
        if name == "begin" and self.recording in (None, context):
            self.do("begin_graph_capture", context, exclusive)
        elif name == "end":
            self.do("end_graph_capture", context, key)
        elif name == "cancel":
            self.do("cancel_graph_capture", context)
        elif name == "reset":
            self.do("reset_graph", context, key)

    @rule(
        context=contexts,
        key=keys,
        listed=st.lists(submissions, min_size=1, max_size=3),
        change=st.sampled_from([None, "set_param", "feed", "run", "write", "release"]),
        index=indices,
    )
    def record(
        self, context: int, key: int, listed: list[Any], change: str | None, index: int
    ) -> None:
        """A whole recording at once, or the rest of the one that is being made.

        After a change of what there is, it is replayed.
        """
        if self.recording is None:
            self.do("begin_graph_capture", context)
        else:
            context = self.recording
        for kind, *arguments in listed:
            if kind == "session":
                raw, _, _ = arguments[0]
                self.do("session", context, self.steps(raw), "finish", False)
                continue
            chosen, feed = arguments
            graph = self.graph(chosen, fed=True)
            position = self.bound(chosen, context)
            if kind == "commit":
                self.do("commit_no_wait", graph, self.fitted(graph, feed))
            elif position is not None:
                self.do("bound_call", position)
        self.do("end_graph_capture", context, key)
        if change is not None:
            self.change(change, index)
            self.do("replay_graph", context, key)

    def change(self, name: str, index: int) -> None:
        """Something that drops recordings of some memory, and of no other."""
        graph = self.graph(index)
        handle = self.model.graphs[graph].handle
        if name == "set_param":
            self.do("set_param", graph, 2.0)
        elif name == "feed":
            self.do("bind_handle", graph, 2.0)
        elif name == "run":
            self.do("run", graph, Feed(1, 1 if handle is None else None))
        elif name == "write":
            self.do("write_state", graph, 2.0)
        elif sum(held is not None for held in self.model.buffers) == BUFFERS:
            self.do("release", self.buffer(index))

    @precondition(lambda self: self.recording is None)
    @rule(index=indices, key=keys, feed=feeds, queued=st.booleans())
    def replay(self, index: int, key: int, feed: Feed, queued: bool) -> None:
        """Replay one of the recordings, perhaps behind a queued run."""
        known = [(c, k) for c, kept in enumerate(self.model.recordings) for k in sorted(kept)]
        if queued:
            graph = self.graph(index)
            self.do("commit_no_wait", graph, self.fitted(graph, feed))
        self.do("replay_graph", *(known[index % len(known)] if known else (0, key)))

    # -- extents -----------------------------------------------------------------------------------

    def rows(self, index: int) -> int:
        """A graph of rows."""
        found = self.held(index, self.model.graphs, lambda g: not g.ledger and not g.released)
        assert found is not None
        return found

    @rule(index=indices, actual=extents, name=st.sampled_from(["enter", "exit", "around", "set"]))
    def extent(self, index: int, actual: int, name: str) -> None:
        """Blocks may end inside a recording; they begin, and hints are set, outside of one."""
        graph = self.rows(index)
        inside = sorted(graph for (_, graph), block in self.model.blocks.items() if block)
        if name == "exit":
            if inside:
                self.do("exit_extent", inside[index % len(inside)])
        elif self.recording is not None:
            return
        elif name == "around":
            self.do("enter_extent", graph, actual)
            self.do("begin_graph_capture", self.model.graphs[graph].context)
            self.do("exit_extent", graph)
        elif name == "enter":
            self.do("enter_extent", graph, actual)
        elif graph not in inside:
            self.do("set_active_extent", graph, actual if actual < ROWS else None)

    # -- clones and plans --------------------------------------------------------------------------

    @precondition(lambda self: self.recording is None and len(self.model.graphs) < 5)
    @rule(index=indices, context=st.one_of(st.none(), contexts))
    def clone(self, index: int, context: int | None) -> None:
        self.do("clone", self.graph(index), context)

    @precondition(lambda self: self.recording is None)
    @rule(index=indices, everything=st.booleans())
    def release_plan(self, index: int, everything: bool) -> None:
        """Release everything only of a clone whose weights are its own."""
        if not everything:
            self.do("release_intermediate_buffers", self.graph(index))
            return
        graphs = self.model.graphs
        families = [g.family for g in graphs]
        alone = [
            i
            for i, g in enumerate(graphs)
            if i >= CONTEXTS and families.count(g.family) == 1 and not g.released
        ]
        if alone:
            self.do("release_all_buffers", alone[index % len(alone)])

    # -- the end -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Compare all there is, and all that recordings do."""
        for context in list(self.model.captures):
            self.do("cancel_graph_capture", context)
        for (_, graph), blocks in self.model.blocks.items():
            for _ in list(blocks):
                self.do("exit_extent", graph)
        self.compare()
        for context in range(CONTEXTS):
            for key in range(KEYS):
                self.do("replay_graph", context, key)
        self.compare()

    def compare(self) -> None:
        for graph, g in enumerate(self.model.graphs):
            if not g.released:
                for name in ("read_state", "read_handle"):
                    self.do(name, graph)
                for output in range(2):
                    self.do("read_output_row", graph, output, 0)
                self.do("sync_pending", graph)
        for buffer, held in enumerate(self.model.buffers):
            if held is not None:
                self.do("copyout", buffer)
        for position in range(len(self.model.bounds)):
            self.do("read_bound", position)
        for pending in self.world.pending:
            pending.wait()


def check(device: str, sequences: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        lambda: Calls(device),
        settings=settings(
            max_examples=sequences,
            stateful_step_count=CALLS,
            derandomize=derandomize,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


def test_calls_happen_one_after_the_other(device: str) -> None:
    check(device, 30, derandomize=True)


@pytest.mark.slow
def test_many_calls_happen_one_after_the_other(device: str) -> None:
    # Where a framework or a driver makes the graphs of each sequence ready, that takes most time.
    check(device, 5000 if "llvm" in abilities(device) else 300, derandomize=False)
