"""Runs on memory of the caller's, and conditions on sizes that graphs state."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost


def scaled(session: ost.Session, low: int = 1) -> ost.CompiledGraph:
    n = ost.Variable("n", 1, 64)
    g = ost.Graph("scaled")
    x = g.input("x", (n, 3))
    w = g.param("w", (3,))
    g.set_outputs([g.require(x * w, n - low, 0, f"at least {low} rows")])
    return session.compile(g, {"w": np.full(3, 2, np.float32)})


@pytest.mark.needs("llvm")
def test_a_prepared_run_writes_to_given_buffers(session):
    compiled = scaled(session)
    for rows in (1, 5, 64):
        prepared = compiled.prepare_run([(rows, 3)])
        assert prepared is not None
        assert [shape for shape, _ in prepared.outputs] == [(rows, 3)]
        x, y = np.ones((rows, 3), np.float32), np.zeros((rows, 3), np.float32)
        prepared.run([x, y], prepared.variables)
        assert (y == 2).all()


@pytest.mark.needs("llvm")
def test_a_prepared_run_binds_larger_buffers_to_other_sizes(session):
    prepared = scaled(session).prepare_run([(64, 3)])
    assert prepared is not None and prepared.names == ("n",)
    x, y = np.ones((64, 3), np.float32), np.zeros((64, 3), np.float32)
    for rows in (5, 9):
        prepared.bind([x, y], (rows,))()
        assert (y[:rows] == 2).all() and not y[rows:].any()


@pytest.mark.needs("llvm")
def test_shapes_are_checked_while_preparing(session):
    compiled = scaled(session, low=4)
    assert compiled.prepare_run([(4, 3)]) is not None
    with pytest.raises(ost.VariableError, match="at least 4 rows"):
        compiled.prepare_run([(3, 3)])
    with pytest.raises(ost.VariableError, match="bounded"):
        compiled.prepare_run([(65, 3)])
    with pytest.raises(ost.InputError):
        compiled.prepare_run([(4, 4)])


@pytest.mark.needs("handles")
def test_handles_are_left_to_ordinary_runs(session):
    compiled = scaled(session)
    assert compiled.bind_handle("x", np.ones((2, 3), np.float32))
    assert compiled.prepare_run([(2, 3)]) is None


def test_a_condition_is_checked_by_every_kind_of_run(session):
    compiled = scaled(session, low=4)
    few = {"x": np.ones((3, 3), np.float32)}
    for run in (compiled.run, compiled.run_raw):
        with pytest.raises(ost.VariableError, match=r"at least 4 rows; .* got n = 3"):
            run(few)


def test_a_condition_that_never_holds_is_refused_while_building():
    g = ost.Graph("never")
    x = g.input("x", (2,))
    with pytest.raises(ost.GraphError, match="too few"):
        g.require(x, 2, 3, "too few")
    assert g.require(x, 3, 3, "enough").shape == (2,)


def test_a_condition_is_part_of_the_text():
    n = ost.Variable("n", 1, 64)
    g = ost.Graph("text")
    g.set_outputs([g.require(g.input("x", (n,)), n - 2, 0, 'at "least" 2')])
    again = ost.parse_graph(str(g))
    assert str(again) == str(g)
    with pytest.raises(ost.VariableError, match='at "least" 2'):
        ost.reference.evaluate(again, {"x": np.ones(1, np.float32)})
