"""The rule table as a device hands it in; ``tests/devices/loops`` is a whole device with one."""

from __future__ import annotations

import pytest

import ostinato as ost
from ostinato.errors import UnsupportedOpError
from ostinato.lower.lowering import LoweringOptions, lower
from ostinato.lower.program import Role
from ostinato.lower.rules.table import RuleTable
from tests.devices.loops.rules import TABLE, LibraryCall

BARE = RuleTable("the bare device")


def test_the_device_is_named_when_it_has_no_kernel() -> None:
    graph = ost.Graph("experts")
    x, ids = graph.input("x", (4, 3)), graph.input("ids", (4,), "int64")
    graph.set_outputs([graph.grouped_matmul(x, graph.param("w", (2, 3, 5)), ids)])
    with pytest.raises(UnsupportedOpError, match="the bare device has no kernel for these nodes"):
        lower(graph, BARE, LoweringOptions())


def test_a_device_without_a_rule_for_it_fuses_no_matmuls_horizontally() -> None:
    graph = ost.Graph("siblings")
    x = graph.input("x", (4, 8))
    graph.set_outputs([graph.matmul(x, graph.param(name, (8, 8))) for name in "ab"])
    program, _ = lower(graph, TABLE, LoweringOptions())
    assert [call.title for call in program.calls] == ["matmul", "matmul"]


def test_a_rule_of_the_device_comes_before_the_shared_one() -> None:
    graph = ost.Graph("override")
    graph.set_outputs([graph.matmul(graph.input("x", (4, 8)), graph.input("y", (8, 2)))])
    table = RuleTable("a device", {"matmul": TABLE.rules["topk"]})
    program, _ = lower(graph, table, LoweringOptions())
    assert [type(call.kernel) for call in program.calls] == [LibraryCall]


def _call(graph: ost.Graph) -> tuple[LibraryCall, list[Role]]:
    program, _ = lower(graph, TABLE, LoweringOptions())
    (call,) = [c for c in program.calls if isinstance(c.kernel, LibraryCall)]
    assert isinstance(call.kernel, LibraryCall)
    return call.kernel, [buffer.role for buffer in call.buffers]


def test_a_library_call_reads_and_writes_memory_of_the_caller() -> None:
    graph = ost.Graph("direct")
    graph.set_outputs(graph.topk(graph.input("x", (4, 7)), 3))
    _, roles = _call(graph)
    assert roles == [Role.INPUT, Role.OUTPUT, Role.OUTPUT]


def test_a_library_call_gets_a_view_in_memory_of_its_own() -> None:
    graph = ost.Graph("view")
    graph.set_outputs(graph.topk(graph.permute_dims(graph.input("x", (7, 4)), (1, 0)), 3))
    _, roles = _call(graph)
    assert roles == [Role.TEMP, Role.OUTPUT, Role.OUTPUT]


def test_a_library_call_gets_an_operand_that_is_given_twice_once() -> None:
    graph = ost.Graph("twice")
    x = graph.input("x", (2, 4, 4))
    ids = graph.input("ids", (4,), "int64")
    graph.set_outputs([graph.grouped_matmul(graph.reshape(x[:1], (4, 4)), x, ids)])
    kernel, roles = _call(graph)
    assert len(roles) == len(set(kernel.operands)) + len(kernel.results)
