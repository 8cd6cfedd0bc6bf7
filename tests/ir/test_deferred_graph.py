"""Graphs that are built when they are first read."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.deferred_graph import Deferred, deferred, deferred_graph
from ostinato.ir.record import GraphRecord
from ostinato.runtime.signature import interface_of

W = np.arange(12, dtype=np.float32).reshape(4, 3)


def original() -> ost.Graph:
    g = ost.Graph("original")
    n = ost.Variable("n", 1, 8)
    x, w = g.input("x", (n, 4)), g.param("w", (4, 3), value=W)
    g.set_outputs({"y": g.matmul(x, w) + g.constant(np.array([1.0, 2.0, 3.0], np.float32))})
    return g


class Unbuilt:
    """A deferred graph, and how often it was built."""

    def __init__(self) -> None:
        g = original()
        self.built = 0
        parts = Deferred(
            GraphRecord.of(g),
            interface_of(g),
            g.param_values.sources,
            self._build,
        )
        self.graph: Any = deferred_graph(ost.Graph, parts)

    def _build(self, record: GraphRecord) -> ost.Graph:
        self.built += 1
        return ost.parse_graph(record.text, record.constants)


def test_its_class_and_its_interface_are_known_before_it_is_built():
    unbuilt = Unbuilt()
    assert type(unbuilt.graph) is ost.Graph
    assert deferred(unbuilt.graph) is not None
    assert interface_of(unbuilt.graph).inputs.keys() == {"x"}
    assert not unbuilt.built


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.nodes,
        lambda g: g.name,
        lambda g: g.constant(1.0),
        lambda g: str(g),
        lambda g: repr(g),
        lambda g: g.input("other", (2,)),
        lambda g: g.set_outputs([]) or g.nodes,
        lambda g: copy.copy(g),
        lambda g: copy.deepcopy(g),
        lambda g: hasattr(g, "no such thing"),
    ],
    ids=lambda _: "",
)
def test_any_use_builds_it_once(use: Callable[[Any], Any]) -> None:
    unbuilt = Unbuilt()
    use(unbuilt.graph)
    assert unbuilt.built == 1
    assert deferred(unbuilt.graph) is None
    unbuilt.graph.nodes[0]
    assert unbuilt.built == 1


def test_it_is_the_same_graph():
    g, first = Unbuilt().graph, original()
    assert str(g) == str(first)
    assert list(g.inputs) == list(first.inputs)
    np.testing.assert_array_equal(g.param_values["w"], W)
    assert all(value.graph is g for value in g.values())
    y = g.outputs["y"]
    g.set_outputs({"y": g.relu(y), "z": y - 1})  # it can be built upon
    x = np.ones((2, 4), np.float32)
    y_, z = ost.Session("cpu").compile(g).run({"x": x})
    np.testing.assert_allclose(y_, x @ W + [1, 2, 3])
    np.testing.assert_allclose(z, x @ W + [0, 1, 2])


def test_attributes_that_graphs_do_not_have():
    with pytest.raises(AttributeError, match="'Graph' object has no attribute 'no_such_op'"):
        _ = Unbuilt().graph.no_such_op
    g = Unbuilt().graph
    with pytest.raises(AttributeError):
        del g.no_such_attribute
    g.note = 3
    assert g.note == 3
    del g.note
    assert not hasattr(g, "note")


def test_many_threads_look_at_the_same_time():
    for _ in range(20):
        unbuilt = Unbuilt()
        start, seen = threading.Barrier(6), []

        def look(unbuilt=unbuilt, start=start, seen=seen):
            start.wait()
            seen.append(len(unbuilt.graph.nodes) and unbuilt.graph.outputs["y"].graph)

        threads = [threading.Thread(target=look) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert unbuilt.built == 1
        assert len(seen) == 6
        assert all(graph is unbuilt.graph for graph in seen)


def test_assignments_before_the_first_use_stay():
    unbuilt, x = Unbuilt(), np.ones((2, 4), np.float32)
    g = unbuilt.graph
    g.name = "another"
    assert deferred(g) is None  # its record is of the other name
    assert not unbuilt.built
    assert (interface_of(g).name, list(g.inputs), unbuilt.built) == ("another", ["x"], 1)
    assert str(g).replace("another", "original") == str(original())
    ost.Session("cpu").compile(g).run({"x": x})
    empty = Unbuilt().graph
    empty.set_outputs([])
    assert (list(empty.outputs), list(empty.inputs)) == ([], ["x"])


def test_new_nodes_are_numbered_after_those_of_the_record():
    g, source = Unbuilt().graph, original()
    (copied,) = g.adopt(source.outputs["y"].node, [source.inputs["x"]] * 2)
    ids = [value.id for value in g.values()]
    assert ids == sorted(set(ids))
    assert copied.id == ids[-1]


def test_it_compiles_like_the_graph_itself():
    unbuilt, x = Unbuilt(), np.ones((5, 4), np.float32)
    session = ost.Session("cpu")
    expected = session.compile(original()).run({"x": x})
    compiled = session.compile(unbuilt.graph)
    assert not unbuilt.built  # an equal graph was compiled before
    np.testing.assert_array_equal(compiled.run({"x": x}), expected)
    other = ost.CompileOptions(optimize=False, stored_programs=False)
    np.testing.assert_allclose(
        session.compile(unbuilt.graph, options=other).run({"x": x}), expected
    )
    assert unbuilt.built == 1
