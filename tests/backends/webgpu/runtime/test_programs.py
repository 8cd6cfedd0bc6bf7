"""Programs of the WebGPU device: steps of the host, replays, profiles, stored programs, limits."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.webgpu.arguments import Arguments
from ostinato.backends.webgpu.driver import WebGpuDevice
from ostinato.backends.webgpu.program import WebGpuProgram
from ostinato.backends.webgpu.sizes import StoredSizes, size_text
from ostinato.backends.webgpu.steps import folded
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import Arg
from ostinato.variables import Expr, Symbol, Variable, ceil_div, minimum

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def chain(session: ost.Session, **options: object) -> ost.CompiledGraph:
    g = ost.Graph("chain")
    x = g.input("x", (3, 4))
    g.set_outputs({"y": g.sum(g.exp(x / 8), 1), "z": x * 2})
    return session.compile(g, options=ost.CompileOptions(**options))


def test_float64_runs_on_the_cpu_and_says_so(session: ost.Session) -> None:
    g = ost.Graph("wide")
    x = g.input("x", (3, 4))
    wide = g.exp(g.cast(x, "float64") / 8)
    g.set_outputs({"sum": g.sum(wide, 1), "back": g.cast(wide, "float32") + x})
    compiled = session.compile(g)
    total, back = compiled.run({"x": X})
    exact = np.exp(X.astype(np.float64) / 8)
    np.testing.assert_allclose(total, exact.sum(1), rtol=1e-15)
    np.testing.assert_allclose(back, exact.astype(np.float32) + X, rtol=1e-6)
    text = str(compiled.explain())
    assert "on the CPU: float64 (" in text
    report = compiled._execution.executable.report
    assert any("on the CPU" in kernel.code for kernel in report.kernels)


def test_steps_of_the_cpu_and_the_device_alternate_in_states(session: ost.Session) -> None:
    g = ost.Graph("mixed")
    x = g.input("x", (3, 4))
    total = g.state("total", (3, 4), "float64")
    g.assign(total, total + g.cast(x * 2, "float64"))
    g.set_outputs({"y": g.cast(total, "float32") + x})
    compiled = session.compile(g)
    for number in range(3):
        (found,) = compiled.run({"x": X})
        np.testing.assert_array_equal(found, X * (2 * number + 1))
    twin = compiled.clone()
    twin.run({"x": X})
    assert (compiled.read_handle("total") == 6 * X).all()
    assert (twin.read_handle("total") == 8 * X).all()


def test_a_replay_is_one_submission(session: ost.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, context = chain(session), session.context
    middle, other, y = np.empty((3, 4), np.float32), np.empty(3, np.float32), np.empty((3, 4), "f4")
    x = X.copy()
    first, second = (
        compiled.bind({"x": x}, [other, middle]),
        compiled.bind({"x": middle}, [other, y]),
    )
    context.begin_graph_capture()
    first()
    second()
    context.end_graph_capture(1)
    submitted = []
    commands = WebGpuDevice.commands

    def counted(self: WebGpuDevice) -> object:
        submitted.append(1)
        return commands(self)

    context.replay_graph(1)
    monkeypatch.setattr(WebGpuDevice, "commands", counted)
    for factor in (1, 3):
        x[:] = factor * X
        submitted.clear()
        assert context.replay_graph(1)
        assert len(submitted) == 1
        np.testing.assert_array_equal(y, 4 * factor * X)
        np.testing.assert_allclose(other, np.exp(2 * factor * X / 8).sum(1), rtol=1e-5)


def test_arrays_within_another_are_replayed_call_by_call(session: ost.Session) -> None:
    """One buffer cannot be read and written by the same kernel under two names."""
    compiled, context = chain(session), session.context
    whole = np.zeros(24, np.float32)
    x, z = whole[:12].reshape(3, 4), whole[12:].reshape(3, 4)
    y = np.empty(3, np.float32)
    call = compiled.bind({"x": x}, [y, z])
    through = compiled.bind({"x": whole[6:18].reshape(3, 4)}, [y, np.empty((3, 4), np.float32)])
    x[:] = X
    context.begin_graph_capture()
    call()
    through()
    context.end_graph_capture(2)
    assert context.replay_graph(2)
    np.testing.assert_array_equal(z, 2 * X)
    expected = np.exp(whole[6:18].reshape(3, 4) / 8).sum(1)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_pipelined_runs_give_what_single_ones_do(session: ost.Session) -> None:
    compiled = chain(session)
    feeds = [{"x": X + number} for number in range(7)]
    for found, feed in zip(compiled.run_pipelined(feeds), feeds, strict=True):
        for array, expected in zip(found, compiled.run(feed), strict=True):
            np.testing.assert_array_equal(array, expected)


def test_inputs_and_outputs_stay_on_the_device(session: ost.Session) -> None:
    g = ost.Graph("counter")
    x = g.input("x", (5,))
    g.set_outputs({"next": x + 1})
    compiled = session.compile(g)
    compiled.bind_handle("x", np.zeros(5, np.float32))
    for _ in range(4):
        (found,) = compiled.run({})
    assert found.tolist() == [1] * 5
    assert compiled.read_handle("x").tolist() == [0] * 5


def test_profiles_time_every_kernel(session: ost.Session) -> None:
    plan = chain(session).plan
    for name, buffer in plan.inputs.items():
        assert name == "x"
        buffer.copyin(X)
    timed = [record.elapsed for record in plan.execute_profiled()]
    assert len(timed) == len(plan.kernels)
    assert all(seconds >= 0 for seconds in timed)
    assert sum(timed) > 0
    np.testing.assert_array_equal(plan.outputs["z"].copyout(), 2 * X)


def test_a_stored_program_starts_without_rendering(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = ost.Graph("kept")
    x = g.input("x", (3, 4))
    g.set_outputs([g.tanh(x) * 3, g.sum(g.cast(x, "float64"), 0)])
    expected = session.compile(g).run({"x": X})
    from ostinato.backends.webgpu import compilation

    monkeypatch.setattr(compilation, "compile_graph", None)
    again = session.compile(g)
    for found, wanted in zip(again.run({"x": X}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_loops_and_branches_are_decided_by_the_host(session: ost.Session) -> None:
    g = ost.Graph("powers")
    x, count = g.input("x", (4,)), g.input("count", (), "int64")
    (found,) = g.while_loop(
        lambda b, i, v: b.cond(
            b.greater(i, 1),
            lambda t: t.multiply(v, 2.0),
            lambda t: t.add(v, t.cast(i, "float32")),
        ),
        [x],
        trips=count,
    )
    g.set_outputs([found])
    there, here = session.compile(g), ost.Session("cpu").compile(g)
    for trips in (0, 1, 5):
        feed = {"x": X[0], "count": np.int64(trips)}
        np.testing.assert_array_equal(there.run(feed)[0], here.run(feed)[0])


@pytest.mark.parametrize("most", [1, 7, 65535])
def test_workgroups_fold_into_two_dimensions(most: int) -> None:
    for groups in [0, 1, most, most + 1, 3 * most, most * most - 1, most * most]:
        x, y = folded(groups, most)
        assert max(x, y) <= most or groups > most * most
        assert groups <= x * y < groups + max(x, y) or groups == x * y


def test_arguments_of_one_slot_share_a_binding() -> None:
    read, write = Arg(FLOAT32), Arg(FLOAT32, reads=False, writes=True)
    places = [(0, 0), (2, 64), (0, 256)]
    found = Arguments.of([read, read, write], places, [100, 8, 100], 1 << 20)
    assert found.bindings.arguments == ((0,), (1,), (0,))
    assert found.bindings.writable == (True, False)
    assert found.buffers == ((0, 0), (2, 0))
    assert found.first == (0, 0, 0)


def test_an_argument_across_buffers_has_several_bindings() -> None:
    read, write = Arg(FLOAT32), Arg(FLOAT32, reads=False, writes=True)
    places = [(0, 200), (0, 512), (1, 256)]
    found = Arguments.of([read, write, read], places, [400, 256, 0], 256)
    assert found.bindings.arguments == ((0, 1, 2), (2,), (3,))
    assert found.bindings.writable == (False, False, True, False)
    assert found.buffers == ((0, 0), (0, 1), (0, 2), (1, 0))
    assert found.first == (0, 2, 0)


def test_sizes_survive_as_text() -> None:
    n, m = Variable("n", 1, 100), Variable("longer_name", 0, 1 << 40)
    iteration = Expr({(Symbol("#2", 0, 50),): 1}, 0)
    sizes = StoredSizes([("n", 1, 100), ("longer_name", 0, 1 << 40)], loops=1)
    values = [17, 12345, 3]
    named = {"n": 17, "longer_name": 12345, "#2": 3}
    for size in (5, 0, n, n * m + 3, ceil_div(n * m, 64), minimum(n, m), n - 1, iteration * n + 1):
        from ostinato.variables import evaluate

        assert sizes.value(sizes.read(size_text(size)), values) == evaluate(size, named)
    assert sizes.value(sizes.read("-3"), values) == -3


def test_launches_on_the_same_memory_are_made_once(session: ost.Session) -> None:
    compiled = chain(session, stored_programs=False)
    compiled.run({"x": X})
    program = compiled._execution.executable.program
    assert isinstance(program, WebGpuProgram)
    made = dict(program._launches)
    for _ in range(3):
        compiled.run({"x": X})
    assert program._launches == made


def test_a_fused_chain_rounds_every_op(session: ost.Session) -> None:
    """Drivers would simplify (x - w) + w, and contract products and sums, where they see both."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((6, 33)).astype(np.float32) for _ in range(2))
    g = ost.Graph("rounded")
    a, b = g.input("x", (6, 33)), g.input("w", (6, 33))
    g.set_outputs([((a * b + b) - b) + b, (a - b) * (a - b) + b, (a + 3.0) - 3.0])
    found = session.compile(g).run({"x": x, "w": w})
    three = np.float32(3)
    expected = [((x * w + w) - w) + w, (x - w) * (x - w) + w, (x + three) - three]
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)
