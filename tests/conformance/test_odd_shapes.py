"""Every op on odd shapes: one long row or column, seven dimensions, none at all."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ops import OPS
from ostinato.ops.base import Elementwise
from tests.devices.registered import open_session

from .build import BuildCases, Case
from .compare import check_against_oracle
from .draw import Draw
from .motifs import MOTIFS
from .recipes import recipes

RECIPES = {**recipes(), **MOTIFS}

LONG = ((1, 100003), (100003, 1), (100003,), (2, 1, 20011), (20011, 1, 2), (1, 1, 1, 65537))
DEEP = ((3, 1, 5, 1, 7), (2, 3, 1, 2, 1, 3), (1, 2, 1, 3, 2, 1, 2), (1, 1, 1, 1, 1, 1))
EMPTY = ((0,), (3, 0), (0, 5), (2, 0, 3), (0, 0), (1, 0, 1), (4, 1, 0, 2))
FLAT = ((), (1,), (1, 1), (1, 1, 1, 1))


class OddDraw(Draw):
    """Draws its shapes from a list; what fits no rank asked for is drawn as usual."""

    def __init__(self, graph: ost.Graph, rng: np.random.Generator, shapes: object) -> None:
        super().__init__(graph, rng)
        self.shapes = shapes

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        high = 7 if high == 4 else high
        fits = [s for s in self.shapes if low <= len(s) <= high]  # type: ignore[attr-defined]
        return self.choice(fits) if fits else super().shape(low, high)


#: Tables of gigabytes, and products beyond any float.
_NOT_LONG = frozenset({"take", "cumprod"})

#: Kernels that take seconds to compile.
_LENGTHY = frozenset({"igamma", "igammac"})


def make_case(name: str, shapes: object) -> Case | None:
    """A graph that applies an op to operands of odd shapes, if they are not too large."""
    if shapes is LONG and name in _NOT_LONG:
        return None
    recipe, dtypes = RECIPES[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    graph = ost.Graph(name)
    draw = OddDraw(graph, rng, shapes)
    usual = [d for d in ("float32", "int8", "bool", "bfloat16") if d in dtypes]
    # The first of them with long and with no elements, the second with many and with no dims.
    first, *second = (usual or dtypes)[:2]
    made = recipe(draw, first if shapes in (LONG, EMPTY) or not second else second[0])
    graph.set_outputs(made if isinstance(made, list | tuple) else [made])
    return Case(graph, draw.arrays, (ost.CompileOptions(verify=True),))


@pytest.fixture(scope="module")
def session(device: str, build_cases: BuildCases) -> ost.Session:
    build_cases(make_case)
    return open_session(device, threads=2)


SHAPES = {"long": LONG, "deep": DEEP, "empty": EMPTY, "flat": FLAT}


def cases() -> Iterator[Any]:
    """Of elementwise ops, whose loops are the same, a plain run has two kinds of shapes each."""
    elementwise = 0
    for name in RECIPES:
        kinds = [*SHAPES]
        if isinstance(OPS.get(name), Elementwise):
            kinds = [kinds[(elementwise + i) % 4] for i in range(4)]
            elementwise += 1
            quick = kinds[:2] if name not in _LENGTHY else ["empty", "flat"]
        else:
            quick = kinds
        for kind in kinds:
            marks = [] if kind in quick else [pytest.mark.slow]
            yield pytest.param(name, SHAPES[kind], id=f"{name}-{kind}", marks=marks)


@pytest.mark.parametrize(("name", "shapes"), [*cases()])
def test_op(name: str, shapes: object, session: ost.Session) -> None:
    case = make_case(name, shapes)
    if case is None:
        pytest.skip("too large")
    check_against_oracle(case.graph, case.inputs, [(session, case.options[0])])
