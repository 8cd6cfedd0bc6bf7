"""Packs of neighbouring elements: the indices at which they begin at aligned places."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.clike.runs import begins_aligned, is_same
from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.target import CudaTarget
from ostinato.variables import Dim, Symbol, axis, floor_div, remainder, symbols
from tests.backends.cuda.render.recipe_kernels import kernels_of
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.registered import open_session


def _symbol(dim: Dim) -> Symbol:
    (found,) = symbols(dim)
    return found


COLUMN, ROW = axis("column", 64), axis("row", 10)

#: Indices, and whether 8 neighbours along the column are neighbours in memory.
INDICES: dict[str, tuple[Dim, bool]] = {
    "a row": (64 * ROW + COLUMN, True),
    "an odd pitch": (65 * ROW + COLUMN, False),
    "an odd start": (64 * ROW + COLUMN + 3, False),
    "strides": (64 * ROW + 2 * COLUMN, False),
    "constant": (64 * ROW, False),
    "half of a row": (32 * ROW + remainder(COLUMN, 32), True),
    "the other half": (64 * ROW + remainder(COLUMN + 32, 64), True),
    "halves far apart": (remainder(COLUMN, 32) + 640 * floor_div(COLUMN, 32), True),
    "a part that ends within": (remainder(COLUMN, 12), False),
    "turned by a few": (remainder(COLUMN + 4, 64), False),
    "quotients within": (COLUMN + 8 * floor_div(COLUMN, 4), False),
    "twice": (COLUMN + remainder(COLUMN, 32), False),
}


#: Indices that are the same for 8 neighbours along the column.
SAME: dict[str, Dim] = {
    "of the row": 64 * ROW,
    "a number": 7,
    "a word of bits": 2 * ROW + floor_div(COLUMN, 32),
    "a group": floor_div(COLUMN + 8, 8),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_for_neighbours(name: str) -> None:
    assert is_same(SAME[name], _symbol(COLUMN), 8)
    assert not begins_aligned(SAME[name], _symbol(COLUMN), 8)


@pytest.mark.parametrize(
    "index", [COLUMN, floor_div(COLUMN, 4), floor_div(COLUMN + 4, 8), remainder(COLUMN, 8)]
)
def test_not_the_same_for_neighbours(index: Dim) -> None:
    assert not is_same(index, _symbol(COLUMN), 8)


def test_masks_of_bits_are_read_by_words() -> None:
    g = ost.Graph("mask")
    logits, allowed = g.input("logits", (8, 128_256)), g.input("allowed", (8, 4008), "uint32")
    g.set_outputs([g.mask_tokens(logits, allowed)])
    (kernel,) = kernels_of(g)
    assert isinstance(kernel, CudaLoopNest)
    assert "ost::pack<float, 4>::load(" in kernel.source(CudaTarget.of_arch("sm_90"))


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
def test_rows_at_places_that_follow_from_data_are_read_by_neighbours() -> None:
    """A row whose place is the same for all of it; elements with places of their own are not."""
    target, session, loads = CudaTarget.of_arch("sm_90"), open_session("cudaemu"), []
    rng = np.random.default_rng(0)
    given = {"ids": rng.integers(0, 640, 640).astype(np.int32)}
    for along in (0, 1):
        g = ost.Graph("taken")
        table, ids = g.input("table", (640, 640), "bfloat16"), g.input("ids", (640,), "int32")
        g.set_outputs([g.multiply(g.take(table, ids, axis=along), 2)])
        (kernel,) = kernels_of(g)
        loads.append("ost::pack<unsigned short, 8>::load(" in kernel.source(target))
        given["table"] = rng.standard_normal((640, 640)).astype(table.dtype.numpy)
        (found,) = session.compile(g).run(given)
        np.testing.assert_array_equal(found, given["table"].take(given["ids"], along) * 2)
    assert loads == [True, False]


@pytest.mark.parametrize("name", INDICES)
def test_neighbours(name: str) -> None:
    index, expected = INDICES[name]
    assert begins_aligned(index, _symbol(COLUMN), 8) == expected
