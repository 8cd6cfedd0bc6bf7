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
