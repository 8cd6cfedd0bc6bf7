"""Outputs of graphs, and those that they refuse."""

from __future__ import annotations

import pytest

import ostinato as ost


@pytest.mark.parametrize("outputs", [3, None, 0.5])
def test_outputs_that_are_no_list(outputs: object) -> None:
    g = ost.Graph("g")
    x = g.input("x", (2,))
    g.set_outputs([x])
    with pytest.raises(ost.GraphError, match="a list of values or as a mapping"):
        g.set_outputs(outputs)
    assert list(g.outputs.values()) == [x]


def test_variables_of_a_size_are_noted_in_one_order() -> None:
    """By name, not by hashes of this process: stored programs take their values in this order."""
    names = ["s86", "s27", "b", "s77", "a", "zz", "m"]
    first, *others = (ost.Variable(name, 1, 64) for name in names)
    g = ost.Graph("g")
    g.input("x", (first, sum(others, start=first) * 2))
    assert list(g.variables) == ["s86", *sorted(names[1:])]
