"""The time that replay saves over submitting anew: many tiny ops, many tiny graphs, a decode loop.

- Tiny ops add two vectors of 16 numbers, each in place of the one before. ``one by one`` gives
  every op a session of its own, ``one session`` encodes all of them for one commit,
  ``graph.replay`` runs a recorded session again, ``replay_graph`` what a context captured.
- Tiny graphs do such an addition to a state.
- The decode loop is that of ``bench.decode_ways``, a step per token.

Sides alternate in one process, on one thread.

    python -m bench.replay [--ops 500] [--tokens 64] [--seconds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench import decode_ways
from bench.decoder_step import Config, random_weights

import ostinato as ost
from ostinato.tools.timing import Timing, interleave

Calls = dict[str, Callable[[], object]]


def tiny_ops(count: int) -> Calls:
    """Ways to run ``count`` additions, by name; all are checked to do so."""
    executor = ost.GraphExecutor("cpu", threads=1)
    x, one = executor.buffer(np.zeros(16, np.float32)), executor.buffer(np.ones(16, np.float32))

    def one_by_one() -> None:
        for _ in range(count):
            with executor.begin() as s:
                s.add(x, one, out=x)

    def one_session() -> None:
        with executor.begin() as s:
            for _ in range(count):
                s.add(x, one, out=x)

    with executor.begin_recorded() as recorded:
        for _ in range(count):
            recorded.add(x, one, out=x)
    context = executor.context
    context.begin_graph_capture()
    one_session()
    context.end_graph_capture(0)
    calls: Calls = {
        "one by one": one_by_one,
        "one session": one_session,
        "graph.replay": recorded.graph.replay,
        "replay_graph": partial(context.replay_graph, 0),
    }
    for name, call in calls.items():
        x.copyin(np.zeros(16, np.float32))
        call()
        assert (x.copyout() == count).all(), name
    return calls


def tiny_graphs(count: int) -> Calls:
    """Ways to run a graph of one addition ``count`` times, by name; all are checked to do so."""
    g = ost.Graph("tiny")
    total = g.state("total", (16,))
    new = total + g.input("x", (16,))
    g.assign(total, new)
    g.set_outputs([new * 1])
    session = ost.Session("cpu", threads=1)
    compiled = session.compile(g)
    feed, out = {"x": np.ones(16, np.float32)}, np.empty(16, np.float32)
    bound = compiled.bind(feed, [out])

    def run() -> None:
        for _ in range(count):
            compiled.run(feed)

    def commit() -> None:
        for _ in range(count):
            compiled.commit_no_wait(feed)
        compiled.sync_pending()

    def call() -> None:
        for _ in range(count):
            bound()

    context = session.context
    context.begin_graph_capture()
    call()
    context.end_graph_capture(0)
    calls: Calls = {
        "run": run,
        "commit_no_wait": commit,
        "bound call": call,
        "replay_graph": partial(context.replay_graph, 0),
    }
    for name, way in calls.items():
        compiled.unbind_handle("total")
        way()
        assert (compiled.read_handle("total") == count).all(), name
    return calls


def decoding(count: int) -> Calls:
    """Ways to generate ``count`` tokens, by name; all are checked to give the same ones."""
    config = Config()
    weights = random_weights(config)
    session = ost.Session("cpu", threads=1)
    session.context.set_dev_state_mode(True)
    ways = {
        "op by op": decode_ways.op_by_op(session, config, weights),
        "compiled": decode_ways.compiled(session, config, weights),
        "replayed": decode_ways.replayed(session, decode_ways.bound(session, config, weights)),
    }
    generate = partial(decode_ways.generate, session)
    calls: Calls = {name: partial(generate, way, count) for name, way in ways.items()}
    tokens = [call() for call in calls.values()]
    assert tokens == tokens[:1] * len(tokens), tokens
    return calls


def measure(title: str, calls: Calls, count: int, seconds: float) -> dict[str, Any]:
    """Time ``calls``, print a line each, and give the figures."""
    timings = interleave(calls, seconds=seconds)
    slowest = next(iter(timings.values()))
    print(f"{title}: {count} a run")
    for name, timing in timings.items():
        each = 1e6 * timing.median / count
        speed = speedup(slowest, timing)
        print(f"  {name:<14}{each:10.3f} µs each {speed:9.1f} × as fast")
    return {
        "count": count,
        "sides": {name: asdict(timing) for name, timing in timings.items()},
        "speedup": {name: speedup(slowest, timing) for name, timing in timings.items()},
    }


def speedup(slow: Timing, fast: Timing) -> float:
    """The ratio of the medians."""
    return slow.median / fast.median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each side")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    parts = {
        "tiny ops": (tiny_ops, arguments.ops),
        "tiny graphs": (tiny_graphs, arguments.ops),
        "decode loop": (decoding, arguments.tokens),
    }
    figures = {
        title: measure(title, make(count), count, arguments.seconds)
        for title, (make, count) in parts.items()
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
