"""Calls of two and three threads, in schedules chosen by a seed, against all interleavings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest

from .explorer import Deadlock, Explorer, Lock
from .graphs import ROWS
from .model import CONTEXTS, Feed, Model, Step, agree
from .world import World

pytestmark = pytest.mark.needs("capture", "quick", "single_ops")

#: The thread of the calls before and after.
MAIN = -1

#: The buffer that is released, which no session of a thread's uses.
DOOMED = 3


@dataclass
class Call:
    """A call by name, and what it gave."""

    name: str
    arguments: tuple[Any, ...]
    outcome: Any = None

    def __str__(self) -> str:
        return f"{self.name}{self.arguments} -> {self.outcome}"


@dataclass
class Scenario:
    """Calls to begin with, and those of each thread."""

    setup: list[Call] = field(default_factory=list)
    threads: list[list[Call]] = field(default_factory=list)

    def __str__(self) -> str:
        named = {"before": self.setup, **{f"thread {i}": t for i, t in enumerate(self.threads)}}
        return "\n".join(f"{k}:\n  " + "\n  ".join(map(str, calls)) for k, calls in named.items())


# -- what threads do -------------------------------------------------------------------------------


def scenario_of(random: Random) -> Scenario:
    """Two threads of up to four calls, or three of two.

    Bound calls are made on arrays of one thread; those that are recorded have arrays of their own.
    """
    made, count = Scenario(), random.choice([2, 2, 3])
    graphs = [0, 1]  # a ledger on the first context, rows on the second
    if random.random() < 0.5:
        graphs.append(2)
        made.setup.append(Call("clone", (0, random.choice([None, 1]))))
    for graph in graphs:
        if random.random() < 0.6:
            made.setup.append(Call("bind_handle", (graph, 1.0)))
            if random.random() < 0.7:
                made.setup.append(Call("set_handle_feed", (graph, 0 if graph == 1 else 1)))
    for _ in range(1 + count):
        made.setup += [Call("bind", (graph, feed_of(random, missing=0))) for graph in graphs]
    for context in range(CONTEXTS):
        made.setup += recording_of(random, context, key=0)
    recorder = random.randrange(2 * count)
    for thread in range(count):
        own = len(graphs) * (1 + thread)
        length = 2 if count == 3 else random.randint(2, 4)
        calls = [call_of(random, graphs, own) for _ in range(length)]
        if thread == recorder:
            calls = recording_of(random, random.randrange(CONTEXTS), key=1)
        elif random.random() < 0.2:
            calls = [
                Call("enter_extent", (1, random.randint(1, ROWS - 1))),
                *calls[:2],
                Call("exit_extent", (1,)),
            ]
        made.threads.append(calls)
    return made


def feed_of(random: Random, missing: float = 0.5) -> Feed:
    x = float(random.randint(1, 3))
    return Feed(x, None if random.random() < missing else 0.0, bad=random.random() < missing / 8)


def recording_of(random: Random, context: int, key: int) -> list[Call]:
    calls = [Call("begin_graph_capture", (context,))]
    for _ in range(random.randint(1, 2)):
        kind = random.choice(["commit_no_wait", "bound_call", "session"])
        if kind == "commit_no_wait":
            calls.append(Call(kind, (context, feed_of(random))))
        elif kind == "bound_call":
            calls.append(Call(kind, (context,)))
        else:
            source = random.choice([("state", 0), ("weight", 0), ("state", 1), ("buffer", DOOMED)])
            step = Step("add", source, random.choice([0, 2]), 1.0)
            calls.append(Call(kind, (context, (step,), "finish", False)))
    return [*calls, Call("end_graph_capture", (context, key))]


def call_of(random: Random, graphs: Sequence[int], bound: int) -> Call:
    """Something to submit; ``bound`` is the first of the thread's bound calls."""
    graph = random.choice([0, 0, 0, *graphs])  # threads that meet say more than those that do not
    context = random.randrange(CONTEXTS)
    source = random.choice([("state", graph), ("weight", graph), ("buffer", random.randrange(3))])
    step = Step(random.choice(["add", "maximum"]), source, random.randrange(3), 1.0)
    feeds = tuple(feed_of(random, missing=0.2) for _ in range(3))
    output = 0 if graph == 1 else 1
    choices: list[tuple[int, str, tuple[Any, ...]]] = [
        (4, "run", (graph, feed_of(random))),
        (4, "commit_no_wait", (graph, feed_of(random))),
        (4, "run_pipelined", (graph, feeds)),
        (2, "run_feed_handle", (graph, feed_of(random), output)),
        (3, "bound_call", (bound + graph,)),
        (4, "replay_graph", (context, 0)),
        (1, "replay_graph", (context, 1)),
        (3, "session", (context, (step,), random.choice(["finish", "commit"]), False)),
        (2, "set_param", (graph, float(random.randint(2, 4)))),
        (2, "bind_handle", (graph, float(random.randint(2, 4)))),
        (1, "unbind_handle", (graph,)),
        (1, "set_handle_feed", (graph, random.choice([None, output]))),
        (1, "write_state", (graph, 50.0)),
        (2, "read_state", (graph,)),
        (2, "read_handle", (graph,)),
        (2, "read_output_row", (graph, 0, 0)),
        (1, "copyout", (random.randrange(4),)),
        (1, "copyin", (random.randrange(3), 70.0)),
        (1, "sync_pending", (graph,)),
        (1, "release", (DOOMED,)),
        (1, "release_intermediate_buffers", (graph,)),
        (1, "reset_graph", (context, 0)),
    ]
    weights = [weight for weight, _, _ in choices]
    (chosen,) = random.choices(choices, weights)
    return Call(chosen[1], chosen[2])


# -- running and judging ---------------------------------------------------------------------------


def final_calls(graphs: int) -> list[Call]:
    """Everything there is to see, before and after replays."""
    seen = [
        Call(name, (graph,))
        for graph in range(graphs)
        for name in ("read_state", "read_handle", "sync_pending")
    ]
    seen += [Call("copyout", (buffer,)) for buffer in range(4)]
    replays = [Call("replay_graph", (c, k)) for c in range(CONTEXTS) for k in range(2)]
    return [*seen, *replays, *(copy.copy(call) for call in seen)]


def make(world: World, calls: Sequence[Call]) -> None:
    for call in calls:
        call.outcome = world.call(call.name, *call.arguments)


def warm(world: World) -> None:
    """Compile what sessions need: that takes locks of the process, which the explorer leaves be."""
    for executor in world.executors:
        scratch = executor.empty((4,))
        with executor.begin() as s:
            s.add(scratch, 1.0, out=scratch)
            s.maximum(scratch, scratch, out=scratch)
    for graph in range(CONTEXTS):
        world.read_state(graph)
        _ = world.graphs[graph].plan


def explore(seed: int) -> tuple[Scenario, list[Call]]:
    """A scenario whose calls were made in one schedule, and what there is at the end."""
    random = Random(seed)
    scenario, explorer = scenario_of(random), Explorer(seed, lines=random.choice([0, 0.01, 0.05]))
    with explorer.installed():
        world = World()
        warm(world)
        make(world, scenario.setup)
        explorer.run([partial(make, world, calls) for calls in scenario.threads])
        final = final_calls(len(world.graphs))
        make(world, final)
        for pending in world.pending:
            pending.wait()
    return scenario, final


def explained(scenario: Scenario, final: Sequence[Call]) -> bool:
    """Whether some sequential interleaving of the calls gives every outcome."""
    model = Model()
    if not matches(model, scenario.setup, MAIN):
        return False
    return interleaves(model, [0] * len(scenario.threads), scenario.threads, final)


def matches(model: Model, calls: Sequence[Call], thread: int) -> bool:
    return all(
        agree(call.outcome, model.call(call.name, *call.arguments, thread=thread)) for call in calls
    )


def interleaves(
    model: Model, made: list[int], threads: Sequence[Sequence[Call]], final: Sequence[Call]
) -> bool:
    """Whether the calls that are left can be made in some order from here."""
    left = [i for i, calls in enumerate(threads) if made[i] < len(calls)]
    if not left:
        return matches(model, final, MAIN)
    for thread in left:
        call, following = threads[thread][made[thread]], copy.deepcopy(model)
        if not matches(following, [call], thread):
            continue
        further = [count + (i == thread) for i, count in enumerate(made)]
        if interleaves(following, further, threads, final):
            return True
    return False


def check(seed: int) -> None:
    scenario, final = explore(seed)
    if not explained(scenario, final):
        shown = "\n  ".join(map(str, final))
        pytest.fail(f"seed {seed}: no order explains\n{scenario}\nat the end:\n  {shown}")


@pytest.mark.parametrize("block", range(4))
def test_some_order_explains_every_schedule(block: int) -> None:
    for seed in range(8 * block, 8 * (block + 1)):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_some_order_explains_very_many_schedules(block: int) -> None:
    for seed in range(1000 + 150 * block, 1000 + 150 * (block + 1)):
        check(seed)


# -- the explorer itself ---------------------------------------------------------------------------


def test_a_seed_is_a_schedule() -> None:
    shown = [str(explore(7)[0]) for _ in range(2)]
    assert shown[0] == shown[1]


def race(seed: int) -> list[int]:
    """Two threads that read and write without a lock, with a switch in between."""
    explorer, held = Explorer(seed), [0]

    def work() -> None:
        for _ in range(3):
            seen = held[0]
            explorer.switch()
            held[0] = seen + 1

    explorer.run([work, work])
    return held


def test_the_explorer_finds_a_race() -> None:
    assert len({race(seed)[0] for seed in range(50)}) > 1
    assert [race(3) for _ in range(2)] == [race(3)] * 2


def test_the_explorer_reports_a_deadlock() -> None:
    def opposed() -> list[Callable[[], None]]:
        locks = [Lock(), Lock()]

        def work(first: Lock, second: Lock) -> None:
            with first, second:
                pass

        return [partial(work, *locks), partial(work, *reversed(locks))]

    outcomes = set()
    for seed in range(50):
        explorer = Explorer(seed)
        try:
            explorer.run(opposed())
            outcomes.add("ended")
        except Deadlock:
            outcomes.add("deadlock")
    assert outcomes == {"ended", "deadlock"}
