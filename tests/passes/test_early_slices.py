"""Early slices: rows that nothing reads are left out, and results stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.ir.graph import BaseGraph, Value
from ostinato.passes.base import PassReport
from ostinato.passes.early_slices import EarlySlices
from ostinato.passes.pipeline import run_passes
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw

LENGTH, WIDTH, HEADS, DEPTH = 12, 16, 2, 8


def narrowed(graph: ost.Graph) -> tuple[BaseGraph, PassReport]:
    """The graph behind the pass."""
    report = PassReport()
    return EarlySlices().run(graph, report), report


def rows(graph: BaseGraph, op: str) -> list[object]:
    """The last but one axis of the results of an op, in order."""
    return [node.outputs[0].shape[-2] for node in graph.nodes if node.op.name == op]


def layer(d: Draw, x: Value, **options: object) -> Value:
    """A layer of a decoder."""
    g = d.g
    angles = d.of((LENGTH, DEPTH // 2), "float32"), d.of((LENGTH, DEPTH // 2), "float32")

    def heads(y: Value) -> Value:
        y = g.matmul(y, d.of((WIDTH, HEADS * DEPTH), "float32"))
        return g.permute_dims(g.reshape(y, (1, LENGTH, HEADS, DEPTH)), (0, 2, 1, 3))

    h = g.rms_norm(x, d.of((WIDTH,), "float32"))
    q, k, v = g.rope(heads(h), *angles), g.rope(heads(h), *angles), heads(h)
    mixed = g.permute_dims(g.attention(q, k, v, **options), (0, 2, 1, 3))
    mixed = g.reshape(mixed, (LENGTH, HEADS * DEPTH))
    x = g.add(x, g.matmul(mixed, d.of((HEADS * DEPTH, WIDTH), "float32")))
    h = g.layer_norm(x, d.of((WIDTH,), "float32"), d.of((WIDTH,), "float32"))
    gate, up = (g.matmul(h, d.of((WIDTH, 24), "float32")) for _ in range(2))
    return g.add(x, g.matmul(g.multiply(g.silu(gate), up), d.of((24, WIDTH), "float32")))


def drawn() -> Draw:
    return Draw(ost.Graph("slices"), np.random.default_rng(0))


def check(d: Draw, outputs: dict[str, Value]) -> None:
    d.g.set_outputs(outputs)
    options = [
        ost.CompileOptions(verify=True),
        ost.CompileOptions(disabled_passes=frozenset({"early_slices"})),
    ]
    check_against_oracle(d.g, d.arrays, [(ost.Session("cpu"), each) for each in options])


def test_the_last_layer_computes_the_last_row_alone() -> None:
    d = drawn()
    x = layer(d, layer(d, d.of((LENGTH, WIDTH), "float32"), causal=True), causal=True)
    last = d.g.slice(x, (LENGTH - 1, 0), (LENGTH, WIDTH))
    check(d, {"out": d.g.matmul(last, d.of((WIDTH, 40), "float32"))})
    graph, report = narrowed(d.g)
    # q, k, v, o, gate, up, down of each layer, then the last product
    assert rows(graph, "matmul") == [LENGTH] * 7 + [1, LENGTH, LENGTH, 1, 1, 1, 1, 1]
    assert rows(graph, "attention") == [LENGTH, 1]
    assert {"sliced matmul before it is computed", "sliced attention before it is computed"} == {
        event.what for event in report.events
    }


@pytest.mark.parametrize("start", [0, 4])
def test_rows_that_are_not_the_last(start: int) -> None:
    """Causal attention counts from the last query, so it keeps the rows behind."""
    d = drawn()
    x = layer(d, d.of((LENGTH, WIDTH), "float32"), causal=True, window=3)
    check(d, {"out": d.g.slice(x, (start, 0), (start + 2, WIDTH))})
    graph, _ = narrowed(d.g)
    assert rows(graph, "attention") == [LENGTH - start]
    assert rows(graph, "matmul")[-3:] == [2, 2, 2]


def test_rows_in_the_middle_with_a_mask() -> None:
    d = drawn()
    mask = d.of((1, 1, LENGTH, LENGTH), "float32")
    x = layer(d, d.of((LENGTH, WIDTH), "float32"), mask=mask)
    check(d, {"out": d.g.slice(x, (3, 2), (5, 9))})
    graph, _ = narrowed(d.g)
    assert rows(graph, "attention") == [2]


def test_readers_of_several_rows_share_what_contains_them() -> None:
    d = drawn()
    g, x = d.g, d.of((LENGTH, WIDTH), "float32")
    y = g.matmul(x, d.of((WIDTH, 5), "float32"))
    check(d, {"a": g.slice(y, (2, 0), (4, 5)), "b": g.exp(g.slice(y, (3, 1), (9, 3)))})
    graph, _ = narrowed(d.g)
    assert rows(graph, "matmul") == [7]


def test_a_result_keeps_all_rows() -> None:
    d = drawn()
    y = d.g.matmul(d.of((LENGTH, WIDTH), "float32"), d.of((WIDTH, 5), "float32"))
    check(d, {"all": y, "some": d.g.slice(y, (2, 0), (4, 5))})
    graph, report = narrowed(d.g)
    assert graph is d.g
    assert not report.events


Change = Callable[[Draw, Value], Value]

CHANGES: dict[str, Change] = {
    "broadcast": lambda d, y: d.g.add(y, d.of((6, 1, 10), "float32")),
    "softmax": lambda d, y: d.g.softmax(y, axis=1),
    "reduction": lambda d, y: d.g.cumsum(y, axis=1),
    "reshape": lambda d, y: d.g.reshape(d.g.reshape(y, (6, 2, 4, 10)), (6, 8, 10)),
    "other reshape": lambda d, y: d.g.reshape(d.g.reshape(y, (48, 10)), (6, 8, 10)),
    "transpose": lambda d, y: d.g.permute_dims(d.g.permute_dims(y, (2, 0, 1)), (1, 2, 0)),
    "take": lambda d, y: d.g.take(y, d.g.constant(np.arange(8)[::-1].copy()), axis=1),
    "strides": lambda d, y: d.g.slice(y, (0, 0, 0), (6, 8, 10), (1, 1, 1)),
    "matmul": lambda d, y: d.g.matmul(y, d.of((6, 10, 10), "float32")),
    "matmul of one": lambda d, y: d.g.matmul(d.of((8, 8), "float32"), y),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ops_between(change: str, axis: int) -> None:
    d = drawn()
    y = d.g.matmul(d.of((6, 8, 7), "float32"), d.of((7, 10), "float32"))
    y = CHANGES[change](d, y)
    starts = [2 if i == axis else 0 for i in range(3)]
    stops = [4 if i == axis else size for i, size in enumerate(y.shape)]
    check(d, {"out": d.g.slice(y, starts, stops)})


def test_open_sizes() -> None:
    """The last rows of as many as a run has."""
    g = ost.Graph("open")
    length = ost.Variable("length", 1, 9)
    x, w = g.input("x", (length, 4), "float32"), g.input("w", (4, 4), "float32")
    y = g.matmul(g.relu(g.matmul(x, w)), w)
    g.set_outputs({"last": g.slice(y, (length - 1, 0), (length, 4))})
    graph, _ = run_passes(g, capabilities=CAPABILITIES, verify=True)
    assert rows(graph, "matmul") == [1, 1]
    compiled = ost.Session("cpu").compile(g)
    rng = np.random.default_rng(0)
    for size in (1, 2, 9):
        inputs = {
            "x": rng.normal(size=(size, 4)).astype("float32"),
            "w": rng.normal(size=(4, 4)).astype("float32"),
        }
        (truth,) = ost.reference.evaluate(g, inputs)
        np.testing.assert_allclose(compiled.run(inputs)[0], truth, rtol=1e-5, atol=1e-6)
