"""Mutated models: an error of ours or a right result, whatever is wrong with them."""

from __future__ import annotations

import pytest

from tests.frontends.mutation.hunt import hunt

#: Cases of one slow test.
CHUNK = 2000


def test_mutations() -> None:
    result = hunt(0, 150, nodes=False)
    assert not result.findings, result
    assert result.outcomes["right"] >= 15, result  # the hunt reaches beyond the checks


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, CHUNK))
def test_hunt(first: int) -> None:
    result = hunt(first, first + CHUNK, nodes=True, processes=2)
    assert not result.findings, result
