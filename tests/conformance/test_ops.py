"""Every op, on every dtype that it takes, against the float64 oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from ostinato.ops import OPS
from tests.devices.registered import open_session

from .build import BuildCases, Case
from .compare import check_against_oracle
from .draw import Draw
from .recipes import recipes

RECIPES = recipes()

#: Two draws of operands for the first dtype of an op, one for each other: their shapes differ, too.
DRAWS = {(name, dtypes[0]): 2 for name, (_, dtypes) in RECIPES.items()}
OPTIMISED = ost.CompileOptions(verify=True)
UNOPTIMISED = ost.CompileOptions(optimize=False, verify=True)


def test_every_op_has_a_recipe() -> None:
    """Ops with nested graphs aside, which ``tests/control`` is about."""
    assert sorted({*RECIPES, "cond", "loop"}) == sorted(OPS)


def make_case(name: str, dtype: str) -> Case:
    """A graph that applies an op a few times."""
    recipe, _ = RECIPES[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    graph = ost.Graph(name)
    draw = Draw(graph, rng)
    outputs: list[Value] = []
    for _ in range(DRAWS.get((name, dtype), 1)):
        made = recipe(draw, dtype)
        outputs += made if isinstance(made, list | tuple) else [made]
    graph.set_outputs(outputs)
    return Case(graph, draw.arrays, (OPTIMISED, UNOPTIMISED))


@pytest.fixture(scope="module")
def sessions(device: str, build_cases: BuildCases) -> dict[int, ost.Session]:
    build_cases(make_case)
    return {threads: open_session(device, threads=threads) for threads in (1, 2)}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, (_, dtypes) in RECIPES.items() for dtype in dtypes]
)
def test_op(name: str, dtype: str, sessions: dict[int, ost.Session]) -> None:
    case = make_case(name, dtype)
    configurations = [(sessions[2], OPTIMISED), (sessions[1], UNOPTIMISED)]
    check_against_oracle(case.graph, case.inputs, configurations)
