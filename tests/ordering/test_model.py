"""Random calls on one thread, against a model in which they happen one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from .graphs import ROWS
from .model import BUFFERS, CONTEXTS, Feed, Model, Step, agree
from .world import World

CALLS = 30
KEYS = 3

indices = st.integers(0, 11)
keys = st.integers(0, KEYS - 1)
contexts = st.integers(0, CONTEXTS - 1)
numbers = st.integers(-3, 3).map(float)
extents = st.integers(0, ROWS)
feeds = st.builds(
    Feed, numbers, st.one_of(st.none(), numbers, numbers), st.sampled_from([False, False, True])
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
    """Makes each call on the world and on the model, and compares what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.model = World(), Model()

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

    # -- runs --------------------------------------------------------------------------------------

    @rule(index=indices, feed=feeds)
    def run(self, index: int, feed: Feed) -> None:
        self.do("run", self.graph(index), feed)

    @rule(index=indices, feed=feeds, output=outputs)
    def run_feed_handle(self, index: int, feed: Feed, output: int) -> None:
        graph = self.graph(index, fed=True)
        fits = output if self.model.graphs[graph].ledger else 0
        self.do("run_feed_handle", graph, feed, fits)

    @rule(index=indices, listed=st.lists(feeds, min_size=1, max_size=3))
    def run_pipelined(self, index: int, listed: list[Feed]) -> None:
        self.do("run_pipelined", self.graph(index), tuple(listed))

    @rule(index=indices, feed=feeds, count=st.integers(1, 3))
    def commit(self, index: int, feed: Feed, count: int) -> None:
        graph = self.graph(index)
        for _ in range(count):
            self.do("commit_no_wait", graph, feed)

    @rule(index=indices)
    def sync(self, index: int) -> None:
        self.do("sync_pending", self.graph(index, fed=True))

    @rule(index=indices, feed=feeds, number=numbers)
    def bind(self, index: int, feed: Feed, number: float) -> None:
        explicit = Feed(feed.x, number if feed.h is None else feed.h)
        self.do("bind", self.graph(index), explicit)
        self.do("bound_call", len(self.model.bounds) - 1)

    @rule(index=indices)
    def bound_call(self, index: int) -> None:
        if (position := self.bound(index)) is not None:
            self.do("bound_call", position)

    # -- writes and reads --------------------------------------------------------------------------

    @rule(index=indices, number=numbers)
    def set_param(self, index: int, number: float) -> None:
        self.do("set_param", self.graph(index, fed=True), number)

    @rule(index=indices, number=numbers)
    def bind_handle(self, index: int, number: float) -> None:
        self.do("bind_handle", self.graph(index, fed=True), number)

    @rule(index=indices)
    def unbind_handle(self, index: int) -> None:
        self.do("unbind_handle", self.graph(index, fed=True))

    @rule(index=indices, output=st.one_of(st.none(), outputs))
    def set_handle_feed(self, index: int, output: int | None) -> None:
        graph = self.graph(index, fed=True)
        fits = output if output is None or self.model.graphs[graph].ledger else 0
        self.do("set_handle_feed", graph, fits)

    @rule(index=indices, number=st.one_of(st.none(), numbers))
    def write_state(self, index: int, number: float | None) -> None:
        self.do("write_state", self.graph(index, fed=True), number)

    @rule(index=indices)
    def read_state(self, index: int) -> None:
        self.do("read_state", self.graph(index, fed=True))

    @rule(index=indices)
    def read_handle(self, index: int) -> None:
        self.do("read_handle", self.graph(index, fed=True))

    @rule(index=indices, output=outputs, row=st.integers(0, ROWS))
    def read_output_row(self, index: int, output: int, row: int) -> None:
        self.do("read_output_row", self.graph(index, fed=True), output, row)

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
    @rule(index=indices, number=numbers)
    def copyin(self, index: int, number: float) -> None:
        self.do("copyin", self.buffer(index), number)

    @precondition(lambda self: self.recording is None)
    @rule(index=indices)
    def copyout(self, index: int) -> None:
        self.do("copyout", self.buffer(index))

    @precondition(lambda self: self.recording is None)
    @rule(index=indices)
    def release(self, index: int) -> None:
        if sum(held is not None for held in self.model.buffers) == BUFFERS:
            self.do("release", self.buffer(index))

    # -- recordings --------------------------------------------------------------------------------

    @rule(context=contexts, exclusive=st.booleans())
    def begin(self, context: int, exclusive: bool) -> None:
        if self.recording in (None, context):
            self.do("begin_graph_capture", context, exclusive)

    @rule(context=contexts, key=keys)
    def end(self, context: int, key: int) -> None:
        self.do("end_graph_capture", context, key)

    @precondition(lambda self: self.recording is not None)
    @rule()
    def cancel(self) -> None:
        self.do("cancel_graph_capture", self.recording)

    @precondition(lambda self: self.recording is None)
    @rule(context=contexts, key=keys, listed=st.lists(submissions, max_size=3))
    def record(self, context: int, key: int, listed: list[Any]) -> None:
        """A whole recording at once."""
        self.do("begin_graph_capture", context)
        for kind, *arguments in listed:
            if kind == "session":
                raw, _, _ = arguments[0]
                self.do("session", context, self.steps(raw), "finish", False)
                continue
            index, feed = arguments
            if kind == "commit":
                graph = self.held(
                    index, self.model.graphs, lambda g: g.context == context and not g.released
                )
                if graph is not None:
                    self.do("commit_no_wait", graph, feed)
            elif (position := self.bound(index, context)) is not None:
                self.do("bound_call", position)
        self.do("end_graph_capture", context, key)

    @precondition(lambda self: self.recording is None)
    @rule(context=contexts, key=keys)
    def replay(self, context: int, key: int) -> None:
        self.do("replay_graph", context, key)

    @precondition(lambda self: self.recording is None)
    @rule(context=contexts, key=keys, index=indices, feed=feeds)
    def replay_behind_a_commit(self, context: int, key: int, index: int, feed: Feed) -> None:
        self.do("commit_no_wait", self.graph(index), feed)
        self.do("replay_graph", context, key)

    @rule(context=contexts, key=keys)
    def reset(self, context: int, key: int) -> None:
        self.do("reset_graph", context, key)

    # -- extents -----------------------------------------------------------------------------------

    def rows(self, index: int) -> int:
        found = self.held(index, self.model.graphs, lambda g: not g.ledger and not g.released)
        assert found is not None
        return found

    @precondition(lambda self: self.recording is None)
    @rule(index=indices, actual=extents)
    def enter_extent(self, index: int, actual: int) -> None:
        self.do("enter_extent", self.rows(index), actual)

    @rule(index=indices)
    def exit_extent(self, index: int) -> None:
        inside = sorted(graph for (_, graph), block in self.model.blocks.items() if block)
        if inside:
            self.do("exit_extent", inside[index % len(inside)])

    @precondition(lambda self: self.recording is None)
    @rule(index=indices, actual=st.one_of(st.none(), extents))
    def set_active_extent(self, index: int, actual: int | None) -> None:
        graph = self.rows(index)
        if not self.model.blocks.get((0, graph)):
            self.do("set_active_extent", graph, actual)

    # -- clones and plans --------------------------------------------------------------------------

    @precondition(lambda self: self.recording is None and len(self.model.graphs) < 5)
    @rule(index=indices, context=st.one_of(st.none(), contexts))
    def clone(self, index: int, context: int | None) -> None:
        self.do("clone", self.graph(index), context)

    @precondition(lambda self: self.recording is None)
    @rule(index=indices)
    def release_intermediate_buffers(self, index: int) -> None:
        self.do("release_intermediate_buffers", self.graph(index))

    @precondition(lambda self: self.recording is None)
    @rule(index=indices)
    def release_all_buffers(self, index: int) -> None:
        """Of a clone whose weights are its own."""
        graphs = self.model.graphs
        families = [g.family for g in graphs]
        alone = self.held(index, graphs[2:], lambda g: families.count(g.family) == 1)
        if alone is not None and not graphs[alone + 2].released:
            self.do("release_all_buffers", alone + 2)

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


def check(sequences: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        Calls,
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


def test_calls_happen_one_after_the_other() -> None:
    check(200, derandomize=True)


@pytest.mark.slow
def test_many_calls_happen_one_after_the_other() -> None:
    check(5000, derandomize=False)
