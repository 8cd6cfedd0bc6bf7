"""Conditions of exports on sizes, and the Variables of programs, without PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ModelFormatError
from ostinato.frontends.torch.assembly import build_graph
from ostinato.frontends.torch.guards import guard_facts
from ostinato.frontends.torch.program import (
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    OutputSpec,
    Program,
    ProgramNode,
    Ref,
    TensorMeta,
)
from ostinato.frontends.torch.symbols import SymbolTable
from ostinato.ir.facts import check_facts

USERS = (
    InputSpec("x", USER_INPUT, TensorMeta("float32", ("s0", 4), (4, 1)), "x"),
    InputSpec("d_a_0", USER_INPUT, TensorMeta("float32", ("s1",), (1,)), "d.a.0"),
)


def holds(guard: str, n: int, m: int = 1) -> bool:
    """Whether the facts of a guard hold for ``s0 = n`` and ``s1 = m``."""
    table = SymbolTable({})
    table.define("s0", ost.Variable("n", 0, 100))
    table.define("s1", ost.Variable("m", 0, 100))
    try:
        check_facts(guard_facts(guard, USERS, table), {"n": n, "m": m})
    except ost.VariableError as error:
        assert "the export holds for" in str(error)
        return False
    return True


X, A = "L['x'].size()[0]", "L['d']['a'][0].size()[0]"


@pytest.mark.parametrize(
    ("guard", "condition"),
    [
        (f"{X} == {A}", lambda n, m: n == m),
        (f"{X} != {A}", lambda n, m: n != m),
        (f"{X} != 1", lambda n, m: n != 1),
        (f"({X} % 3) == 0", lambda n, m: n % 3 == 0),
        (f"2 <= {X} and {X} <= 5", lambda n, m: 2 <= n <= 5),
        (f"2 <= {X} < 5", lambda n, m: 2 <= n < 5),
        (f"{X} > 3 or {A} == 1", lambda n, m: n > 3 or m == 1),
        (f"Or({X} > 3, And(Eq({A}, 1), Ne({X}, 2)))", lambda n, m: n > 3 or (m == 1 and n != 2)),
        (f"({X}*{X}) // 4 >= {A}", lambda n, m: n * n // 4 >= m),
        (f"{X}*L['x'].size()[1] >= 8", lambda n, m: n * 4 >= 8),
        (f"L['x'].stride()[0] == 4 and {X} >= 0", lambda n, m: True),
        ("True", lambda n, m: True),
    ],
)
def test_guards_are_facts(guard, condition):
    for n in range(7):
        for m in range(4):
            assert holds(guard, n, m) == condition(n, m), (n, m)


@pytest.mark.parametrize(
    "guard",
    ["L['y'].size()[0] == 1", f"not {X}", f"{X} in (1, 2)", "f(1)", "L['x'].size()[7] == 1"],
)
def test_guards_that_a_run_can_not_check_are_refused(guard):
    with pytest.raises(ost.UnsupportedOpError):
        holds(guard, 1)


@pytest.mark.parametrize("guard", ["", "1 +", "(" * 300, "x" * 200_000])
def test_text_that_is_no_guard(guard):
    with pytest.raises(ModelFormatError):
        holds(guard, 1)


def program(low: int, high: int | None, *guards: str) -> Program:
    """``x + x`` with an open size."""
    meta = TensorMeta("float32", ("s0", 4), (4, 1))
    node = ProgramNode("sum", "aten.add.Tensor", (Ref("x"), Ref("x")), {}, ("sum",), (meta,))
    spec = InputSpec("x", USER_INPUT, meta, "x")
    output = OutputSpec(Ref("sum"), USER_OUTPUT, "y")
    return Program("p", (spec,), (node,), (output,), {"s0": (low, high)}, guards=guards)


def doubled(compiled: ost.CompiledGraph, rows: int) -> None:
    (y,) = compiled.run({"x": np.ones((rows, 4), np.float32)})
    assert y.tolist() == [[2] * 4] * rows


def test_an_open_size_takes_any_number_that_the_export_allows():
    graph = build_graph(program(2, None), "p")
    assert str(graph.inputs["x"].type) == "f32[x_dim0,4]"
    compiled = ost.Session("cpu", threads=1).compile(graph)
    for rows in (2, 512, 700):
        doubled(compiled, rows)
    with pytest.raises(ost.OstinatoError):
        compiled.run({"x": np.ones((1, 4), np.float32)})


def test_a_guard_holds_for_sizes_beyond_the_first_bounds():
    compiled = ost.Session("cpu", threads=1).compile(
        build_graph(program(0, None, f"{X} % 2 == 0"), "p")
    )
    for rows in (2, 600):
        doubled(compiled, rows)
    for rows in (3, 601):
        with pytest.raises(ost.OstinatoError, match="% 2"):
            compiled.run({"x": np.ones((rows, 4), np.float32)})


def test_given_dims():
    n = ost.Variable("n", 1, 8)
    graph = build_graph(program(0, 6), "p", {"s0": n})
    compiled = ost.Session("cpu", threads=1).compile(graph)
    doubled(compiled, 6)
    with pytest.raises(ost.VariableError, match="at most 6"):
        compiled.run({"x": np.ones((7, 4), np.float32)})
    fixed = build_graph(program(0, None), "p", {"s0": 3})
    assert str(fixed.inputs["x"].type) == "f32[3,4]"
