"""Sizes that depend on data: every way to run gives results of the size that the run found."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference

Array = np.ndarray[Any, Any]

#: Elements that are chosen, in turn: all, none, one, some.
COUNTS = (7, 0, 1, 5, 0, 9, 2)


def chosen_graph(longest: int = 16) -> ost.Graph:
    """The positive elements of ``x``, their softmax, and a sum of fixed size."""
    g = ost.Graph("chosen")
    x = g.input("x", (ost.Variable("n", 0, longest),))
    found = g.masked_select(x, x > 0)
    g.set_outputs(
        {"found": found, "spread": g.softmax(found, axis=0), "total": g.sum(found), "all": x + 1}
    )
    return g


def feed(positive: int, length: int = 12) -> dict[str, Array]:
    """``length`` numbers, ``positive`` of them positive."""
    rng = np.random.default_rng(positive)
    signs = rng.permutation(np.where(np.arange(length) < positive, 1.0, -1.0))
    return {"x": (signs * rng.uniform(0.5, 2, length)).astype(np.float32)}


def check(results: list[Array], g: ost.Graph, inputs: dict[str, Array]) -> None:
    wanted = reference.evaluate(g, inputs)
    assert [r.shape for r in results] == [w.shape for w in wanted]
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5)


@pytest.fixture(params=[True, False], ids=["optimised", "plain"])
def compiled(session, request):
    options = ost.CompileOptions(optimize=request.param, verify=True)
    return session.compile(chosen_graph(), options=options)


def test_runs_with_changing_sizes(compiled):
    g = chosen_graph()
    kept = []
    for positive in COUNTS:
        results = compiled.run(feed(positive))
        check(results, g, feed(positive))
        assert compiled.live_sizes == {"size": positive}
        kept.append((positive, results))
    for positive, results in kept:  # fresh arrays, which later runs leave alone
        check(results, g, feed(positive))
    check(compiled.run(feed(0, 0)), g, feed(0, 0))


def test_results_in_the_arena(compiled):
    g = chosen_graph()
    for positive in COUNTS:
        raw = compiled.run_raw(feed(positive))
        check(raw, g, feed(positive))
        assert not any(array.flags.writeable for array in raw)
        slots = compiled.run_slots(feed(positive)["x"])
        assert [count for _, count in slots] == [positive, positive, 1, 12]
        offset, count = slots[0]
        found = np.frombuffer(compiled.arena, np.float32, count, offset)
        assert (found == reference.evaluate(g, feed(positive))[0]).all()


def test_arrays_of_the_caller(compiled):
    g = chosen_graph()
    room = [np.zeros(12, np.float32), np.zeros(12, np.float32), np.zeros((), np.float32)]
    out = [*room, np.zeros(12, np.float32)]
    for positive in COUNTS:
        results = compiled.run(feed(positive), out=out)
        check(results, g, feed(positive))
        assert all(np.shares_memory(r, o) or not r.size for r, o in zip(results, out, strict=True))
    with pytest.raises(ost.InputError, match="output 'found' has shape"):
        compiled.run(feed(3), out=[np.zeros(3, np.float32), *out[1:]])


def test_some_outputs_and_rows(compiled):
    for positive in COUNTS:
        (spread,) = compiled.run_read_outputs(feed(positive), [1])
        assert spread.shape == (positive,)
        assert (compiled.read_output_row(0, 0) is None) == (positive == 0)
        assert compiled.read_output_row(0, positive) is None


def test_batches_and_queued_runs(compiled):
    g = chosen_graph()
    for positive, results in zip(COUNTS, compiled.run_pipelined(map(feed, COUNTS)), strict=True):
        check(results, g, feed(positive))
    compiled.commit_no_wait(feed(4))
    compiled.sync_pending()
    wanted = reference.evaluate(g, feed(4))[0]
    assert [compiled.read_output_row(0, i) for i in range(4)] == list(wanted)
    assert compiled.read_output_row(0, 4) is None


@pytest.mark.needs("capture")
def test_bound_calls_and_recordings(compiled, session):
    g = chosen_graph()
    x = feed(0)["x"].copy()
    out = [np.zeros(12, np.float32) for _ in range(2)] + [np.zeros((), np.float32), 0 * x]
    call = compiled.bind({"x": x}, out)
    session.context.begin_graph_capture()
    call()
    session.context.end_graph_capture(7)
    for run in (call, lambda: session.context.replay_graph(7)):
        for positive in COUNTS:
            x[:] = feed(positive)["x"]
            run()
            size = compiled.live_sizes["size"]
            assert size == positive
            check([out[0][:size], out[1][:size], *out[2:]], g, feed(positive))


@pytest.mark.needs("capture")
def test_recorded_runs_leave_results_of_the_right_size(compiled, session):
    x = feed(3)["x"].copy()
    session.context.begin_graph_capture()
    compiled.commit_no_wait({"x": x})
    session.context.end_graph_capture(8)
    for positive in COUNTS:
        x[:] = feed(positive)["x"]
        session.context.replay_graph(8)
        assert compiled.read_output_row(0, positive) is None
        assert positive == 0 or compiled.read_output_row(0, positive - 1) is not None


def test_clones_and_threads(compiled):
    g = chosen_graph()
    failures: list[BaseException] = []

    def work(own: ost.CompiledGraph, first: int) -> None:
        try:
            for i in range(60):
                positive = (first + i) % 10
                check(own.run(feed(positive)), g, feed(positive))
        except BaseException as error:
            failures.append(error)

    sides = [compiled, compiled, compiled.clone()]
    threads = [threading.Thread(target=work, args=(own, i)) for i, own in enumerate(sides)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_plans_show_live_sizes(compiled):
    plan = compiled.plan
    for positive in COUNTS:
        plan.set_variables({"n": 12})
        plan.inputs["x"].copyin(feed(positive)["x"])
        plan.execute()
        assert plan.outputs["found"].shape == (positive,)
        wanted = reference.evaluate(chosen_graph(), feed(positive))[0]
        assert (plan.outputs["found"].copyout() == wanted).all()
    assert any("size size" in op.name for op in plan.prepared_ops)
    assert "size size" in compiled.explain()


def test_a_stored_program(session):
    """The second compile starts from the image of the first."""
    first, second = (session.compile(chosen_graph(17)) for _ in range(2))
    for positive in COUNTS:
        for compiled in (first, second):
            check(compiled.run(feed(positive)), chosen_graph(17), feed(positive))


def test_sizes_beyond_their_bound_are_refused(session):
    g = ost.Graph("counted")
    count = g.input("count", (), "int64")
    size = g.size_from(count, 4, "k")
    state = g.state("total", (1,), "int64")
    g.assign(state, g.dynamic_update_slice(state, g.reshape(count, (1,)), (0,)))
    g.set_outputs({"line": g.iota((size,))})
    compiled = session.compile(g)
    assert compiled.run({"count": np.array(4)})[0].tolist() == [0, 1, 2, 3]
    for wrong in (5, -1):
        with pytest.raises(ost.VariableError, match=f"at most 4, got {wrong}"):
            compiled.run({"count": np.array(wrong)})
        with pytest.raises(ost.VariableError, match=f"got {wrong}"):
            reference.evaluate(g, {"count": np.array(wrong)})
        assert compiled.read_handle("total") == [4]  # a run that is refused changes no state
    assert compiled.run({"count": np.array(0)})[0].shape == (0,)
    with pytest.raises(ost.VariableError, match="there is no Variable 'k'"):
        compiled.run({"count": np.array(1)}, variables={"k": 1})


def test_two_sizes_that_must_agree(session):
    """Their equality is checked when both are known, whichever way the graph is run."""
    g = ost.Graph("pair")
    n = ost.Variable("n", 0, 9)
    x, y = g.input("x", (n,)), g.input("y", (n,))
    a, b = g.masked_select(x, x > 0), g.masked_select(y, y > 0)
    g.set_outputs([a + b, g.concat([a, b])])
    one, other = feed(4, 9)["x"], feed(3, 9)["x"]
    for optimize in (True, False):
        compiled = session.compile(g, options=ost.CompileOptions(optimize=optimize))
        check(compiled.run({"x": one, "y": one[::-1]}), g, {"x": one, "y": one[::-1]})
        wrong = {"x": one, "y": other}
        bound = compiled.bind(wrong, [np.zeros(9, np.float32), np.zeros(18, np.float32)])
        for call in (
            bound,
            lambda: compiled.run(wrong),  # noqa: B023
            lambda: compiled.run_raw(wrong),  # noqa: B023
            lambda: reference.evaluate(g, wrong),  # noqa: B023
        ):
            with pytest.raises(ost.VariableError, match="holds size elements"):
                call()


def test_what_needs_an_element(session):
    g = ost.Graph("best")
    x = g.input("x", (ost.Variable("n", 0, 16),))
    g.set_outputs([g.argmax(g.masked_select(x, x > 0), axis=0)])
    compiled = session.compile(g)
    check(compiled.run(feed(5)), g, feed(5))
    for call in (compiled.run, lambda inputs: reference.evaluate(g, inputs)):
        with pytest.raises(ost.VariableError, match="argmax"):
            call(feed(0))


def test_sizes_are_bound_before_they_are_used():
    g, other = ost.Graph(), ost.Graph()
    size = g.size_from(g.input("count", (), "int64"), 4)
    with pytest.raises(ost.GraphError, match="its shape depends on data"):
        g.input("x", (size,))
    with pytest.raises(ost.GraphError, match="no node before gives 'size' its value"):
        other.iota((size,))
    with pytest.raises(ost.GraphError, match="a Variable 'size' already"):
        g.size_from(g.inputs["count"], 4, "size")
