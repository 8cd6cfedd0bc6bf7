"""Every op, on every dtype that it takes, against the float64 oracle."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.ir.graph import Value
from ostinato.ops import OPS
from tests.devices.registered import open_session

from .build import OPTIMISED, BuildCases, Case, cases_of
from .compare import check_against_oracle
from .draw import Draw
from .recipes import recipes
from .test_special_values import ELEMENTWISE, ELSEWHERE, later_integers

RECIPES = recipes()

#: Draws of operands, of shapes that differ, for the first dtype of an op; elsewhere there is one.
DRAWS = {(name, dtypes[0]): 2 for name, (_, dtypes) in RECIPES.items()}


def test_every_op_has_a_recipe() -> None:
    """Ops with nested graphs aside, which ``tests/control`` is about."""
    assert sorted({*RECIPES, "cond", "loop"}) == sorted(OPS)


def make_case(name: str, dtype: str, options: ost.CompileOptions = OPTIMISED) -> Case:
    """A graph that applies an op a few times."""
    recipe, _ = RECIPES[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    graph = ost.Graph(name)
    draw = Draw(graph, rng)
    outputs: list[Value] = []
    draws = DRAWS.get((name, dtype), 1) if options is OPTIMISED else 1
    for _ in range(draws):
        made = recipe(draw, dtype)
        outputs += made if isinstance(made, list | tuple) else [made]
    graph.set_outputs(outputs)
    return Case(graph, draw.arrays, (options,))


@pytest.fixture(scope="module")
def sessions(device: str, build_cases: BuildCases) -> dict[bool, ost.Session]:
    """By whether graphs are optimised: of two threads, and of one."""
    build_cases(make_case)
    return {optimise: open_session(device, threads=1 + optimise) for optimise in (False, True)}


def cases() -> Iterator[Any]:
    """A plain run has elementwise ops with those integers that it does not have in
    ``test_special_values.py``, and with the first dtype.
    """
    for case in cases_of(RECIPES):
        name, dtype, _ = case.values
        there = name in ELEMENTWISE and name not in ELSEWHERE and DType.parse(dtype).is_integer
        if there and dtype != RECIPES[name][1][0] and dtype not in later_integers(name):
            yield pytest.param(*case.values, marks=pytest.mark.slow, id=case.id)
        else:
            yield case


@pytest.mark.parametrize(("name", "dtype", "options"), [*cases()])
def test_op(
    name: str, dtype: str, options: ost.CompileOptions, sessions: dict[bool, ost.Session]
) -> None:
    case = make_case(name, dtype, options)
    check_against_oracle(case.graph, case.inputs, [(sessions[options.optimize], options)])
