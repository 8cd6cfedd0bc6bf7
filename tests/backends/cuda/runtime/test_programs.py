"""Runs: kernel by kernel at first, then as one graph; copies, failures and sizes."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.program_image import External, Slot
from ostinato.backends.cuda.image import Step
from ostinato.backends.cuda.mapped import mapped_externals
from tests.devices.cuda_host.backend import HostToolchain
from tests.devices.cuda_host.driver import HostDriver

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def adder(session: ost.Session, **options: bool) -> ost.CompiledGraph:
    g = ost.Graph("adder")
    x, w = g.input("x", (3, 4)), g.param("w", (4,))
    g.set_outputs([g.exp(x * 0.1) + w, g.sum(x, axis=1)])
    return session.compile(g, {"w": np.ones(4, np.float32)}, options=ost.CompileOptions(**options))


def expected(x: np.ndarray) -> list[np.ndarray]:
    return [np.exp(x * np.float32(0.1)) + 1, x.sum(1)]


def check(actual: list[np.ndarray], x: np.ndarray) -> None:
    for found, wanted in zip(actual, expected(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_second_run_makes_a_graph_and_later_ones_launch_it(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled = adder(session)
    compiled.run({"x": X})
    launched = driver.count_of("launch")
    assert launched == len(compiled.plan.kernels) + 1  # and the signal of the end
    assert driver.count_of("launch_graph") == 0
    for step in range(3):
        check(compiled.run({"x": X + step}), X + step)
    assert driver.count_of("launch_graph") == 3
    assert driver.count_of("end_capture") == 1
    assert driver.count_of("launch") == 2 * launched


def test_without_graphs_kernels_are_launched_one_by_one(
    session: ost.Session, driver: HostDriver
) -> None:
    compiled = adder(session, launch_graphs=False)
    for _ in range(3):
        check(compiled.run({"x": X}), X)
    assert driver.count_of("launch_graph") == 0
    assert driver.count_of("launch") == 3 * len(compiled.plan.kernels)


def test_arrays_with_gaps_are_copied_first(session: ost.Session) -> None:
    compiled = adder(session)
    compiled.run({"x": X})  # so that the short way knows these sizes
    for x in (np.asfortranarray(X), X[:, ::-1], np.repeat(X, 2, axis=1)[:, ::2]):
        assert not x.flags.c_contiguous
        check(compiled.run({"x": x}), x)


def test_small_arrays_are_copied_together(session: ost.Session, driver: HostDriver) -> None:
    """Two inputs that two kernels read each, and two outputs that are read again."""
    g = ost.Graph("small")
    x, y = g.input("x", (3, 4)), g.input("y", (3, 4))
    first = g.cumsum(x + y, axis=0)
    second = g.cumsum(x * first, axis=1)
    g.set_outputs([first, second, g.cumsum(second * y, axis=0)])
    compiled = session.compile(g, options=ost.CompileOptions(segments=False))
    inputs = {"x": X, "y": 2 * X}
    compiled.run(inputs)
    before = driver.count_of("copy")
    found = compiled.run(inputs)
    assert driver.count_of("copy") - before == 2  # recorded once: all inputs, all outputs
    for mine, truth in zip(found, ost.reference.evaluate(g, inputs), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-6)


def test_few_bytes_that_one_kernel_uses_stay_in_the_hosts_memory(
    session: ost.Session, driver: HostDriver
) -> None:
    g = ost.Graph("mapped")
    rows = ost.Variable("rows", 0, 5)
    g.set_outputs([g.exp(g.input("x", (3, 4)) * 0.1) + 1.0])
    open_rows = ost.Graph("open")
    open_rows.set_outputs([open_rows.exp(open_rows.input("x", (rows, 4)) * 0.1) + 1.0])
    for graph, copies in ((g, 0), (open_rows, 1)):  # of the Variables
        compiled = session.compile(graph)
        for step in range(3):
            before = driver.count_of("copy")
            (found,) = compiled.run({"x": X + step})
            np.testing.assert_allclose(found, np.exp((X + step) * np.float32(0.1)) + 1, rtol=1e-6)
            assert driver.count_of("copy") - before <= copies


def test_inputs_beside_ones_that_are_copied_are_copied_with_them() -> None:
    """One copy brings them all: reads over the bus would save nothing."""

    def step(inputs: int, grid: int, *, cooperative: bool = False) -> Step:
        arguments = tuple((len(Slot) + n, 0) for n in range(inputs))
        launch = (grid, 128, 0, cooperative)
        return Step("kernel", arguments, launch, reads=(1 << inputs) - 1)

    small, large = (External(size, written=False, size="") for size in (16, 1 << 14))
    for externals, grid, copies, found in (
        ([small, small], 4, False, {0, 1}),
        ([small, small], 4, True, set()),  # Variables are copied
        ([small, large], 4, False, set()),
        ([small, large], 1, False, {0, 1}),
    ):
        steps = [step(2, grid)]
        assert mapped_externals(steps, externals, copies=copies) == found
    assert not mapped_externals([step(2, 4, cooperative=True)], [small, small], copies=False)


def test_bytes_that_many_blocks_read_are_copied(session: ost.Session, driver: HostDriver) -> None:
    """The bus would be the slowest part of a kernel of many blocks that read all of an input."""
    g = ost.Graph("matmul")
    x, w = g.input("x", (1, 256)), g.param("w", (256, 4096))
    g.set_outputs([g.matmul(x, w)])
    compiled = session.compile(g, {"w": np.ones((256, 4096), np.float32)})
    compiled.run({"x": np.ones((1, 256), np.float32)})
    before = driver.count_of("copy")
    compiled.run({"x": np.ones((1, 256), np.float32)})
    assert driver.count_of("copy") - before == 1  # the result is written once


def test_large_arrays_are_copied_by_their_live_sizes(
    session: ost.Session, driver: HostDriver
) -> None:
    n = ost.Variable("n", 1, 1 << 18)
    g = ost.Graph("large")
    g.set_outputs([g.neg(g.input("x", (n,)))])
    compiled = session.compile(g)
    x = np.arange(100, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(compiled.run({"x": x})[0], -x)
    assert ("copy", x.nbytes) in driver.events
    assert ("copy", 4 << 18) not in driver.events


def test_a_profile_has_a_time_for_each_kernel(session: ost.Session) -> None:
    plan = adder(session).plan
    plan.inputs["x"].copyin(X)
    for _ in range(2):
        assert all(record.elapsed > 0 for record in plan.execute_profiled())
    check([buffer.copyout() for buffer in plan.outputs.values()], X)


def test_plans_run_on_their_buffers_in_place(session: ost.Session, driver: HostDriver) -> None:
    plan = adder(session).plan
    plan.inputs["x"].copyin(X)
    plan.execute()
    plan.execute()
    copied = driver.count_of("copy")
    plan.execute()
    assert driver.count_of("copy") == copied  # a launch of the graph is all
    check([buffer.copyout() for buffer in plan.outputs.values()], X)


def test_intermediate_memory_is_given_back_until_the_next_run(
    session: ost.Session, driver: HostDriver
) -> None:
    g = ost.Graph("chain")
    x = g.input("x", (64, 64))
    g.set_outputs([g.matmul(g.softmax(x, axis=1), x)])
    compiled = session.compile(g)
    y = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    first = compiled.run({"x": y})[0]
    compiled.plan.allocate()
    held = driver.allocated
    compiled.plan.release_intermediate_buffers()
    assert driver.allocated < held
    for _ in range(3):
        np.testing.assert_array_equal(compiled.run({"x": y})[0], first)
    assert driver.allocated == held


def test_all_memory_is_given_back(session: ost.Session, driver: HostDriver) -> None:
    held = driver.allocated
    compiled = adder(session)
    compiled.run({"x": X})
    assert driver.allocated > held
    compiled.plan.release_all_buffers()
    assert driver.allocated == held
    with pytest.raises(ost.PlanError, match="released"):
        compiled.run({"x": X})


def test_a_size_that_is_refused_ends_the_run(session: ost.Session) -> None:
    g = ost.Graph("counted")
    count = g.input("count", (), "int64")
    size = g.size_from(count, 4, "k")
    total = g.state("total", (1,), "int64")
    g.assign(total, g.dynamic_update_slice(total, g.reshape(count, (1,)), (0,)))
    g.set_outputs({"line": g.iota((size,))})
    compiled = session.compile(g)
    for _ in range(3):
        assert compiled.run({"count": np.array(3)})[0].tolist() == [0, 1, 2]
        with pytest.raises(ost.VariableError, match="at most 4, got 5"):
            compiled.run({"count": np.array(5)})
        assert compiled.read_handle("total").tolist() == [3]


def test_a_stored_program_is_loaded_without_the_compiler(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = ost.Graph("stored")
    g.set_outputs([g.tanh(g.input("x", (3, 4))) * 1.625])
    first = session.compile(g).run({"x": X})[0]

    def compile_again(self: object, kernels: object, progress: object = None) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(HostToolchain, "compile", compile_again)
    np.testing.assert_array_equal(session.compile(g).run({"x": X})[0], first)


def test_control_flow_is_decided_between_graphs(session: ost.Session, driver: HostDriver) -> None:
    g = ost.Graph("sums")
    x, count = g.input("x", (3,)), g.input("count", (), "int64")

    (result,) = g.while_loop(lambda b, i, y: b.add(y, x), [x], trips=count)
    g.set_outputs([result])
    compiled = session.compile(g)
    x0 = np.arange(3, dtype=np.float32)
    for trips in (0, 1, 5, 5):
        found = compiled.run({"x": x0, "count": np.array(trips)})[0]
        np.testing.assert_array_equal(found, x0 * (trips + 1))
    assert driver.count_of("launch_graph") > 5


@pytest.mark.parametrize(("init", "copies"), [(0, 0), (1.5, 3)])
def test_equal_elements_of_a_state_are_not_copied_from_the_host(
    session: ost.Session, driver: HostDriver, init: float, copies: int
) -> None:
    """Three megabytes, in parts of one."""
    g = ost.Graph("state")
    state = g.state("s", (3 * 256, 1024), init=init)
    g.assign(state, state + 1.0)
    g.set_outputs([g.sum(state)])
    compiled = session.compile(g)
    assert driver.count_of("copy") == copies
    compiled.run({})
    assert (compiled.read_handle("s") == init + 1).all()
    before = driver.count_of("copy")
    compiled.unbind_handle("s")
    assert driver.count_of("copy") - before == copies
    assert (compiled.read_handle("s") == init).all()


def test_sizes_share_weights_until_they_are_written(session: ost.Session) -> None:
    n, rng = ost.Variable("n", 1, 64), np.random.default_rng(0)
    g = ost.Graph("sized")
    weight = rng.standard_normal((48, 32)).astype(np.float32)
    w, empty = g.param("w", weight.shape, value=weight), g.param("e", (0, 32))
    product = g.matmul(g.input("x", (n, 48)), w)
    g.set_outputs([g.concat([product, empty], axis=0)])
    options = ost.CompileOptions(specialize="always")
    compiled = session.compile(g, {"e": np.zeros((0, 32), np.float32)}, options=options)
    for factor in (1, 2):
        for rows in (8, 12, 8, 3):
            x = rng.standard_normal((rows, 48)).astype(np.float32)
            (found,) = compiled.run({"x": x})
            np.testing.assert_allclose(found, factor * x @ weight, rtol=1e-4, atol=1e-4)
        blocks = {id(e.memory.weights.block.memory) for e in compiled._execution.executable._each()}
        assert len(blocks) == 1 or factor == 2
        compiled.set_param("w", 2 * weight)
