"""Loop nests on emulated threads, next to the interpreter of loop nests, in every mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.abi import HEADER_WORDS
from ostinato.backends.cuda.capabilities import CAPABILITIES
from ostinato.backends.cuda.headers import DIRECTORY
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.render.mapping import Shape, mapping_of
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from ostinato.backends.cuda.target import CudaTarget
from ostinato.dtypes import FLOAT32
from ostinato.ir.graph import Value
from ostinato.ir.graph_facts import graph_facts
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Arg, Number, Stage, Store
from ostinato.lower.program import Call, Role
from ostinato.passes.pipeline import run_passes
from ostinato.variables import axis, evaluate, symbols
from tests.devices.cuda_emulation.emulator import EmulatedKernel, Memory, load_kernels
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.loops.interpreter import run_nest

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

Array = np.ndarray[Any, Any]

#: One multiprocessor, so that few points fill it; several, so that groups share points.
SMALL = CudaTarget("sm_90", 1, 227 << 10, 256)
LARGE = CudaTarget("sm_90", 6, 227 << 10)
SCALAR = CudaTarget("sm_90", 1, 227 << 10, 256, vector_accesses=False, tiled_transposes=False)
TARGETS = {"small": SMALL, "large": LARGE, "scalar": SCALAR}


@dataclass
class Case:
    """A graph, and the shapes that its kernels have to be mapped with on some target.

    Attributes:
        build: adds the nodes to a graph.
        shapes: mappings that are expected among those of all targets.
        sizes: the values of Variables.
    """

    build: Callable[[ost.Graph], Value | list[Value]]
    shapes: frozenset[Shape]
    sizes: Mapping[str, int]


def case(build: Callable[[ost.Graph], Any], *shapes: Shape, **sizes: int) -> Case:
    return Case(build, frozenset(shapes), sizes)


def _map(dtype: str, *shape: int) -> Callable[[ost.Graph], Any]:
    return lambda g: g.add(g.input("x", shape, dtype), g.input("y", shape[-1:], dtype))


def _rows(op: str, dtype: str, *shape: int, **attrs: Any) -> Callable[[ost.Graph], Any]:
    return lambda g: getattr(g, op)(g.input("x", shape, dtype), **attrs)


def _norm(dtype: str, *shape: int) -> Callable[[ost.Graph], Any]:
    def build(g: ost.Graph) -> Value:
        weight, bias = (g.input(n, shape[-1:], dtype) for n in ("w", "b"))
        return g.layer_norm(g.input("x", shape, dtype), weight, bias)

    return build


def _scatter(mode: str, shape: tuple[int, ...], ids: tuple[int, ...]) -> Callable[[ost.Graph], Any]:
    def build(g: ost.Graph) -> Value:
        places = g.input("places", ids, "int32")
        return g.scatter(
            g.input("x", shape, "float32"), places, g.input("u", ids, "float32"), axis=0, mode=mode
        )

    return build


def _scatter_nd(mode: str) -> Callable[[ost.Graph], Any]:
    def build(g: ost.Graph) -> Value:
        places = g.input("places", (40, 1), "int64")
        x, u = g.input("x", (7, 5), "float32"), g.input("u", (40, 5), "float32")
        return g.scatter_nd(x, places, u, mode=mode)

    return build


def _turned(
    dtype: str, shape: tuple[int, ...], order: tuple[int, ...]
) -> Callable[[ost.Graph], Any]:
    def build(g: ost.Graph) -> Value:
        turned = g.permute_dims(g.input("x", shape, dtype), order)
        straight = g.input("y", tuple(shape[i] for i in order), dtype)
        return g.logical_and(turned, straight) if dtype == "bool" else turned * 3 + straight

    return build


def _turned_symbolic(g: ost.Graph) -> Value:
    n = ost.Variable("N", 1, 90)
    return g.permute_dims(g.input("x", (n, 50), "float32"), (1, 0)) * 2


def _symbolic(g: ost.Graph, largest: int = 70) -> list[Value]:
    n = ost.Variable("N", 1, largest)
    x = g.input("x", (n, 12), "float32")
    return [
        g.softmax(x, axis=-1),
        g.sum(x, axis=0),
        g.cumsum(x, axis=0),
        x * 2,
        g.argmax(x, axis=0),
    ]


POINTS, ROWS, COLUMNS, ORDERED = Shape.POINTS, Shape.ROWS, Shape.COLUMNS, Shape.ORDERED

CASES = {
    "transpose": case(_turned("float32", (70, 65), (1, 0)), Shape.TILES, POINTS),
    "transpose_float16": case(_turned("float16", (3, 64, 48), (0, 2, 1)), Shape.TILES),
    "transpose_bool": case(_turned("bool", (33, 4, 40), (2, 1, 0)), Shape.TILES),
    "transpose_symbolic": case(_turned_symbolic, Shape.TILES, N=67),
    "empty": case(_map("float32", 3, 0), POINTS),
    "one": case(_map("float32", 1), POINTS),
    "prime": case(_map("float16", 7, 13), POINTS),
    "packed_float32": case(_map("float32", 40, 128), POINTS),
    "packed_float16": case(_map("float16", 40, 128), POINTS),
    "packed_bool": case(_rows("logical_not", "bool", 6400), POINTS),
    "packed_float64": case(_map("float64", 40, 128), POINTS),
    "softmax_short": case(_rows("softmax", "float32", 9, 5, axis=-1), ROWS),
    "softmax_warp": case(_rows("softmax", "float16", 33, 24, axis=-1), ROWS),
    "softmax_block": case(_rows("softmax", "float32", 3, 1003, axis=-1), ROWS),
    "softmax_packed": case(_rows("softmax", "bfloat16", 5, 1024, axis=-1), ROWS),
    "softmax_scratch": case(_rows("softmax", "float32", 2, 17_000, axis=-1), ROWS),
    "norm": case(_norm("float16", 11, 96), ROWS),
    "norm_float64": case(_norm("float64", 3, 50), ROWS),
    "whole_sum": case(_rows("sum", "float32", 31, 301, axis=(0, 1)), ROWS),
    "split_sum": case(_rows("sum", "float32", 1 << 17), ROWS),
    "split_max": case(_rows("max", "int32", 65_543), ROWS),
    "split_columns": case(_rows("sum", "float16", 66_000, 3, axis=0), COLUMNS),
    "any": case(_rows("any", "bool", 9, 77, axis=1), ROWS),
    "prod_int8": case(_rows("prod", "int8", 9, 77, axis=1), ROWS),
    "argmax_rows": case(_rows("argmax", "float32", 5, 67, axis=1), ROWS),
    "argmin_int64": case(_rows("argmin", "int64", 5, 67, axis=1), ROWS),
    "column_sum": case(_rows("sum", "float32", 200, 3, axis=0), COLUMNS),
    "column_argmax": case(_rows("argmax", "float16", 130, 9, axis=0), COLUMNS),
    "column_wide": case(_rows("max", "int32", 40, 700, axis=0), POINTS),
    "scan": case(_rows("cumsum", "float32", 5, 77, axis=1), ROWS),
    "scan_backwards": case(
        _rows("cumsum", "int32", 3, 40, axis=1, reverse=True, exclusive=True), ROWS
    ),
    "scan_columns": case(_rows("cumprod", "float64", 17, 6, axis=0, exclusive=True), POINTS),
    "scatter_set": case(_scatter("set", (9, 4), (33, 4)), ORDERED),
    "scatter_add": case(_scatter("add", (9,), (70,)), ORDERED),
    "scatter_max": case(_scatter("max", (9, 4), (33, 4)), ORDERED),
    "scatter_nd_mul": case(_scatter_nd("mul"), ORDERED),
    "scatter_nd_set": case(_scatter_nd("set"), ORDERED),
    "symbolic_full": case(_symbolic, N=70),
    "symbolic_odd": case(_symbolic, N=37),
    "symbolic_one": case(_symbolic, N=1),
    "wide_indices": case(lambda g: _symbolic(g, 1 << 33), N=37),
}


def calls_of(name: str, settings: CudaLowering | None = None) -> list[Call]:
    graph = ost.Graph(name)
    made = CASES[name].build(graph)
    graph.set_outputs(made if isinstance(made, list) else [made])
    lowered, _ = run_passes(graph, capabilities=CAPABILITIES)
    settings = CudaLowering() if settings is None else settings
    program, _ = lower_for_cuda(lowered, settings, facts=graph_facts(graph))
    return [call for call in program.calls if isinstance(call.kernel, CudaLoopNest)]


@pytest.fixture(scope="module")
def lowered() -> dict[str, list[Call]]:
    return {name: calls_of(name) for name in CASES}


@pytest.fixture(scope="module")
def compiled(lowered: dict[str, list[Call]]) -> dict[str, dict[str, EmulatedKernel]]:
    """By target and name, the kernels of all cases, compiled at once."""
    kernels = {call.kernel.name: call.kernel for calls in lowered.values() for call in calls}
    return {
        target: load_kernels({n: k.source(TARGETS[target]) for n, k in kernels.items()}, DIRECTORY)
        for target in TARGETS
    }


def contents(call: Call, sizes: Mapping[str, int], rng: np.random.Generator) -> list[Array]:
    """Operands with ties, NaNs and places within and beyond; results that are not 0."""
    arrays = []
    for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
        size = evaluate(buffer.type.size, sizes)
        if arg.dtype.is_float:
            values = rng.integers(-8, 8, size) / 4
            values[rng.random(size) < 0.02] = np.nan if buffer.role is Role.INPUT else 1
        else:
            values = rng.integers(0, 2 if arg.dtype.is_bool else 12, size)
        arrays.append(values.astype(arg.dtype.numpy))
    return arrays


def as_octets(array: Array) -> Array:
    return array.view(f"u{array.itemsize}") if array.dtype.kind in "Vb" else array


def emulate(
    kernel: CudaLoopNest,
    target: CudaTarget,
    compiled: EmulatedKernel,
    arrays: list[Array],
    sizes: Mapping[str, int],
) -> None:
    block = np.zeros(HEADER_WORDS + len(kernel.variables) + 1, np.int64)
    block[HEADER_WORDS:-1] = [sizes[variable.name] for variable in kernel.variables]
    memory = [
        Memory(f"b{i}", as_octets(array), arg.reads, arg.writes)
        for i, (arg, array) in enumerate(zip(kernel.args, arrays, strict=True))
    ]
    # The words before the first Variable belong to the block.
    memory += [Memory("vars", block[HEADER_WORDS:]), Memory("block", block)]
    launch = kernel.launch(target)
    compiled.run(
        launch.grid, launch.block, memory, shared_bytes=launch.shared_bytes, seeds=(0, 1, 2)
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_nest(
    name: str,
    target: str,
    lowered: dict[str, list[Call]],
    compiled: dict[str, dict[str, EmulatedKernel]],
) -> None:
    rng = np.random.default_rng(5)
    for call in lowered[name]:
        kernel, sizes = call.kernel, CASES[name].sizes
        assert isinstance(kernel, CudaLoopNest)
        given = contents(call, sizes, rng)
        found = [array.copy() for array in given]
        emulate(kernel, TARGETS[target], compiled[target][kernel.name], found, sizes)
        expected = [array.copy() for array in given]
        interpret(kernel, expected, sizes)
        for arg, one, other in zip(kernel.args, found, expected, strict=True):
            if not (arg.writes and not is_scratch(kernel, arg)):
                continue
            if arg.dtype.is_float:
                rtol = {2: 2e-2, 4: 2e-5, 8: 1e-12}[arg.dtype.itemsize]
                wide = one.astype(np.float64), other.astype(np.float64)
                np.testing.assert_allclose(*wide, rtol=rtol, atol=rtol)
            else:
                np.testing.assert_array_equal(one, other)


def is_scratch(kernel: CudaLoopNest, arg: object) -> bool:
    return bool(kernel.scratch_groups) and arg is kernel.args[-1]


def interpret(kernel: CudaLoopNest, arrays: list[Array], sizes: Mapping[str, int]) -> None:
    with np.errstate(all="ignore"):
        run_nest(kernel, arrays, {v: sizes[v.name] for v in kernel.variables})


def test_cases_cover_the_mappings(lowered: dict[str, list[Call]]) -> None:
    for name, calls in lowered.items():
        found = {
            mapping_of(call.kernel, target, call.kernel.scratch_groups).shape
            for call in calls
            for target in TARGETS.values()
            if isinstance(call.kernel, CudaLoopNest)
        }
        assert found >= CASES[name].shapes, name
    nests = [call.kernel for calls in lowered.values() for call in calls]
    assert any(isinstance(n, CudaLoopNest) and n.scratch_groups for n in nests)
    assert any("pack<" in n.source(SMALL) for n in nests if isinstance(n, CudaLoopNest))
    assert not any("pack<" in n.source(SCALAR) for n in nests if isinstance(n, CudaLoopNest))


def test_splitting_can_be_switched_off() -> None:
    assert len(calls_of("split_sum")) == 2
    assert len(calls_of("split_sum", CudaLowering(split_reductions=False))) == 1


def test_stages_of_constants_are_dealt_out() -> None:
    """The border of a matrix: rows above and below, then columns at both sides."""
    stages = []
    for rows, columns, start in ((1, 9, 0), (2, 9, 45), (4, 2, 9), (4, 3, 15)):
        i, j = axis("i", rows), axis("j", columns)
        axes = tuple(symbol for index in (i, j) for symbol in symbols(index))
        stages.append(Stage(axes, (Store(0, i * 9 + j + start, Number(7.0, FLOAT32)),)))
    nest = LoopNest((Arg(FLOAT32, reads=False, writes=True),), (), tuple(stages))
    kernel = CudaLoopNest.of(nest)
    assert mapping_of(kernel, SMALL).shape is Shape.STAGES
    compiled = load_kernels({kernel.name: kernel.source(SMALL)}, DIRECTORY)[kernel.name]
    found = np.zeros(63, np.float32)
    emulate(kernel, SMALL, compiled, [found], {})
    expected = np.full((7, 9), 7.0)
    expected[1:5, 2:6] = 0
    np.testing.assert_array_equal(found.reshape(7, 9), expected)
