"""Combinations of parameters of which the fast tests run enough to have every pair of values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["every_second", "pairwise"]


def every_second(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of a value of each axis, every second of them marked as slow, in turn.

    For axes that hardly depend on each other: each value meets half of the others.
    """
    return [
        pytest.param(
            *(axis[number] for axis, number in zip(axes, numbers, strict=True)),
            marks=[pytest.mark.slow] if sum(numbers) % 2 else [],
        )
        for numbers in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of a value of each axis, for ``pytest.mark.parametrize``.

    Two values of different axes meet in at least one of those that are not marked as slow. Of
    defects that depend on parameters, most depend on one or two of them (Kuhn, Wallace and Gallo,
    "Software Fault Interactions and Implications for Software Testing", 2004).
    """
    combinations = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = {pair for numbers in combinations for pair in _pairs(numbers)}
    fast = set()
    while missing:
        best = max(combinations, key=lambda numbers: len(missing & set(_pairs(numbers))))
        fast.add(best)
        missing -= set(_pairs(best))
    return [
        pytest.param(
            *(axis[number] for axis, number in zip(axes, numbers, strict=True)),
            marks=[] if numbers in fast else [pytest.mark.slow],
        )
        for numbers in combinations
    ]


def _pairs(numbers: Sequence[int]) -> Iterable[tuple[tuple[int, int], ...]]:
    return itertools.combinations(enumerate(numbers), 2)
