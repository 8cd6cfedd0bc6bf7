"""The smallest device there can be: loop nests run point by point in Python, and a rule of its own.

Everything that it runs was lowered without a word of any other device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.backends.base import Capabilities
from ostinato.conversion import round_to
from ostinato.dtypes import ALL_DTYPES, DType
from ostinato.errors import UnsupportedOpError
from ostinato.ir.graph import BaseGraph, Node
from ostinato.ir.leaves import LEAVES
from ostinato.lower.fusion.regions import Region
from ostinato.lower.loopir.builder import INDEX_OPS, POINTWISE
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Scan,
    Statement,
    Store,
    extent_of,
)
from ostinato.lower.loopir.text import KernelText
from ostinato.lower.loopir.views import VIEWS
from ostinato.lower.lowering import LoweringOptions, lower
from ostinato.lower.program import LoweredBuffer, Program
from ostinato.lower.program_builder import ProgramBuilder
from ostinato.lower.rules.table import SHARED_RULES, RuleTable
from ostinato.ops import OPS
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.ops.namespace import ORACLE, as_oracle
from ostinato.passes.pipeline import run_passes
from ostinato.variables import Dim, evaluate

Array = np.ndarray[Any, Any]

_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_STARTS = {"sum": 0, "prod": 1, "any": False, "all": True}


# -- the device: its kernel, its rule, its runtime -------------------------------------------------


@dataclass(frozen=True, eq=False)
class TopK(Kernel):
    """``topk`` along the last axis, by a library call."""

    args: tuple[Arg, ...]
    node: Node
    variables: tuple[Any, ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, "topk")
        text.head(self.args)

    def run(self, x: Array, *results: Array) -> None:
        """Call the library on flat buffers."""
        (operand,) = self.node.inputs
        found = reference.evaluate_node(self.node, [x.reshape(operand.shape)])
        for result, array in zip(results, found, strict=True):
            result[...] = array.reshape(-1)


def lower_topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """The device's own rule."""
    (x,) = root.inputs
    lowering.copy(x)
    outputs = [(value, lowering.placement.target(value)) for value in root.outputs]
    build = lowering.builder(region)
    build.argument(lowering.stored[x], reads=True)
    for _, buffer in outputs:
        build.argument(buffer, writes=True)
    lowering.call(region, build, TopK(build.args, root), outputs)


TABLE = RuleTable("the interpreter", {"topk": lower_topk})
CAPABILITIES = Capabilities(
    ops=frozenset(
        {*ELEMENTWISE, *LEAVES, *VIEWS, *INDEX_OPS, *POINTWISE, *SHARED_RULES, *TABLE.rules}
    ),
    dtypes=frozenset(ALL_DTYPES),
    padded_conv=False,
)


class Interpreter:
    """Runs a program, buffer by flat buffer."""

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program = program
        self.sizes = dict(sizes)
        self.memory: dict[int, Array] = {}

    def __call__(self, given: Mapping[str, Array]) -> list[Array]:
        program = self.program
        for name, buffer in {**program.inputs, **program.params}.items():
            self._of(buffer)[...] = given[name].reshape(-1)
        for call in (*program.prepare, *program.calls):
            buffers = [self._of(buffer) for buffer in call.buffers]
            if isinstance(call.kernel, TopK):
                call.kernel.run(*buffers)
            else:
                assert isinstance(call.kernel, LoopNest)
                _Nest(call.kernel, buffers, self.sizes).run()
        return [self._of(b).reshape(self._shape(b)) for b in program.outputs.values()]

    def _shape(self, buffer: LoweredBuffer) -> tuple[int, ...]:
        return tuple(evaluate(dim, self.sizes) for dim in buffer.type.shape)

    def _of(self, buffer: LoweredBuffer) -> Array:
        if id(buffer) not in self.memory:
            made = np.zeros(int(np.prod(self._shape(buffer))), buffer.type.dtype.numpy)
            if buffer.data is not None:
                made[...] = buffer.data.reshape(-1)
            self.memory[id(buffer)] = made
        return self.memory[id(buffer)]


class _Nest:
    """One loop nest, point by point."""

    def __init__(self, nest: LoopNest, buffers: Sequence[Array], sizes: Mapping[str, int]) -> None:
        self.nest = nest
        temps = [np.zeros(temp.elements, temp.dtype.numpy) for temp in nest.temps]
        self.buffers = [*buffers, *temps]
        self.at = dict(sizes)
        self.results: dict[str, Any] = {}
        self.known: dict[int, Any] = {}

    def run(self) -> None:
        for _ in self._points(self.nest.outer_axes):
            for stage in self.nest.stages:
                for statement in stage.statements:
                    if isinstance(statement, Reduce):
                        self.results[statement.name] = None
                        if statement.op in _STARTS:
                            start = np.array(_STARTS[statement.op])
                            self.results[statement.name] = round_to(start, statement.dtype)
                running: dict[int, Any] = {}
                for _ in self._points(stage.axes):
                    self.known.clear()
                    for statement in stage.statements:
                        self._statement(statement, running)

    def _points(self, axes: Sequence[Any]) -> Iterator[None]:
        ranges = [range(evaluate(extent_of(axis), self.at)) for axis in axes]
        for point in itertools.product(*ranges):
            self.at.update((axis.name, i) for axis, i in zip(axes, point, strict=True))
            yield

    # -- statements ----------------------------------------------------------------------------

    def _statement(self, statement: Statement, running: dict[int, Any]) -> None:
        match statement:
            case Store():
                self._bind(statement.bindings)
                if self._holds(statement.conditions):
                    target, index = self.buffers[statement.buffer], self._dim(statement.index)
                    value = self._scalar(statement.value)
                    target[index] = _UPDATES[statement.update](target[index], value)
            case Reduce():
                self._reduce(statement, self._scalar(statement.value))
            case Scan():
                value = self._scalar(statement.value)
                start = round_to(np.array(_STARTS[statement.op]), statement.dtype)
                before = running.get(id(statement), start)
                after = before + value if statement.op == "sum" else before * value
                running[id(statement)] = after
                stored = before if statement.exclusive else after
                self.buffers[statement.buffer][self._dim(statement.index)] = stored

    def _reduce(self, reduce: Reduce, value: Any) -> None:
        old = self.results[reduce.name]
        match reduce.op:
            case "sum":
                new = old + value
            case "prod":
                new = old * value
            case "any":
                new = old | value
            case "all":
                new = old & value
            case "max" | "min":
                new = value if old is None else getattr(np, f"{reduce.op}imum")(old, value)
            case _:
                better = old is not None and (
                    value > old[0] if reduce.op == "argmax" else value < old[0]
                )
                new = (value, self._dim(reduce.index)) if old is None or better else old
        self.results[reduce.name] = new

    # -- scalars -------------------------------------------------------------------------------

    def _dim(self, dim: Dim) -> int:
        return evaluate(dim, self.at)

    def _holds(self, conditions: Sequence[Dim]) -> bool:
        return all(self._dim(condition) >= 0 for condition in conditions)

    def _bind(self, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            self.at[binding.symbol.name] = int(self._scalar(binding.value))

    def _scalar(self, scalar: Scalar) -> Any:
        if id(scalar) not in self.known:
            self.known[id(scalar)] = self._computed(scalar)
        return self.known[id(scalar)]

    def _computed(self, scalar: Scalar) -> Any:
        match scalar:
            case Number():
                return np.array(scalar.value).astype(scalar.dtype.numpy)
            case Ref():
                found = self.results[scalar.name]
                return np.int64(found[1]) if isinstance(found, tuple) else found
            case Load():
                self._bind(scalar.bindings)
                return self.buffers[scalar.buffer][self._dim(scalar.index)]
            case IndexValue():
                self._bind(scalar.bindings)
                return np.array(self._dim(scalar.index)).astype(scalar.dtype.numpy)
            case Guard():
                self._bind(scalar.bindings)
                inside = self._holds(scalar.conditions)
                return self._scalar(scalar.body if inside else scalar.otherwise)
            case Apply():
                operands = [as_oracle(self._scalar(operand)) for operand in scalar.operands]
                result = OPS[scalar.op].evaluate(ORACLE, *operands, **dict(scalar.attrs))
                return round_to(result, scalar.dtype)
        raise AssertionError(scalar)


def run(graph: BaseGraph, given: Mapping[str, Array], **sizes: int) -> list[Array]:
    native, _ = run_passes(graph, capabilities=CAPABILITIES)
    program, _ = lower(native, TABLE, LoweringOptions())
    with np.errstate(all="ignore"):
        return Interpreter(program, sizes)(given)


# -- what it runs ----------------------------------------------------------------------------------


def random(shape: Sequence[int], dtype: str = "float32") -> Array:
    rng = np.random.default_rng(sum(shape))
    numbers = rng.standard_normal(shape) if dtype.startswith("float") else rng.integers(0, 5, shape)
    return numbers.astype(DType.parse(dtype).numpy)


def mlp(g: ost.Graph) -> Any:
    x = g.layer_norm(g.input("x", (3, 8)), g.param("g", (8,)), g.param("b", (8,)))
    gate, up = (g.matmul(x, g.param(name, (8, 6))) for name in ("gate", "up"))
    return g.softmax(g.matmul(g.silu(gate) * up, g.param("down", (6, 4))))


def attention(g: ost.Graph) -> Any:
    q, k, v = (g.input(name, (1, 2, 4, 3)) for name in "qkv")
    scores = g.matmul(q, g.permute_dims(k, (0, 1, 3, 2))) * 0.5
    return g.matmul(g.softmax(scores), v)


def convolutions(g: ost.Graph) -> Any:
    x = g.input("x", (1, 3, 6, 5))
    y = g.relu(g.conv(x, g.param("w", (4, 3, 3, 3)), g.param("b", (4,)), padding=1, stride=2))
    z = g.conv(y, g.param("d", (4, 1, 2, 2)), groups=4)
    return g.concat([g.max_pool(y, (2, 2), stride=1), g.exp(z)], axis=1)


def gathers(g: ost.Graph) -> Any:
    x, ids = g.input("x", (5, 4)), g.input("ids", (3,), "int64")
    found = g.take(x, ids, axis=0)
    updated = g.scatter_nd(x, g.reshape(ids, (3, 1)), found * 2.0, mode="add")
    return [g.cumsum(updated, axis=0), g.argmax(x, axis=1), g.pad(found, ((1, 0), (0, 2)))]


def ranked(g: ost.Graph) -> Any:
    values, places = g.topk(g.exp(g.input("x", (4, 7))), 3)
    return [values * 2.0, places]


def integers(g: ost.Graph) -> Any:
    a, b = g.input("x", (3, 5), "int8"), g.param("w", (5, 4), "int8")
    return g.integer_matmul(a, b) + 1


@pytest.mark.parametrize("build", [mlp, attention, convolutions, gathers, ranked, integers])
def test_the_loop_ir_gives_what_the_oracle_gives(build: Callable[[ost.Graph], Any]) -> None:
    graph = ost.Graph(build.__name__)
    made = build(graph)
    graph.set_outputs(made if isinstance(made, list) else [made])
    leaves = {**graph.inputs, **graph.params}
    given = {name: random(v.shape, v.dtype.name) for name, v in leaves.items()}
    inputs = {name: given[name] for name in graph.inputs}
    params = {name: given[name] for name in graph.params}
    expected = reference.evaluate(graph, inputs, params)
    for got, want in zip(run(graph, given), expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_sizes_may_be_symbolic() -> None:
    graph = ost.Graph("rows")
    x = graph.input("x", (ost.Variable("N", min=1, max=9), 4))
    centred = x - graph.mean(x, axis=-1, keepdims=True)
    graph.set_outputs([graph.matmul(centred, graph.permute_dims(x, (1, 0)))])
    given = {"x": random((5, 4))}
    (want,) = reference.evaluate(graph, given)
    (got,) = run(graph, given, N=5)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_device_is_named_when_it_has_no_kernel() -> None:
    graph = ost.Graph("experts")
    x, ids = graph.input("x", (4, 3)), graph.input("ids", (4,), "int64")
    graph.set_outputs([graph.grouped_matmul(x, graph.param("w", (2, 3, 5)), ids)])
    with pytest.raises(UnsupportedOpError, match="the interpreter has no kernel for these nodes"):
        lower(graph, TABLE, LoweringOptions())


def test_a_device_without_a_rule_for_it_fuses_no_matmuls_horizontally() -> None:
    graph = ost.Graph("siblings")
    x = graph.input("x", (4, 8))
    graph.set_outputs([graph.matmul(x, graph.param(name, (8, 8))) for name in "ab"])
    program, _ = lower(graph, TABLE, LoweringOptions())
    assert [call.title for call in program.calls] == ["matmul", "matmul"]
