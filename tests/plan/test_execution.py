"""Every member of ``ExecutionPlan``, on real plans of each device."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.cache.objects import process_cache
from ostinato.plan.buffer import Storage
from ostinato.plan.hazards import conflicts
from ostinato.plan.prepared import KernelCall, View
from ostinato.plan.profile import KernelProfile
from tests.allocations import resident_bytes
from tests.devices.catalogue import abilities

from .conftest import counter, layers, numbers

APART = ost.CompileOptions(keep_intermediates=True)
SINGLE = ost.CompileOptions(segments=False)
UNFUSED = ost.CompileOptions(optimize=False, keep_intermediates=True)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def feed(plan: ost.ExecutionPlan, value: ost.Value, array: Any) -> None:
    buffer = plan.buffer(value)
    assert buffer is not None
    buffer.copyin(array)


def result(plan: ost.ExecutionPlan) -> np.ndarray:
    buffer = plan.output_buffer()
    assert buffer is not None
    return buffer.copyout()


# -- prepare and execute ---------------------------------------------------------------------------


def test_execute_reads_inputs_and_writes_outputs(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params)
    for seed in (3, 4):
        x = numbers(8, 16, seed=seed)
        feed(plan, net.x, x)
        plan.execute()
        close(result(plan), net.expected(x)["y"])


def test_prepare_runs_nothing_but_has_everything(session: ost.Session) -> None:
    graph = counter()
    plan = session.prepare(graph)
    state = plan.buffer(graph.states["total"])
    assert state is not None
    assert not state.copyout().any()
    assert all(b.storage.allocations == 1 for b in [*plan.inputs.values(), *plan.output_buffers()])
    feed(plan, graph.inputs["x"], np.ones(3, np.float32))
    compiled = copy.copy(process_cache().counters)
    plan.execute()
    assert process_cache().counters == compiled
    assert (state.copyout() == 1).all()


def test_nothing_is_compiled_or_allocated_after_the_first_execute(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = ost.Variable("n", 1, 8)
    net = layers(n)
    plan = session.prepare(net.graph, net.params, variables={"n": 8})
    plan.execute()
    sizes = (1, 5, 8)
    if "lowers" not in abilities(session.device.kind.lower()):
        for rows in sizes:  # a framework compiles for each size, at its first run
            plan.execute_with_vars({"n": rows})
    if session.device.kind == "CUDA":  # the first profile compiles kernels that log parts' times
        plan.execute_profiled()
    storages = {b.storage for b in plan.buffers}
    before = {s: s.allocations for s in storages}
    counters = copy.copy(process_cache().counters)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a buffer was made")

    monkeypatch.setattr(Storage, "__init__", refuse)
    for rows in sizes:
        plan.execute_with_vars({"n": rows})
        plan.execute()
        plan.execute_profiled()
    assert {b.storage: b.storage.allocations for b in plan.buffers} == before
    assert process_cache().counters == counters


def test_a_compiled_graph_runs_the_plan_it_shows(session: ost.Session) -> None:
    """Its weights and states are the plan's; its inputs and outputs are the caller's."""
    graph = counter()
    compiled = session.compile(graph)
    plan = compiled.plan
    assert compiled.plan is plan
    ones = np.ones(3, np.float32)
    feed(plan, graph.inputs["x"], ones * 10)
    compiled.run({"x": ones})
    plan.execute()
    (after,) = compiled.run({"x": ones})
    assert (after == 12).all()
    assert (result(plan) == 11).all()


def test_a_run_takes_no_memory_for_the_plans_inputs_and_outputs(session: ost.Session) -> None:
    net = layers()
    compiled = session.compile(net.graph, net.params)
    compiled.run({"x": numbers(8, 16)})
    own = [*compiled.plan.inputs.values(), *compiled.plan.output_buffers()]
    assert all(b.storage.allocations == 0 for b in own)


def test_params_written_later_are_seen(session: ost.Session) -> None:
    net = layers()
    compiled = session.compile(net.graph, net.params)
    plan, x = compiled.plan, numbers(8, 16)
    feed(plan, net.x, x)
    plan.execute()
    for write in (
        lambda w: compiled.set_param("w1", w),
        lambda w: plan.buffer(net.graph.params["w1"]).copyin(w),  # type: ignore[union-attr]
    ):
        net.params["w1"] = net.params["w1"] * 2 + 1
        write(net.params["w1"])
        plan.execute()
        close(result(plan), net.expected(x)["y"])
        close(compiled.run({"x": x})[0], net.expected(x)["y"])


def test_params_that_were_never_set(session: ost.Session) -> None:
    net = layers()
    compiled = session.compile(net.graph, {"w1": net.params["w1"]})
    plan, x = compiled.plan, numbers(8, 16)
    feed(plan, net.x, x)
    with pytest.raises(ost.InputError, match="w2"):
        plan.execute()
    with pytest.raises(ost.InputError, match="w2"):
        compiled.run({"x": x})
    feed(plan, net.graph.params["w2"], net.params["w2"])
    plan.execute()
    close(result(plan), net.expected(x)["y"])
    close(compiled.run({"x": x})[0], net.expected(x)["y"])


def test_clones_have_plans_of_their_own(session: ost.Session) -> None:
    graph = counter()
    compiled = session.compile(graph)
    plan = compiled.plan
    twin = compiled.clone()
    assert twin.plan is not plan
    feed(twin.plan, graph.inputs["x"], np.ones(3, np.float32))
    twin.plan.execute()
    assert not compiled.read_handle("total").any()  # type: ignore[union-attr]
    assert twin.read_handle("total").all()  # type: ignore[union-attr]


def test_a_dropped_plan_goes_at_once(session: ost.Session) -> None:
    """Without the help of the garbage collector, so that its memory does not linger."""
    net = layers()
    gc.collect()
    gc.disable()
    try:
        plan = session.prepare(net.graph, net.params)
        plan.execute()
        gone = weakref.ref(plan)
        del plan
        assert gone() is None
    finally:
        gc.enable()


# -- profiles --------------------------------------------------------------------------------------


@pytest.mark.needs("lowers")
def test_profiles_are_of_each_kernel_in_order_and_change_nothing(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params, options=SINGLE)
    feed(plan, net.x, numbers(8, 16))
    plan.execute()
    expected = result(plan)
    feed(plan, net.x, numbers(8, 16) * 2)
    plan.execute()
    feed(plan, net.x, numbers(8, 16))
    profile = plan.execute_profiled()
    np.testing.assert_array_equal(result(plan), expected)
    assert len(profile) == len(plan.kernels) == len(plan.prepared_kernels) > 1
    for record, call in zip(profile, plan.prepared_kernels, strict=True):
        assert isinstance(record, KernelProfile)
        assert record.name == call.name
        assert record.node_names == call.node_names
        assert record.num_buffers == len(call.buffers)
        assert record.device == session.device
        assert record.elapsed > 0
        assert record.bytes > 0
        assert record.source
    products = [r for r in profile if "matmul" in r.name]
    assert sum(r.flops for r in products) >= 2 * 8 * 32 * (16 + 4)


def test_profiles_print_rates(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params)
    profile = plan.execute_profiled()
    for text in (str(profile), str(profile[0])):
        assert "GFLOP/s" in text
        assert "GB/s" in text
        assert "µs" in text
    record = profile[0]
    assert record.gflops == pytest.approx(record.flops / record.elapsed / 1e9)
    assert record.gbytes == pytest.approx(record.bytes / record.elapsed / 1e9)


def test_work_is_counted_at_the_live_sizes(session: ost.Session) -> None:
    n = ost.Variable("n", 1, 64)
    net = layers(n)
    plan = session.prepare(net.graph, net.params)
    small, large = (plan.execute_with_vars_profiled({"n": rows}) for rows in (2, 64))
    for a, b in zip(small, large, strict=True):
        assert b.flops == 32 * a.flops
        assert b.bytes > a.bytes


# -- variables -------------------------------------------------------------------------------------


@pytest.fixture
def sized(session: ost.Session) -> tuple[ost.ExecutionPlan, ost.Value, ost.Value]:
    """``y = [a*x, b*x]`` for ``x`` of ``a × b`` rows and columns."""
    a, b = ost.Variable("a", 1, 8), ost.Variable("b", 2, 6)
    graph = ost.Graph("sized")
    x = graph.input("x", (a, b))
    y = graph.exp(graph.sum(x, axis=1))
    graph.set_outputs([y])
    plan = session.prepare(graph, variables={"a": 4, "b": 3})
    return plan, x, y


def test_variables_keep_their_values(sized) -> None:
    plan, x, _ = sized
    array = numbers(8, 6)
    feed(plan, x, array[:4, :3])
    plan.execute()
    close(result(plan), np.exp(array[:4, :3].sum(1)))
    feed(plan, x, array[:7, :3])
    plan.execute_with_vars({"a": 7})
    close(result(plan), np.exp(array[:7, :3].sum(1)))
    feed(plan, x, array[:7, :5])
    plan.execute_with_vars({"b": 5})
    close(result(plan), np.exp(array[:7, :5].sum(1)))
    plan.execute()
    assert result(plan).shape == (7,)
    assert [r.name for r in plan.execute_with_vars_profiled({"a": np.int64(2)})]
    assert result(plan).shape == (2,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": 0},
        {"a": 9},
        {"a": 5, "b": 7},
        {"a": 5, "c": 1},
        {"c": 1},
        {"a": 5, "b": 2.0},
        {"a": True},
        {"a": "5"},
        {"a": None},
        {"a": -1},
        {"a": 1 << 80},
        {"a": float("nan")},
        {1: 5},
        None,
        [("a", 5)],
        "a",
    ],
    ids=str,
)
def test_wrong_variables_change_nothing(sized, wrong: Any) -> None:
    plan, x, _ = sized
    feed(plan, x, numbers(4, 3))
    plan.execute()
    before = result(plan)
    feed(plan, x, numbers(4, 3) + 1)
    for call in (plan.execute_with_vars, plan.execute_with_vars_profiled, plan.set_variables):
        with pytest.raises(ost.VariableError):
            call(wrong)
    np.testing.assert_array_equal(result(plan), before)
    plan.execute()
    assert result(plan).shape == (4,)
    close(result(plan), before * np.exp(3))


A, B = ost.Variable("a", 1, 8), ost.Variable("b", 2, 6)


@pytest.mark.parametrize(
    "given",
    [
        {"a": A.bind(5), "b": B.bind(2)},
        {"a": A.bind(5), "b": 2},
        {"a": np.int64(5), "b": B.bind(np.int8(2))},
        [A.bind(5), B.bind(2)],
        (B.bind(2), ost.Variable("a", 1, 8).bind(5)),
    ],
    ids=str,
)
def test_bound_variables_are_values(session: ost.Session, sized, given: Any) -> None:
    plan, x, y = sized
    other = session.prepare(y.graph, variables=given)
    array = numbers(5, 2)
    for run in (plan.execute_with_vars, plan.execute_with_vars_profiled):
        feed(plan, x, array)
        run(given)
        close(result(plan), np.exp(array.sum(1)))
    for ready, values in ((other, []), (plan, {})):
        ready.set_variables(values)
        feed(ready, x, array)
        ready.execute()
        close(result(ready), np.exp(array.sum(1)))
    close(ost.reference.evaluate(y.graph, {"x": array}, variables=given)[0], np.exp(array.sum(1)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": B.bind(3)}, "'a' is given the value of 'b', 3"),
        ([A.bind(5), A.bind(5)], "'a' is given twice"),
        ([A.bind(5), ost.Variable("c", 1, 2).bind(1)], "no Variable 'c'; the graph has a, b"),
        ({"a": ost.Variable("a", 1, 9).bind(5)}, "bounds 1..9, the graph's 1..8"),
        ([A.bind(5)._replace(value=9)], "'a' is bounded by 1..8, got 9"),
        ([A.bind(5)._replace(value=True)], "'a' takes an int, got True"),
        (A.bind(5), "mapping.*list of bound ones"),
        ([A.bind(5), 2], "mapping.*list of bound ones"),
        ([A], "mapping.*list of bound ones"),
        ({"a": A}, "'a' takes an int, got a"),
    ],
    ids=str,
)
def test_wrong_bound_variables(session: ost.Session, sized, given: Any, message: str) -> None:
    plan, x, y = sized
    for call in (plan.execute_with_vars, plan.execute_with_vars_profiled, plan.set_variables):
        with pytest.raises(ost.VariableError, match=message):
            call(given)
    with pytest.raises(ost.VariableError, match=message):
        session.prepare(y.graph, variables=given)
    feed(plan, x, numbers(4, 3))
    plan.execute()
    assert result(plan).shape == (4,)


def test_prepare_checks_variables(session: ost.Session) -> None:
    net = layers(ost.Variable("n", 1, 8))
    for wrong in ({"n": 9}, {"m": 1}, {"n": "4"}, 4):
        with pytest.raises(ost.VariableError):
            session.prepare(net.graph, net.params, variables=wrong)  # type: ignore[arg-type]


def test_a_variable_without_a_value(session: ost.Session) -> None:
    net = layers(ost.Variable("n", 1, 8))
    plan = session.prepare(net.graph, net.params)
    with pytest.raises(ost.VariableError, match="n"):
        plan.execute()
    plan.execute_with_vars({"n": 3})
    assert result(plan).shape == (3, 4)


def test_runs_of_the_compiled_graph_leave_the_plans_variables(session: ost.Session) -> None:
    net = layers(ost.Variable("n", 1, 8))
    compiled = session.compile(net.graph, net.params)
    plan, x = compiled.plan, numbers(8, 16)
    feed(plan, net.x, x[:3])
    plan.execute_with_vars({"n": 3})
    compiled.run({"x": x})
    plan.execute()
    assert result(plan).shape == (3, 4)
    close(result(plan), net.expected(x[:3])["y"])


# -- what a plan shows -----------------------------------------------------------------------------


def test_outputs_by_position(session: ost.Session) -> None:
    graph = ost.Graph("two")
    x = graph.input("x", (3,))
    graph.set_outputs({"a": graph.exp(x), "b": x * 2.0, "c": x})
    plan = session.prepare(graph)
    feed(plan, x, np.ones(3, np.float32))
    plan.execute()
    assert plan.num_outputs == 3
    assert plan.output_buffer() is plan.output_buffer_at(0) is plan.output_buffers()[0]
    close(plan.output_buffer_at(1).copyout(), [2, 2, 2])  # type: ignore[union-attr]
    close(plan.output_buffer_at(2).copyout(), [1, 1, 1])  # type: ignore[union-attr]
    for beyond in (3, -1, 1 << 70):
        assert plan.output_buffer_at(beyond) is None


@pytest.mark.needs("lowers")
def test_intermediates_of_their_own(session: ost.Session) -> None:
    net, x = layers(), numbers(8, 16)
    plan = session.prepare(net.graph, net.params, options=APART)
    feed(plan, net.x, x)
    plan.execute()
    expected = net.expected(x)
    seen = 0
    for name, value in (("hidden", net.hidden), ("weights", net.weights), ("y", net.y)):
        for key in (value, value.id):
            buffer = plan.buffer(key)
            if buffer is not None:
                close(buffer.copyout(), expected[name])
                seen += 1
    assert seen >= 4, "at most one of the three may live in a kernel"


@pytest.mark.needs("lowers")
def test_every_node_unfused_has_its_value(session: ost.Session) -> None:
    graph = ost.Graph("chain")
    x = graph.input("x", (4, 6))
    values = [x]
    for step in (graph.exp, graph.neg, graph.tanh):
        values.append(step(values[-1]))
    values.append(graph.sum(values[-1], axis=1))
    graph.set_outputs([values[-1]])
    plan = session.prepare(graph, options=UNFUSED)
    array = numbers(4, 6)
    feed(plan, x, array)
    plan.execute()
    chain = [array, np.exp(array), -np.exp(array), np.tanh(-np.exp(array))]
    for value, expected in zip(values, [*chain, chain[-1].sum(1)], strict=True):
        close(plan.buffer(value).copyout(), expected)  # type: ignore[union-attr]
    ranges = [plan.buffer(v) for v in values]
    assert len({(b.storage_id, b.offset) for b in ranges if b}) == len(values)


@pytest.mark.needs("lowers")
def test_intermediates_share_memory_unless_kept(session: ost.Session) -> None:
    graph = ost.Graph("long")
    x = graph.input("x", (64, 64))
    y = x
    for _ in range(8):
        y = graph.softmax(graph.matmul(y, y))
    graph.set_outputs([y])
    shared = session.prepare(graph).memory
    apart = session.prepare(graph, options=APART).memory
    assert shared.lower_bound_bytes <= shared.arena_bytes < shared.unshared_bytes
    assert apart.arena_bytes == apart.unshared_bytes == shared.unshared_bytes


def test_values_that_are_never_in_memory(session: ost.Session) -> None:
    graph = ost.Graph("fused")
    x = graph.input("x", (4,))
    inside = graph.exp(x)
    graph.set_outputs([inside + 1])
    graph.tanh(x)
    plan = session.prepare(graph)
    assert plan.buffer(inside) is None
    assert inside.id not in plan.value_to_buffer
    assert plan.buffer(10_000) is None
    assert plan.buffer(-1) is None


def test_values_of_other_graphs_are_refused(session: ost.Session) -> None:
    plan = session.prepare(counter())
    for wrong in (counter().inputs["x"], "x", None, 1.0, True):
        with pytest.raises(ost.PlanError):
            plan.buffer(wrong)  # type: ignore[arg-type]


def test_reshapes_are_views(session: ost.Session) -> None:
    graph = ost.Graph("views")
    x = graph.input("x", (2, 6))
    y = graph.reshape(x, (3, 4))
    z = graph.matmul(y, graph.permute_dims(y, (1, 0)))
    graph.set_outputs([z])
    plan = session.prepare(graph, options=APART)
    array = numbers(2, 6)
    feed(plan, x, array)
    plan.execute()
    view = plan.buffer(y)
    assert view is not None
    assert view.storage_id == plan.buffer(x).storage_id  # type: ignore[union-attr]
    close(view.copyout(), array.reshape(3, 4))
    assert any(isinstance(op, View) and op.target is view for op in plan.prepared_ops)


def test_states_and_constants(session: ost.Session) -> None:
    graph = counter()
    plan = session.prepare(graph)
    state = plan.buffer(graph.states["total"])
    assert state is not None
    feed(plan, graph.states["total"], np.full(3, 5, np.float32))
    feed(plan, graph.inputs["x"], np.ones(3, np.float32))
    plan.execute()
    for buffer in (state, plan.output_buffer(), plan.buffer(graph.assignments["total"])):
        assert (buffer.copyout() == 6).all()  # type: ignore[union-attr]
    graph = ost.Graph("constant")
    c = graph.constant(np.arange(4, dtype=np.float32))
    graph.set_outputs([graph.input("x", (4,)) + c])
    held = session.prepare(graph).buffer(c)
    assert held is not None
    with pytest.raises(ost.InputError, match="constant"):
        held.copyin(np.zeros(4, np.float32))


def test_buffers_and_the_map_from_values(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params, options=APART)
    assert len(set(plan.buffers)) == len(plan.buffers)
    for key, index in plan.value_to_buffer.items():
        assert plan.buffers[index] is plan.buffer(key)
    assert plan.buffers[0] is plan.buffer(net.x)
    assert plan.buffers[-1] is plan.output_buffer()
    assert {b for op in plan.prepared_ops for b in (*op.reads, *op.writes)} <= set(plan.buffers)
    assert all(b.device == plan.device == session.device for b in plan.buffers)


@pytest.mark.needs("llvm")
def test_kernels_show_their_code(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params)
    calls = [op for op in plan.prepared_ops if isinstance(op, KernelCall)]
    assert list(plan.prepared_kernels) == calls
    assert list(plan.kernels) == [call.kernel for call in calls]
    names = [kernel.name for kernel in plan.kernels]
    assert names.index("matmul") < len(names) - 1
    assert names[-1] == "matmul"
    for kernel in plan.kernels:
        assert "define void" in kernel.source
        assert "ret" in (kernel.assembly or "")
        assert "arg b0" in kernel.loops


def test_a_plan_prints(session: ost.Session) -> None:
    net = layers()
    text = str(session.prepare(net.graph, net.params, options=SINGLE))
    for part in (str(session.device), "matmul", "flop", "arena", "lower bound"):
        assert part in text


# -- dependencies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [APART, ost.CompileOptions(), UNFUSED], ids=str)
def test_ops_that_conflict_are_ordered_by_dependencies(
    session: ost.Session, options: ost.CompileOptions
) -> None:
    graph = ost.Graph("diamonds")
    x = graph.input("x", (16, 16))
    y = x
    for _ in range(5):
        left, right = graph.softmax(y), graph.matmul(y, y)
        y = graph.matmul(left, right) + graph.cumsum(y, axis=0)
    graph.set_outputs([y, graph.softmax(left)])
    ops = session.prepare(graph, options=options).prepared_ops
    before: dict[int, set[int]] = {}
    for op in ops:
        assert op.id not in before
        assert all(d in before for d in op.dependencies)
        before[op.id] = {*op.dependencies}.union(*(before[d] for d in op.dependencies))
    for i, later in enumerate(ops):
        for earlier in ops[:i]:
            if conflicts(earlier, later):
                assert earlier.id in before[later.id]


@pytest.mark.needs("lowers")
def test_independent_ops_wait_for_nothing(session: ost.Session) -> None:
    graph = ost.Graph("fork")
    x = graph.input("x", (32, 32))
    a, b = graph.cumsum(x, axis=0), graph.cumsum(x, axis=1)
    graph.set_outputs([a, b])
    first, second = session.prepare(graph, options=SINGLE).prepared_kernels
    assert first.dependencies == second.dependencies == ()


# -- memory given back -----------------------------------------------------------------------------


@pytest.mark.needs("lowers")
def test_intermediates_are_given_back_and_taken_again(session: ost.Session) -> None:
    net, x = layers(), numbers(8, 16)
    compiled = session.compile(net.graph, net.params, options=APART)
    plan = compiled.plan
    out = np.empty((8, 4), np.float32)
    bound = compiled.bind({"x": x}, [out])
    feed(plan, net.x, x)
    plan.execute()
    y = result(plan)
    kept = plan.buffer(net.weights) or plan.buffer(net.hidden)
    assert kept is not None
    assert kept.copyout().any()
    for _ in range(2):
        plan.release_intermediate_buffers()
        plan.release_intermediate_buffers()
        assert not kept.copyout().any()
        np.testing.assert_array_equal(plan.buffer(net.x).copyout(), x)  # type: ignore[union-attr]
        np.testing.assert_array_equal(result(plan), y)
        plan.execute()
        np.testing.assert_array_equal(result(plan), y)
        assert kept.copyout().any()
        bound()
        np.testing.assert_array_equal(out, y)


def test_states_outlive_intermediates(session: ost.Session) -> None:
    graph = counter()
    plan = session.prepare(graph)
    feed(plan, graph.inputs["x"], np.ones(3, np.float32))
    plan.execute()
    plan.release_intermediate_buffers()
    plan.execute()
    assert (result(plan) == 2).all()


def test_released_plans_refuse_to_run(session: ost.Session) -> None:
    net, x = layers(ost.Variable("n", 1, 8)), numbers(8, 16)
    compiled = session.compile(net.graph, net.params)
    plan = compiled.plan
    bound = compiled.bind({"x": x}, [np.empty((8, 4), np.float32)])
    plan.execute_with_vars({"n": 8})
    twin = compiled.clone()
    buffers = [b for b in (plan.buffer(net.x), plan.output_buffer()) if b is not None]
    plan.release_all_buffers()
    plan.release_all_buffers()
    plan.release_intermediate_buffers()
    for refused in (
        plan.execute,
        plan.execute_profiled,
        plan.allocate,
        lambda: plan.execute_with_vars({"n": 2}),
        lambda: compiled.run({"x": x}),
        lambda: compiled.run_raw({"x": x}),
        lambda: compiled.set_param("w1", net.params["w1"]),
        lambda: compiled.bind({"x": x}, [np.empty((8, 4), np.float32)])(),
        lambda: compiled.arena,
        compiled.clone,
        bound,
        *(b.copyout for b in buffers),
        *(b.copyout for b in plan.buffers),
    ):
        with pytest.raises(ost.PlanError, match="released"):
            refused()
    assert plan.memory.param_bytes > 0
    assert plan.kernels[0].source
    close(twin.run({"x": x})[0], net.expected(x)["y"])


@pytest.mark.needs("host_memory")
def test_released_memory_is_free_for_others(session: ost.Session) -> None:
    graph = ost.Graph("large")
    x = graph.input("x", (2048, 2048))
    graph.set_outputs([graph.cumsum(graph.softmax(x), axis=0)])
    plan = session.prepare(graph)
    feed(plan, x, np.ones((2048, 2048), np.float32))
    plan.execute()
    used = resident_bytes()
    plan.release_intermediate_buffers()
    without = resident_bytes()
    plan.release_all_buffers()
    assert used - without > 12e6
    assert without - resident_bytes() > 24e6


def test_memory_report(session: ost.Session) -> None:
    net = layers()
    memory = session.prepare(net.graph, net.params).memory
    assert memory.lower_bound_bytes <= memory.arena_bytes <= memory.unshared_bytes
    assert memory.param_bytes >= 4 * (16 * 32 + 32 * 4)
    assert all(f"{n:,}" in str(memory) for n in (memory.arena_bytes, memory.param_bytes))
