"""Graphs and helpers for the tests of order: exact sums, and runs that take as long as wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

import ostinato as ost

Array = np.ndarray[Any, Any]

#: Rows of the ``rows`` graph.
ROWS = 8

#: Elements of a row of the ``load`` input, and matmuls that go over it.
WIDTH, DEPTH = 128, 24

LIGHT, HEAVY = np.zeros((1, WIDTH), np.float32), np.zeros((512, WIDTH), np.float32)


def filled(number: float) -> Array:
    return np.full(4, number, np.float32)


def ledger_graph() -> ost.Graph:
    """A state that adds up ``x * w``, and an output that the handle of ``h`` can take.

    ``total += x * w``; the outputs are ``y = total + h`` and ``next = h + x``. ``load`` adds
    nothing but time: 4 milliseconds or so for ``HEAVY``.
    """
    g = ost.Graph("ledger")
    x, h = g.input("x", (4,)), g.input("h", (4,))
    rows = ost.Variable("rows", 1, len(HEAVY))
    value = g.input("load", (rows, WIDTH))
    identity = g.constant(np.eye(WIDTH, dtype=np.float32))
    for _ in range(DEPTH):
        value = g.matmul(value, identity)
    total = g.state("total", (4,))
    new = total + x * g.param("w", (4,), value=filled(1)) + g.sum(value)
    g.assign(total, new)
    g.set_outputs({"y": new + h, "next": h + x})
    return g


def entry(x: float, h: float | None = 0, *, heavy: bool = False) -> dict[str, Array]:
    """Inputs of a ledger; those whose ``h`` is ``None`` leave it to its handle."""
    inputs = {"x": filled(x), "load": HEAVY if heavy else LIGHT}
    return inputs if h is None else {**inputs, "h": filled(h)}


def rows_graph(rows: int = ROWS, width: int = 4) -> ost.Graph:
    """``out = r + k``, row by row, and ``seen``, a state that adds up ``r``.

    ``whole`` is the sum of ``r`` over all rows.
    """
    g = ost.Graph("rows")
    r, k = g.input("r", (rows, width)), g.param("k", (width,), value=np.ones(width, np.float32))
    seen = g.state("seen", (rows, width))
    g.assign(seen, seen + r)
    g.set_outputs({"out": r + k, "whole": g.sum(r, axis=0)})
    return g


def single(array: Array | None) -> float:
    """The number that all elements are."""
    assert array is not None
    assert (array == array.flat[0]).all(), f"elements differ: {np.unique(array)[:8]}"
    return float(array.flat[0])


def total(ledger: ost.CompiledGraph) -> float:
    return single(ledger.read_handle("total"))


@cache
def value_ids(ledger: bool) -> dict[str, int]:
    """The ids of a graph's leaves, which are the same whenever it is built."""
    g = ledger_graph() if ledger else rows_graph()
    return {name: v.id for leaves in (g.inputs, g.params, g.states) for name, v in leaves.items()}


def buffer_of(compiled: ost.CompiledGraph, name: str) -> ost.Buffer:
    """The buffer of an input, a param or a state, which sessions can read."""
    buffer = compiled.plan.buffer(value_ids("load" in compiled.inputs)[name])
    assert buffer is not None
    return buffer


@contextmanager
def recorded(context: Any, key: int, **options: bool) -> Iterator[None]:
    """Record what happens inside under ``key``; ``options`` are those of the begin."""
    context.begin_graph_capture(**options)
    try:
        yield
    except BaseException:
        context.cancel_graph_capture()
        raise
    context.end_graph_capture(key)


@contextmanager
def beside(*works: Callable[[], object]) -> Iterator[None]:
    """Run each of ``works`` on a thread of its own while the block runs; raise what they raise."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(w,), daemon=True) for w in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread never came to its end"
    if errors:
        raise errors[0]
