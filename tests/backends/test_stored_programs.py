"""Programs that start from what an equal graph was compiled to before."""

from __future__ import annotations

import gc
import marshal
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common import stored_program
from ostinato.backends.cpu import compilation
from ostinato.backends.cpu import image as cpu_image
from ostinato.backends.cpu.image import Image
from ostinato.cache import fingerprint
from ostinato.cache.objects import ObjectCache

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: str = "float32") -> Array:
    """The same numbers for the same shape."""
    numbers = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)
    return numbers.astype(ost.DType.parse(dtype).numpy)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an unused cache."""
    fresh_process(tmp_path, monkeypatch)
    return tmp_path


def fresh_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had just started, with its cache in ``folder``."""
    cache = ObjectCache(folder)
    for module in (compilation, cpu_image, stored_program):
        monkeypatch.setattr(module, "process_cache", lambda: cache)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of graphs that went through the compiler."""
    seen: list[str] = []
    real = compilation.compile_graph

    def counted(graph: Any, *rest: Any, **named: Any) -> Any:
        seen.append(graph.name)
        return real(graph, *rest, **named)

    monkeypatch.setattr(compilation, "compile_graph", counted)
    return seen


# -- graphs of every kind --------------------------------------------------------------------------


def mlp(g: ost.Graph) -> None:
    x = g.input("x", (3, 20))
    w, b = g.param("w", (20, 30), value=normal(20, 30)), g.param("b", (30,), value=normal(30))
    g.set_outputs([g.softmax(g.gelu(x @ w + b), axis=-1)])


def symbolic(g: ost.Graph) -> None:
    n = ost.Variable("n", 1, 9)
    x, w = g.input("x", (n, 16)), g.param("w", (16, 8), value=normal(16, 8))
    y = g.layer_norm(x @ w, None, None)
    g.set_outputs({"y": y, "rows": g.sum(y, axis=0), "flat": g.reshape(y, (n * 8,))})


def state(g: ost.Graph) -> None:
    x = g.input("x", (2, 3))
    total = g.state("total", (2, 3), init=normal(2, 3))
    count = g.state("count", (), "int64", init=5)
    g.assign(total, total + x)
    g.assign(count, count + 1)
    g.set_outputs([total * 2, count])


def constants(g: ost.Graph) -> None:
    x = g.input("x", (4, 300))
    table = g.constant(normal(300))
    g.set_outputs(
        [x * table + g.constant(normal(4, 1)), g.take(table, g.constant(np.array([3, 5])))]
    )


def narrow(g: ost.Graph) -> None:
    x, w = g.input("x", (2, 32), "bfloat16"), normal(32, 48, dtype="bfloat16")
    h = g.matmul(x, g.param("w", (32, 48), "bfloat16", value=w))
    g.set_outputs([g.cast(h, "float32"), g.cast(h, "float16")])


def convolution(g: ost.Graph) -> None:
    x = g.input("x", (1, 8, 14, 14))
    w = g.param("w", (16, 8, 3, 3), value=normal(16, 8, 3, 3))
    y = g.relu(g.conv(x, w, padding=1))
    g.set_outputs([g.max_pool(y, 2), g.mean(y, axis=(2, 3))])


def experts(g: ost.Graph) -> None:
    x = g.input("x", (6, 16))
    router = g.param("router", (16, 4), value=normal(16, 4))
    shapes = {"gate": (4, 16, 24), "up": (4, 16, 24), "down": (4, 24, 16)}
    matrices = [g.param(name, shape, value=normal(*shape)) for name, shape in shapes.items()]
    g.set_outputs([g.moe(x, router, *matrices, k=2)])


def nothing_to_compute(g: ost.Graph) -> None:
    x = g.input("x", (2, 3))
    g.set_outputs({"x": x, "turned": g.reshape(x, (3, 2))})


def folded(g: ost.Graph) -> None:
    g.input("x", (2,))
    g.set_outputs([g.constant(np.arange(6.0, dtype=np.float32)) * 2])


GRAPHS = [mlp, symbolic, state, constants, narrow, convolution, experts, nothing_to_compute, folded]


def made(build: Callable[[ost.Graph], None]) -> ost.Graph:
    g = ost.Graph(build.__name__)
    build(g)
    return g


def feed(compiled: ost.CompiledGraph, rows: int = 5) -> dict[str, Array]:
    numbers = np.random.default_rng(3)
    return {
        name: numbers.standard_normal(
            [d if isinstance(d, int) else rows for d in spec.shape]
        ).astype(spec.dtype.numpy)
        for name, spec in compiled.inputs.items()
    }


def results(compiled: ost.CompiledGraph, times: int = 3) -> list[bytes]:
    return [a.tobytes() for _ in range(times) for a in compiled.run(feed(compiled))]


@pytest.mark.parametrize("build", GRAPHS)
@pytest.mark.parametrize(
    "options", [{}, {"optimize": False}, {"keep_intermediates": True}], ids=str
)
def test_the_next_process_compiles_nothing(build, options, folder, compiles, monkeypatch):
    switches = ost.CompileOptions(**options)
    first = ost.Session("cpu").compile(made(build), options=switches)
    expected = results(first)
    assert compiles == [build.__name__]
    fresh_process(folder, monkeypatch)
    again = ost.Session("cpu").compile(made(build), options=switches)
    assert results(again) == expected
    assert compiles == [build.__name__]


@pytest.mark.parametrize("build", GRAPHS)
def test_what_is_known_of_the_program_is_the_same(build, folder, compiles, monkeypatch):
    first = ost.Session("cpu").compile(made(build))
    fresh_process(folder, monkeypatch)
    g = made(build)
    again = ost.Session("cpu").compile(g)
    assert len(compiles) == 1
    assert [str(k) for k in again.plan.kernels] == [str(k) for k in first.plan.kernels]
    assert str(again.plan.memory) == str(first.plan.memory)
    assert len(compiles) == 2  # asking for the plan makes it again
    assert again.explain().splitlines()[:-1] == first.explain().splitlines()[:-1]
    assert len(compiles) == 2
    for name, value in g.outputs.items():
        assert again.plan.outputs[name].type == value.type
    assert results(again) == results(first)


@pytest.mark.parametrize("build", GRAPHS)
def test_images_survive_being_written(build):
    compiled = ost.Session("cpu").compile(made(build))
    image = compiled._execution.executable.compilation.image
    back = Image.from_entry(marshal.loads(marshal.dumps(image.entry())))
    assert back == image
    assert back.same_program(image)
    if image.steps:
        assert not back._replace(steps=image.steps[1:]).same_program(image)


# -- what goes on with it --------------------------------------------------------------------------


@pytest.fixture
def twice(folder, monkeypatch):
    """Compiles a graph, and again in what is like another process."""

    def compile_twice(build: Callable[[ost.Graph], None]) -> tuple[Any, Any]:
        first = ost.Session("cpu").compile(made(build))
        fresh_process(folder, monkeypatch)
        return first, ost.Session("cpu").compile(made(build))

    return compile_twice


def test_params_are_written(twice):
    first, again = twice(mlp)
    w, b = 3 - normal(20, 30), 1 + normal(30)
    before = results(first)
    for one in (first, again):
        one.set_param("w", w)
    assert results(first) == results(again) != before
    for one in (first, again):
        one.set_params({"b": b, "w": 2 * w})
    assert results(first) == results(again)


def test_conditions_on_sizes(folder, compiles, monkeypatch):
    """A stored program refuses the sizes that the program it was stored from refuses."""

    def greatest(g: ost.Graph) -> None:
        n = ost.Variable("n", 0, 8)
        g.set_outputs([g.argmax(g.input("x", (n, 3)), axis=0)])

    for _ in range(2):
        compiled = ost.Session("cpu").compile(made(greatest))
        with pytest.raises(ost.VariableError, match=r"argmax 'argmax_1'.*axis 0.*got n = 0"):
            compiled.run({"x": np.zeros((0, 3), np.float32)})
        assert compiled.run({"x": normal(1, 3)})[0].tolist() == [0, 0, 0]
        fresh_process(folder, monkeypatch)
    assert compiles == ["greatest"]
    with pytest.raises(ost.VariableError, match=r"argmax 'argmax_1'.*axis 0.*got n = 0"):
        compiled.plan.execute_with_vars({"n": 0})


def test_params_that_were_never_given(folder, monkeypatch):
    g = ost.Graph("bare")
    g.set_outputs([g.input("x", (2, 4)) @ g.param("w", (4, 3))])
    ost.Session("cpu").compile(g)
    fresh_process(folder, monkeypatch)
    compiled = ost.Session("cpu").compile(g)
    with pytest.raises(ost.InputError, match="never set: w"):
        compiled.run({"x": np.ones((2, 4), np.float32)})
    compiled.set_param("w", np.ones((4, 3), np.float32))
    assert (compiled.run({"x": np.ones((2, 4), np.float32)})[0] == 4).all()


def test_values_of_params_are_the_callers(folder, compiles, monkeypatch):
    """The program of a graph is found again whatever its weights are, and runs on these."""
    g = ost.Graph("weights")
    g.set_outputs([g.input("x", (2, 4)) @ g.param("w", (4, 3))])
    x = np.ones((2, 4), np.float32)
    session = ost.Session("cpu")
    for value in range(3):
        w = np.full((4, 3), value, np.float32)
        assert (session.compile(g, {"w": w}).run({"x": x})[0] == 4 * value).all()
    assert compiles == ["weights"]


def test_states_and_clones(twice):
    first, again = twice(state)
    x = {"x": np.ones((2, 3), np.float32)}
    for one in (first, again):
        one.run(x)
        one.run(x)
    twins = first.clone(), again.clone()
    assert results(first) == results(again)
    assert results(twins[0]) == results(twins[1])
    for one in (first, again, *twins):
        one.unbind_handle("total")
    assert results(first) == results(again) == results(twins[0]) == results(twins[1])


def test_active_extent(twice):
    first, again = twice(mlp)
    whole = first.run(feed(first))[0]
    for one in (first, again):
        one.set_active_extent((2, 3))
        np.testing.assert_array_equal(one.run(feed(one))[0][:2], whole[:2])


def test_experts_are_told(twice):
    first, again = twice(experts)
    assert again.moe_layers == first.moe_layers
    for one in (first, again):
        one.set_moe_resident_experts([True, False, True, True])
        one.run(feed(one))
    assert again.take_moe_residency_stats() == first.take_moe_residency_stats()


def test_captures(twice):
    first, again = twice(mlp)
    for one in (first, again):
        x, y = normal(3, 20), np.empty((3, 30), np.float32)
        call = one.bind({"x": x}, [y])
        context = one._execution.context
        context.begin_graph_capture()
        call()
        context.end_graph_capture(1)
        assert context.replay_graph(1)
        np.testing.assert_array_equal(y, one.run({"x": x})[0])


def test_buffers_of_the_users_values(twice, folder, monkeypatch):
    twice(mlp)
    fresh_process(folder, monkeypatch)
    g = made(mlp)
    plan = ost.Session("cpu").compile(g).plan
    (y,) = g.outputs.values()
    assert plan.buffer(y) is plan.outputs["output_0"]
    with pytest.raises(ost.PlanError, match="another graph"):
        plan.buffer(next(iter(made(mlp).outputs.values())))


def test_the_plan_is_that_of_what_was_compiled(twice, folder, monkeypatch):
    first, _ = twice(mlp)
    fresh_process(folder, monkeypatch)
    g = made(mlp)
    compiled = ost.Session("cpu").compile(g)
    g.set_outputs([g.exp(g.outputs["output_0"])])  # too late to matter
    assert str(compiled.plan.kernels) == str(first.plan.kernels)


def test_a_label_that_looks_like_no_label(folder, monkeypatch):
    """The text of a graph leaves it out, so the layer is called differently the second time."""
    for _ in range(2):
        g = ost.Graph("labelled")
        x, ids, scale = g.input("x", (6, 16)), g.input("ids", (6, 2), "int64"), g.input("s", (6, 2))
        gate, up = (g.param(name, (4, 16, 24)) for name in ("gate", "up"))
        down = g.param("down", (4, 24, 16))
        with g.labelled("expert_mlp_99"):
            y = g.expert_mlp(x, ids, scale, gate, up, down)
        g.set_outputs([y])
        compiled = ost.Session("cpu").compile(g)
        assert compiled.plan.kernels
        fresh_process(folder, monkeypatch)


def test_the_program_that_runs_is_checked_though_its_entry_is_gone(folder, compiles, monkeypatch):
    """The loaded program is compared with its recompilation, whatever is on disk by then."""
    first = ost.Session("cpu").compile(made(mlp))
    image = first._execution.executable.compilation.image
    fresh_process(folder, monkeypatch)
    wrong = image._replace(intermediate_bytes=image.intermediate_bytes + 4096)
    with monkeypatch.context() as patch:
        patch.setattr(Image, "from_entry", lambda _: wrong)
        again = ost.Session("cpu").compile(made(mlp))
    assert len(compiles) == 1
    for path in (folder / "objects").iterdir():
        path.unlink()
    with pytest.raises(ost.OstinatoError, match="another program before"):
        _ = again.plan.kernels


def test_a_program_that_is_not_the_one_before_is_told(twice, monkeypatch):
    _, again = twice(mlp)
    monkeypatch.setattr(Image, "same_program", lambda *_: False)
    with pytest.raises(ost.OstinatoError, match=r"another program before.*stored_programs=False"):
        _ = again.plan


def test_graphs_are_not_kept_alive(twice, folder, monkeypatch):
    twice(mlp)
    fresh_process(folder, monkeypatch)
    g = made(mlp)
    compiled, gone = ost.Session("cpu").compile(g), weakref.ref(g)
    del g
    gc.collect()
    assert gone() is None
    assert compiled.plan.kernels


# -- what is distinguished -------------------------------------------------------------------------


def test_graphs_that_differ(compiles):
    session = ost.Session("cpu")

    def compiled(value: float, name: str = "g", shape: tuple[int, ...] = (4,)) -> float:
        g = ost.Graph(name)
        g.set_outputs([g.input("x", shape) + g.constant(np.full(4, value, np.float32))])
        return float(session.compile(g).run({"x": np.zeros(shape, np.float32)})[0].flat[0])

    assert [compiled(1), compiled(2), compiled(1)] == [1, 2, 1]
    assert len(compiles) == 2
    compiled(1, shape=(3, 4))
    compiled(1, name="h")
    assert len(compiles) == 4


def test_options_that_differ(compiles):
    session = ost.Session("cpu")
    for options in ({}, {"optimize": False}, {"disabled_passes": frozenset({"algebraic"})}, {}):
        session.compile(made(mlp), options=ost.CompileOptions(**options))
    assert len(compiles) == 3


def test_it_can_be_switched_off(compiles, folder):
    options = ost.CompileOptions(stored_programs=False)
    for _ in range(2):
        ost.Session("cpu", options=options).compile(made(mlp))
    assert len(compiles) == 2


def test_sources_that_differ(compiles, monkeypatch):
    ost.Session("cpu").compile(made(mlp))
    monkeypatch.setattr(fingerprint, "_environment", lambda _: {"files": "another version"})
    ost.Session("cpu").compile(made(mlp))
    assert len(compiles) == 2


# -- what may happen to files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["empty", "cut", "last bit"],
)
def test_damaged_files(damage, folder, compiles, monkeypatch):
    expected = results(ost.Session("cpu").compile(made(mlp)))
    files = sorted((folder / "objects").iterdir())
    whole = {path: path.read_bytes() for path in files}
    for path in files:
        path.write_bytes(damage(whole[path]))
        fresh_process(folder, monkeypatch)
        assert results(ost.Session("cpu").compile(made(mlp))) == expected
        path.write_bytes(whole[path])


def test_files_that_are_gone(folder, compiles, monkeypatch):
    expected = results(ost.Session("cpu").compile(made(mlp)))
    for path in sorted((folder / "objects").iterdir()):
        whole = path.read_bytes()
        path.unlink()
        fresh_process(folder, monkeypatch)
        assert results(ost.Session("cpu").compile(made(mlp))) == expected
        path.write_bytes(whole)


def test_large_constants_are_not_kept(folder, compiles, monkeypatch):
    monkeypatch.setattr(stored_program, "_MOST_BYTES", 100)
    for _ in range(2):
        ost.Session("cpu").compile(made(constants))
    assert len(compiles) == 2


# -- a start ---------------------------------------------------------------------------------------

START = """
import sys
import numpy as np
import ostinato as ost

g = ost.Graph("start")
x, w = g.input("x", (4, 64)), g.param("w", (64, 32), value=np.ones((64, 32), np.float32))
g.set_outputs([g.relu(x @ w)])
compiled = ost.Session("cpu").compile(g)
assert (compiled.run({"x": np.ones((4, 64), np.float32)})[0] == 64).all()
parts = ("passes", "lower", "backends.cpu.llvm.", "backends.cpu.rules", "reference", "tools")
loaded = [n for n in sys.modules if n.startswith(tuple(f"ostinato.{part}" for part in parts))]
loaded += [n for n in sys.modules if n.startswith("llvmlite.")]
print(*loaded)
"""


def test_a_warm_start_imports_no_compiler(tmp_path):
    environment = {**os.environ, "OSTINATO_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        command = [sys.executable, "-c", START]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    allowed = {
        "ostinato.backends.cpu.llvm.toolchain",
        "ostinato.backends.cpu.llvm.machine",
        "ostinato.backends.cpu.llvm.concurrent",
        "llvmlite._version",
    }
    assert set(done.stdout.split()) <= allowed
