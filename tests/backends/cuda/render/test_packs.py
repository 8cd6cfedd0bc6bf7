"""Packs of neighbouring elements: the indices at which they begin at aligned places."""

from __future__ import annotations

import pytest

from ostinato.backends.common.clike.runs import begins_aligned
from ostinato.variables import Dim, Symbol, axis, floor_div, remainder, symbols


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


@pytest.mark.parametrize("name", INDICES)
def test_neighbours(name: str) -> None:
    index, expected = INDICES[name]
    assert begins_aligned(index, _symbol(COLUMN), 8) == expected
