"""Every op, on every dtype that it takes, against the float64 oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.ops import OPS
from tests.devices.registered import open_session

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


@pytest.fixture(scope="module")
def sessions(device: str) -> dict[int, ost.Session]:
    return {threads: open_session(device, threads=threads) for threads in (1, 2)}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, (_, dtypes) in RECIPES.items() for dtype in dtypes]
)
def test_op(name: str, dtype: str, sessions: dict[int, ost.Session]) -> None:
    recipe, _ = RECIPES[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    graph = ost.Graph(name)
    draw = Draw(graph, rng)
    outputs = []
    for _ in range(DRAWS.get((name, dtype), 1)):
        made = recipe(draw, dtype)
        outputs += made if isinstance(made, list | tuple) else [made]
    graph.set_outputs(outputs)
    check_against_oracle(graph, draw.arrays, [(sessions[2], OPTIMISED), (sessions[1], UNOPTIMISED)])
