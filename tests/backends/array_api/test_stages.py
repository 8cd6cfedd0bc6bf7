"""The division of graphs into stages and steps of the host."""

from __future__ import annotations

import numpy as np

import ostinato as ost
from ostinato.backends.array_api.lowering import lower_in_stages
from ostinato.backends.array_api.stages import HostStep, Stage, StagedGraph
from ostinato.ir.graph import Node
from ostinato.lower.program import Role


def binds_size(node: Node) -> bool:
    return node.op.binds_size


def test_a_graph_of_fixed_sizes_is_one_stage() -> None:
    g = ost.Graph("one")
    x = g.input("x", (3, 4))
    w = g.constant(np.arange(4, dtype=np.float32))
    g.set_outputs([g.exp(x) * w, g.sum(x) + 2.0])
    (stage,) = StagedGraph(g, binds_size).parts
    assert isinstance(stage, Stage)
    assert [node.op.name for node in stage.nodes] == ["exp", "multiply", "sum", "add"]
    assert set(stage.operands) == {x, w}
    assert not stage.sizes


def test_a_size_that_depends_on_data_ends_a_stage() -> None:
    g = ost.Graph("live")
    x = g.input("x", (7,))
    g.set_outputs([g.masked_select(x, g.greater(x, 0.0)) * 2.0])
    parts = StagedGraph(g, binds_size).parts
    assert [type(part) for part in parts] == [Stage, HostStep, Stage]
    assert parts[1].node.op.name == "bind_size"
    assert len(parts[2].sizes) == 1


def test_leaves_that_are_results_are_copied_by_the_last_stage() -> None:
    g = ost.Graph("passed")
    x = g.input("x", (2,))
    state = g.state("s", (2,), init=np.zeros(2, np.float32))
    g.assign(state, x)
    g.set_outputs([x, state])
    program, _ = lower_in_stages(g, binds_size)
    (call,) = program.calls
    assert isinstance(call.kernel, Stage)
    assert not call.kernel.nodes
    written = [buffer.role for buffer in call.writes()]
    assert sorted(role.value for role in written) == ["output", "output", "state"]


def test_a_number_that_gives_no_size_is_an_operand() -> None:
    """A stage is not compiled again for another position."""
    g = ost.Graph("position")
    position = ost.Variable("position", 0, 100)
    g.set_outputs([g.input("x", (3,)) + g.cast(g.dim_value(position), "float32")])
    (stage,) = StagedGraph(g, binds_size).parts
    assert isinstance(stage, Stage)
    assert stage.sizes == ()
    assert [value.node.op.name for value in stage.numbers] == ["dim_value"]


def test_a_number_that_gives_a_size_too_is_known_when_compiling() -> None:
    g = ost.Graph("length")
    n = ost.Variable("n", 1, 100)
    g.set_outputs([g.input("x", (n,)) + g.cast(g.dim_value(n), "float32")])
    (stage,) = StagedGraph(g, binds_size).parts
    assert isinstance(stage, Stage)
    assert stage.sizes == ("n",)
    assert not stage.numbers


def test_values_between_stages_have_buffers() -> None:
    g = ost.Graph("between")
    x = g.input("x", (7,))
    doubled = x * 2.0
    found = g.masked_select(x, g.greater(x, 0.0))
    g.set_outputs([found, g.sum(found) + doubled])
    program, _ = lower_in_stages(g, binds_size)
    roles = {buffer.role for buffer in program.values.values()}
    assert Role.TEMP in roles
    assert program.facts is not None
