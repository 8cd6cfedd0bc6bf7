"""XLA: what its device promises beyond the suites of every device."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.array_api.xla.backend import TpuBackend
from ostinato.backends.array_api.xla.gpu_namespace import GpuJaxNamespace

pytest.importorskip("jax")


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("xla")


def counter() -> ost.Graph:
    """A graph with a state that counts its runs."""
    g = ost.Graph("counter")
    total = g.state("total", (4,), init=np.zeros(4, np.float32))
    following = total + g.input("x", (4,))
    g.assign(total, following)
    g.set_outputs({"total": following * 1.0})
    return g


def test_the_plan_shows_optimised_code_and_its_memory(session: ost.Session) -> None:
    g = ost.Graph("product")
    x, w = g.input("x", (16, 32)), g.param("w", (32, 8), value=np.ones((32, 8), np.float32))
    g.set_outputs([g.softmax(g.matmul(x, w), axis=1)])
    plan = session.compile(g).plan
    (kernel,) = plan.kernels
    assert kernel.source.startswith("HloModule")
    assert "parameter(1)" in kernel.source  # the weight is an argument
    assert plan.memory.param_bytes == 32 * 8 * 4


def test_states_are_updated_in_place(session: ost.Session) -> None:
    compiled = session.compile(counter())
    (kernel,) = compiled.plan.kernels
    assert "input_output_alias" in kernel.source
    ones = np.ones(4, np.float32)
    for count in (1, 2, 3):
        assert compiled.run({"x": ones})[0].tolist() == [count] * 4
    twin = compiled.clone()
    assert twin.run({"x": ones})[0].tolist() == [4] * 4
    assert compiled.run({"x": ones})[0].tolist() == [4] * 4


def test_one_value_for_two_states_and_two_outputs(session: ost.Session) -> None:
    """Each state is donated to the next run, each handle to its own: none may share an array."""
    g = ost.Graph("shared")
    x = g.input("x", (3,))
    a, b, kept = g.state("a", (3,)), g.state("b", (3,)), g.state("kept", (3,))
    following = a + b + x
    for state, value in ((a, following), (b, following), (kept, x)):
        g.assign(state, value)
    g.set_outputs([following, following, kept * 1.0, x])
    runs = session.compile(g)
    fed = session.compile(g)
    fed.bind_handle("x", np.ones(3, np.float32))
    fed.set_handle_feed("x", 1)
    total, last, given = 0, 0, 1
    for _ in range(4):
        total = 2 * total + 1
        found = runs.run({"x": np.ones(3, np.float32)})
        assert [array.tolist() for array in found[:2]] == [[total] * 3] * 2
    total = 0
    for _ in range(4):
        total = 2 * total + given
        found = fed.run({})
        expected = [[total] * 3, [total] * 3, [last] * 3, [given] * 3]
        assert [array.tolist() for array in found] == expected
        last, given = given, total


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_a_profiled_run_gives_the_results_of_a_run(session: ost.Session, dtype: str) -> None:
    """Two ways to the same arrays: by positions, and by a table of values."""
    g = ost.Graph("both")
    n = ost.Variable("n", 1, 5)
    x = g.input("x", (n, 3), dtype)
    g.set_outputs([g.where(g.cast(x, "bool"), 1.0, g.param("w", (3,))), x])
    compiled = session.compile(g, {"w": np.arange(3, dtype=np.float32)})
    plan = compiled.plan
    (given,) = [plan.buffer(value) for value in g.inputs.values()]
    assert given is not None
    for rows in (1, 4, 5):
        array = np.eye(rows, 3).astype(dtype)
        whole = np.zeros((5, 3), dtype)
        whole[:rows] = array
        given.copyin(whole)
        plan.execute_with_vars_profiled({"n": rows})
        for number, result in enumerate(compiled.run({"x": array})):
            held = plan.outputs[f"output_{number}"].copyout().reshape(-1)
            np.testing.assert_array_equal(result.reshape(-1), held[: result.size])


def test_handles_are_updated_in_place(session: ost.Session) -> None:
    g = ost.Graph("cache")
    cache, row, at = g.input("cache", (8, 4)), g.input("row", (1, 4)), g.input("at", (), "int64")
    following = g.dynamic_update_slice(cache, row, (at, 0))
    g.set_outputs([following, g.sum(following)])
    compiled = session.compile(g)
    mine = np.zeros((8, 4), np.float32)
    compiled.bind_handle("cache", mine)
    compiled.set_handle_feed("cache", 0)
    for step in range(5):
        row_of_step = np.full((1, 4), step + 1, np.float32)
        total = compiled.run({"row": row_of_step, "at": np.array(step)})[1]
        assert total == 4 * sum(range(1, step + 2))
    assert not mine.any()
    twin = compiled.clone()
    feed = {"row": np.ones((1, 4), np.float32), "at": np.array(7)}
    assert compiled.run(feed)[1] == twin.run(feed)[1]


def test_params_are_copies(session: ost.Session) -> None:
    g = ost.Graph("weights")
    g.set_outputs([g.input("x", (64,)) * g.param("w", (64,))])
    weights = np.ones(64, np.float32)
    compiled = session.compile(g, {"w": weights})
    weights[:] = 2
    ones = np.ones(64, np.float32)
    assert compiled.run({"x": ones})[0].tolist() == ones.tolist()


def test_a_state_does_not_share_memory_with_an_input(session: ost.Session) -> None:
    g = ost.Graph("kept")
    state = g.state("s", (1024,), init=np.zeros(1024, np.float32))
    x = g.input("x", (1024,))
    g.assign(state, x)
    g.set_outputs([state * 1.0])
    compiled = session.compile(g)
    array = np.ones(1024, np.float32)
    compiled.run({"x": array})
    array[:] = 2
    assert compiled.read_handle("s").tolist() == [1.0] * 1024


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_op_rounds_floats_of_16_bits(dtype: str, session: ost.Session) -> None:
    """XLA keeps no float32 between ops of the graph: results are the oracle's, to the bit.

    Processors with AVX512-FP16 multiply and add float16 by one instruction, with one rounding.
    """
    g = ost.Graph("rounding")
    x, y, z = (g.input(name, (257,), dtype) for name in "xyz")
    g.set_outputs([(x * y + z) * y - x])
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=257).astype(ost.DType.parse(dtype).numpy) for n in "xyz"}
    (mine,) = session.compile(g).run(arrays)
    (truth,) = ost.reference.evaluate(g, arrays)
    left, right, added = (arrays[name].astype(np.float64) for name in "xyz")
    inner = (left * right + added).astype(truth.dtype).astype(np.float64)
    fused = (inner * right - left).astype(truth.dtype)
    rounded = [truth, fused] if dtype == "float16" else [truth]
    assert mine.tobytes() in [array.tobytes() for array in rounded]


def test_sizes_are_compiled_once(session: ost.Session) -> None:
    g = ost.Graph("sizes")
    n = ost.Variable("n", 1, 100)
    g.set_outputs([g.sum(g.input("x", (n,)))])
    options = ost.CompileOptions(max_specializations=2)
    compiled = session.compile(g, options=options)
    for size in (3, 5, 3, 5):
        assert compiled.run({"x": np.ones(size, np.float32)})[0] == size
    assert [found.sizes for found in compiled.specializations] == ["n = 3", "n = 5"]
    compiled.run({"x": np.ones(7, np.float32)})
    assert [found.sizes for found in compiled.specializations] == ["n = 5", "n = 7"]


def test_settings_of_jax_are_left_alone(session: ost.Session) -> None:
    import jax
    import jax.numpy as jnp

    g = ost.Graph("wide")
    g.set_outputs([g.input("x", (3,), "float64") * 2.0, g.input("i", (3,), "int64") + 1])
    compiled = session.compile(g)
    wide, whole = compiled.run({"x": np.full(3, 1 + 1e-12), "i": np.full(3, 1 << 40)})
    assert wide.tolist() == [2 * (1 + 1e-12)] * 3
    assert whole.tolist() == [(1 << 40) + 1] * 3
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3).dtype == np.int32
    assert jax.config.jax_compilation_cache_dir is None


def test_a_refusal_names_the_node(session: ost.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    g = ost.Graph("refused")
    g.set_outputs([g.tan(g.input("x", (3,)))])
    (node,) = [node for node in g.nodes if node.op.name == "tan"]
    backend_xp = session._backend.framework.xp  # type: ignore[attr-defined]
    monkeypatch.setattr(backend_xp, "tan", fail, raising=False)
    with pytest.raises(ost.UnsupportedOpError, match=f"{node.label}.*no such thing"):
        session.compile(g)


def test_control_flow_is_compiled(session: ost.Session) -> None:
    g = ost.Graph("loop")
    x = g.input("x", (3,))
    (result,) = g.while_loop(
        lambda b, i, v: [b.less(b.sum(v), 100.0), v * 2.0], [x], condition=np.True_
    )
    g.set_outputs([result])
    compiled = session.compile(g)
    assert len(compiled.plan.kernels) == 1
    array = np.ones(3, np.float32)
    (truth,) = ost.reference.evaluate(g, {"x": array})
    np.testing.assert_array_equal(compiled.run({"x": array})[0], truth)


def test_code_is_kept_on_disk(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import numpy as np, ostinato as ost
        g = ost.Graph("kept")
        g.set_outputs([g.exp(g.input("x", (5,))) * 3.0])
        compiled = ost.Session("xla").compile(g)
        print(compiled.run({"x": np.zeros(5, np.float32)})[0].tolist(), compiled.explain())
        """
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"OSTINATO_CACHE_DIR": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "1 kernels compiled, 0 from the cache" in runs[0]
    assert "0 kernels compiled, 1 from the cache" in runs[1]
    assert all(run.startswith("[3.0, 3.0, 3.0, 3.0, 3.0]") for run in runs)


def test_listing_devices_imports_no_framework() -> None:
    script = "import sys, ostinato as ost; ost.available_devices(); print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ost.DeviceUnavailableError, match="XLA:7 is not present"):
        ost.Session("xla:7")


@pytest.mark.parametrize("device", ["tpu", "rocm"])
def test_platforms_that_jax_does_not_have_are_not_available(device: str) -> None:
    assert not ost.is_available(device)
    with pytest.raises(ost.DeviceUnavailableError, match="is not installed; install jax"):
        ost.Session(device)


def test_a_backend_may_name_its_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TpuBackend, "platform", "cpu")
    monkeypatch.setattr(TpuBackend, "package", "jax")
    compiled = ost.Session("tpu").compile(counter())
    assert compiled.device == ost.Device("TPU", 0)
    assert compiled.run({"x": np.ones(4, np.float32)})[0].tolist() == [1] * 4


@pytest.mark.parametrize("divisor", ["constant", "number", "broadcast", "half", "row", "column"])
def test_a_quotient_by_repeated_numbers_is_rounded_once(session: ost.Session, divisor: str) -> None:
    """As NumPy's; XLA by itself would multiply with rounded reciprocals."""
    rng, shape = np.random.default_rng(0), (100, 99)
    x, row, column = (rng.random(s, np.float32) + 1 for s in (shape, (99,), (100, 1)))
    by: dict[str, np.ndarray] = {"half": np.array(0.5, np.float32), "row": row, "column": column}
    number = by.get(divisor, np.array(127, np.float32))
    g = ost.Graph("quotient")
    value = g.constant(number) if divisor in ("constant", "half") else g.input("y", number.shape)
    if divisor == "broadcast":
        value = g.broadcast_to(value, shape)
    quotient = g.input("x", shape) / value
    g.set_outputs([quotient, g.exp(quotient)])
    given = {"x": x, "y": number} if "y" in g.inputs else {"x": x}
    np.testing.assert_array_equal(session.compile(g).run(given)[0], x / number)


def test_quotients_on_gpus_are_rounded_once() -> None:
    """By way of float64, which GPUs divide exactly, and which LLVM must not narrow again."""
    import jax

    xp, rng = GpuJaxNamespace(), np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4099)).astype(np.float32)
    x[:4], y[:4] = (0, 1, -1, 1e-42), (0, 0, np.inf, 3)
    with jax.enable_x64(True), np.errstate(all="ignore"):
        text = jax.jit(xp.divide).lower(x, y).as_text()
        np.testing.assert_array_equal(np.asarray(xp.divide(x, y))[:3], (x / y)[:3])
        np.testing.assert_array_equal(np.asarray(xp.divide(x, y))[4:], (x / y)[4:])
        assert xp.divide(x.astype(np.float16), y.astype(np.float16)).dtype == np.float16
    assert "xf64" in text
    assert "reduce_precision" in text


@pytest.mark.parametrize("optimize", [True, False])
def test_an_array_is_updated_with_its_own_elements(session: ost.Session, optimize: bool) -> None:
    """XLA would overwrite elements of a reshaped buffer that the update has yet to read."""
    x = np.random.default_rng(0).normal(size=(96, 16, 16)).astype(np.float32)
    g = ost.Graph("update")
    square = g.reshape(g.input("x", x.shape), (48, 512))
    line = g.slice(g.reshape(square, (-1,)), [13269], [18885])
    update = g.permute_dims(g.reshape(line, (234, 24)), (1, 0))
    g.set_outputs([g.dynamic_update_slice(square, update, (24, 278))])
    found = session.compile(g, options=ost.CompileOptions(optimize=optimize)).run({"x": x})[0]
    expected = x.reshape(48, 512).copy()
    expected[24:, 278:] = x.reshape(-1)[13269:18885].reshape(234, 24).T
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seen", ["quotient", "exponentials", "maximum", "sum"])
def test_rows_with_nan_are_nan_wherever_their_maximum_is_read(
    session: ost.Session, seen: str
) -> None:
    """A maximum that only keeps the exponentials of a softmax in range is not checked for NaN."""
    g = ost.Graph("rows")
    x, mask = g.input("x", (4, 40)), g.input("mask", (4, 40), "bool")
    scores = g.where(mask, x, -np.inf)
    greatest = g.max(scores, axis=1, keepdims=True)
    exponentials = g.exp(scores - g.where(g.equal(greatest, -np.inf), 0.0, greatest))
    total = g.sum(exponentials, axis=1, keepdims=True)
    quotient = exponentials / g.where(g.equal(total, 0.0), 1.0, total)
    values = {
        "quotient": quotient,
        "exponentials": exponentials,
        "maximum": greatest,
        "sum": total,
    }
    g.set_outputs([quotient, g.tanh(values[seen])])
    array = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    allowed = np.ones((4, 40), bool)
    array[1, 17], allowed[2], array[3, 39] = np.nan, False, np.nan
    allowed[3, 39] = False
    inputs = {"x": array, "mask": allowed}
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize)
        compiled = session.compile(g, options=options)
        checked = any(
            "is_nan" in k.source or "direction=NE" in k.source for k in compiled.plan.kernels
        )
        assert checked == (seen != "quotient")
        for found, want in zip(
            compiled.run(inputs), ost.reference.evaluate(g, inputs), strict=True
        ):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def doubled(elements: int, dtype: str = "float32") -> ost.Graph:
    """A graph with an input, a state that counts, and outputs of which two are one result."""
    g = ost.Graph("doubled")
    count = g.state("count", (elements,), init=np.zeros(elements, np.float32))
    total = count + 1.0
    g.assign(count, total)
    twice = g.input("x", (elements,), dtype) * 2
    g.set_outputs({"twice": twice, "again": twice, "total": total})
    return g


@pytest.mark.parametrize("elements", [0, 1, 7, 16411])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "bfloat16", "bool"])
def test_outputs_are_arrays_of_their_own(session: ost.Session, elements: int, dtype: str) -> None:
    """Whether their memory is XLA's or a copy: they may be written, and last."""
    g = ost.Graph("negated") if dtype == "bool" else doubled(elements, dtype)
    if dtype == "bool":
        g.set_outputs([g.logical_not(g.input("x", (elements,), "bool"))])
    compiled = session.compile(g)
    x = np.arange(elements).astype(g.inputs["x"].dtype.numpy)
    expected = ~x if dtype == "bool" else x * x.dtype.type(2)
    kept = []
    for run in range(1, 4):
        outputs = compiled.run({"x": x})
        np.testing.assert_array_equal(outputs[0], expected)
        if dtype != "bool":
            np.testing.assert_array_equal(outputs[1], expected)
            np.testing.assert_array_equal(outputs[2], np.full(elements, run, np.float32))
        kept.append([array.copy() for array in outputs])
        for before, array in zip(kept[-1], outputs, strict=True):
            assert array.flags.writeable
            assert array.dtype == before.dtype
            array[...] = 0
    again = compiled.run({"x": x})
    np.testing.assert_array_equal(again[0], expected)
    if dtype != "bool":
        np.testing.assert_array_equal(compiled.read_handle("count"), np.full(elements, 4))
        again[0][...] = 0
        np.testing.assert_array_equal(again[1], expected)


def test_quick_runs_follow_params_states_and_clones(session: ost.Session) -> None:
    """They keep the arrays of params and states in hand, until these are exchanged."""
    g = ost.Graph("scaled")
    total = g.state("total", (9000,))
    following = total + g.input("x", (9000,)) * g.param("w", (9000,))
    g.assign(total, following)
    g.set_outputs([following * 1.0])
    compiled = session.compile(g, {"w": np.ones(9000, np.float32)})
    assert compiled._execution.executable.run_fresh is not None
    ones = np.ones(9000, np.float32)

    def run(graph: ost.CompiledGraph) -> float:
        (found,) = graph.run({"x": ones})
        assert (found == found[0]).all()
        return float(found[0])

    assert [run(compiled), run(compiled)] == [1, 2]
    twin = compiled.clone()
    compiled.set_param("w", ones * 3)
    assert [run(compiled), run(twin), run(compiled), run(twin)] == [5, 3, 8, 4]
    compiled.bind_handle("total", ones * 10)
    assert [run(compiled), run(twin), run(compiled)] == [13, 5, 16]


def test_quick_runs_refuse_what_the_long_path_explains(session: ost.Session) -> None:
    compiled = session.compile(doubled(6))
    wide = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(compiled.run({"x": wide[::2]})[0], wide[::2] * 2)
    with pytest.raises(ost.InputError, match="'x'"):
        compiled.run({"x": wide})
    context = session.context
    context.begin_graph_capture()
    with pytest.raises(ost.CaptureError, match="run reads its results back"):
        compiled.run({"x": wide[:6]})
    context.cancel_graph_capture()
    np.testing.assert_array_equal(compiled.run({"x": wide[:6]})[0], wide[:6] * 2)
    run = compiled._execution.executable.run_fresh
    with pytest.raises(TypeError):
        run((wide[:6],), ())
    assert run([wide[::2]], ()) is None
    compiled._execution.executable.close()
    with pytest.raises(ost.PlanError):
        compiled.run({"x": wide[:6]})
