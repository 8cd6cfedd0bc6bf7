"""Fusion decisions: the kernels that a graph becomes, and why some nodes stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.backends.cpu.rules.table import CpuLowering, lower_for_cpu
from ostinato.backends.cpu.rules.tiles import RegisterFile
from ostinato.lower.loopir.text import kernel_text
from ostinato.lower.program import Call, Program, Role
from ostinato.passes.pipeline import run_passes

REGISTERS = RegisterFile(vector_bytes=64, count=32)


def lowered(graph: ost.Graph) -> tuple[Program, list[str]]:
    """The program, and why fusions were refused."""
    ready, _ = run_passes(graph, capabilities=CAPABILITIES)
    program, refused = lower_for_cpu(ready, CpuLowering(REGISTERS))
    return program, [refusal.why for refusal in refused]


def titles(calls: list[Call]) -> list[str]:
    return [call.title for call in calls]


def kernels(build: Callable[[ost.Graph], Any]) -> Program:
    graph = ost.Graph("graph")
    made = build(graph)
    graph.set_outputs(made if isinstance(made, list) else [made])
    return lowered(graph)[0]


# -- what is one kernel ----------------------------------------------------------------------------


def test_a_chain_of_elementwise_ops_is_one_kernel() -> None:
    program = kernels(lambda g: g.tanh(g.exp(g.input("x", (4, 5))) * 2.0 + g.input("y", (5,))))
    assert titles(program.calls) == ["exp+multiply+add+tanh"]


def test_softmax_is_one_kernel_that_keeps_its_exponentials() -> None:
    program = kernels(lambda g: g.softmax(g.input("x", (8, 64))))
    assert titles(program.calls) == ["max+subtract+exp+sum+divide"]
    text = kernel_text(program.calls[0].kernel)
    assert text.count("exp f32") == 1
    assert text.count("stage for") == 3


def test_a_norm_is_one_kernel() -> None:
    def build(g: ost.Graph) -> ost.Value:
        return g.layer_norm(g.input("x", (8, 64)), g.param("w", (64,)), g.param("b", (64,)))

    assert len(kernels(build).calls) == 1


def test_what_follows_a_matmul_is_its_epilogue() -> None:
    def build(g: ost.Graph) -> ost.Value:
        product = g.matmul(g.input("x", (8, 64)), g.param("w", (64, 32)))
        return g.gelu(product + g.param("b", (32,))) + g.input("r", (8, 32))

    program = kernels(build)
    assert titles(program.calls) == ["matmul+add+gelu"]
    assert titles(program.prepare) == ["pack"]


def test_heads_are_read_where_the_projection_left_them() -> None:
    def build(g: ost.Graph) -> ost.Value:
        x = g.input("x", (2, 5, 48))
        q, k, v = (
            g.permute_dims(g.reshape(part, (2, 5, 2, 8)), (0, 2, 1, 3))
            for part in g.split(x, 3, -1)
        )
        scores = g.matmul(q, g.permute_dims(k, (0, 1, 3, 2))) * 0.3
        return g.matmul(g.softmax(scores, -1), v)

    program = kernels(build)
    assert titles(program.calls) == ["attention"]
    assert [b.role for b in program.calls[0].reads()].count(Role.INPUT) == 1


def test_views_cost_no_kernel() -> None:
    def build(g: ost.Graph) -> ost.Value:
        x = g.input("x", (4, 6))
        turned = g.flip(g.permute_dims(g.reshape(x, (2, 2, 6)), (2, 0, 1)), 0)
        return g.exp(turned[1:, :, ::2])

    assert titles(kernels(build).calls) == ["exp"]


def test_a_concat_writes_each_part_in_its_place() -> None:
    def build(g: ost.Graph) -> ost.Value:
        return g.concat([g.input("x", (4, 3)), g.exp(g.input("y", (2, 3)))], 0)

    program = kernels(build)
    assert titles(program.calls) == ["concat", "concat"]
    assert "exp" in kernel_text(program.calls[1].kernel)
    assert {b.role for call in program.calls for b in call.buffers} == {Role.INPUT, Role.OUTPUT}


# -- what stays apart ------------------------------------------------------------------------------


def _other_positions(g: ost.Graph) -> ost.Value:
    y = g.exp(g.input("x", (4, 64)))
    return g.permute_dims(y, (1, 0)) + g.reshape(y, (64, 4))


def _two_matmuls(g: ost.Graph) -> ost.Value:
    x, y = g.input("x", (8, 8)), g.input("y", (8, 8))
    return g.matmul(x, g.param("w", (8, 8))) + g.matmul(y, g.param("v", (8, 8)))


def _long_rows(g: ost.Graph) -> ost.Value:
    return g.softmax(g.input("x", (2, 1 << 17)))


def _params_alone(g: ost.Graph) -> ost.Value:
    return g.exp(g.param("w", (8, 8))) + g.input("x", (8, 8))


def _product_sums(g: ost.Graph) -> ost.Value:
    y = g.matmul(g.input("x", (8, 8)), g.param("w", (8, 8)))
    return y / g.sum(y, axis=-1, keepdims=True)


def _cycle(g: ost.Graph) -> ost.Value:
    y = g.exp(g.input("x", (8, 8)))
    return y * g.cumsum(y, 0)


@pytest.mark.parametrize(
    ("build", "calls", "why"),
    [
        (_other_positions, ["exp", "add"], "one reads the other at other positions"),
        (_two_matmuls, ["matmul", "matmul+add"], "both need a kernel of their own"),
        (_long_rows, ["max", "subtract+exp", "sum", "divide"], "too few rows to run in parallel"),
        (_params_alone, ["add"], "one depends on params alone, and runs once"),
        (
            _product_sums,
            ["matmul", "sum+divide"],
            "a row's statistic after a matmul or convolution",
        ),
        (_cycle, ["exp", "cumsum", "multiply"], "something outside runs between them"),
    ],
)
def test_refused(build: Callable[[ost.Graph], ost.Value], calls: list[str], why: str) -> None:
    graph = ost.Graph("graph")
    graph.set_outputs([build(graph)])
    program, refused = lowered(graph)
    assert titles(program.calls) == calls
    assert any(reason.startswith(why) for reason in refused), refused


# -- what runs once --------------------------------------------------------------------------------


def test_work_on_params_alone_is_prepared() -> None:
    program = kernels(_params_alone)
    assert titles(program.prepare) == ["exp"]
    assert [b.role for b in program.prepare[0].writes()] == [Role.PREPARED]


def test_packing_takes_in_the_work_on_a_weight() -> None:
    def build(g: ost.Graph) -> ost.Value:
        return g.matmul(g.input("x", (8, 8)), g.exp(g.param("w", (8, 8))))

    program = kernels(build)
    assert titles(program.prepare) == ["pack"]
    assert "exp" in kernel_text(program.prepare[0].kernel)


def test_a_buffer_that_a_run_writes_is_never_prepared() -> None:
    """A param scattered into by an input: its copy is taken at every run."""

    def build(g: ost.Graph) -> ost.Value:
        table = g.param("table", (5, 3))
        return g.exp(g.scatter(table, g.input("i", (2, 3), "int64"), g.input("u", (2, 3)), 0))

    program = kernels(build)
    assert titles(program.prepare) == []
    assert titles(program.calls) == ["copy", "scatter", "exp"]


# -- states ----------------------------------------------------------------------------------------


def _step(g: ost.Graph, state: ost.Value) -> ost.Value:
    update, at = g.input("u", (1, 4)), g.input("i", (), "int64")
    return g.dynamic_update_slice(state, update, [at, 0])


def test_a_state_is_updated_in_place() -> None:
    graph = ost.Graph("cache")
    cache = graph.state("cache", (100, 4))
    new = _step(graph, cache)
    graph.assign(cache, new)
    graph.set_outputs([graph.sum(new, axis=0)])
    program, _ = lowered(graph)
    assert titles(program.calls) == ["dynamic_update_slice", "sum"]
    assert [b.role for b in program.calls[0].writes()] == [Role.STATE]


@pytest.mark.parametrize("reader", ["output", "sum", "state"])
def test_a_state_whose_old_value_is_read_is_copied(reader: str) -> None:
    graph = ost.Graph("cache")
    cache = graph.state("cache", (100, 4))
    other = graph.state("other", (100, 4))
    graph.assign(cache, _step(graph, cache))
    if reader == "state":
        graph.assign(other, cache)
    graph.set_outputs([cache if reader == "output" else graph.sum(cache), graph.input("z", (1,))])
    program, _ = lowered(graph)
    update = titles(program.calls).index("dynamic_update_slice")
    assert [b.role for b in program.calls[update].writes()] == [Role.TEMP]
