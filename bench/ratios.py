"""Ratios of times that a test could only assert on a machine that does nothing else.

- ``append``: a row written to a cache of 64 MB that is a state, next to a copy of the cache.
- ``clones``: two clones of a compiled graph, a thread each, next to one after the other.

    python -m bench.ratios [--seconds 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import ostinato as ost
from ostinato.tools.timing import interleave

Calls = dict[str, Callable[[], object]]


def append() -> Calls:
    """Appending a row, and copying the whole cache; the first should take next to no time."""
    rows, width = 1 << 16, 256
    g = ost.Graph("append")
    cache = g.state("cache", (rows, width))
    row, at = g.input("row", (1, width)), g.input("at", (), "int64")
    whole = g.dynamic_update_slice(cache, row, (at, 0))
    g.assign(cache, whole)
    g.set_outputs([g.dynamic_slice(whole, (0, 0), (1, width))])
    compiled = ost.Session("cpu").compile(g)
    feed = {"row": np.ones((1, width), np.float32), "at": np.array(3, np.int64)}
    copied, copy = np.zeros((rows, width), np.float32), np.empty((rows, width), np.float32)
    return {"append": lambda: compiled.run(feed), "copy": lambda: np.copyto(copy, copied)}


def clones() -> Calls:
    """Clones together, and in sequence; with two processors, together takes half the time."""
    compiled = ost.Session("cpu", threads=1).compile(_long())
    pair = [compiled.clone(), compiled.clone()]
    feed = {"x": np.ones((256, 256), np.float32)}
    pool = ThreadPoolExecutor(2)

    def together() -> None:
        for run in [pool.submit(clone.run, feed) for clone in pair]:
            run.result()

    return {"together": together, "in turn": lambda: [clone.run(feed) for clone in pair]}


def _long() -> ost.Graph:
    g = ost.Graph("long")
    value = g.input("x", (256, 256))
    w = g.constant(np.eye(256, dtype=np.float32))
    for _ in range(20):
        value = g.matmul(value, w)
    g.set_outputs([value])
    return g


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each side")
    arguments = parser.parse_args()
    for make in (append, clones):
        calls = make()
        first, second = interleave(calls, seconds=arguments.seconds).values()
        names = " / ".join(calls)
        print(f"{make.__name__:<8} {names}: {first.median / second.median:.3f}")


if __name__ == "__main__":
    main()
