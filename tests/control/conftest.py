"""Runs of graphs with control flow on each device, held against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.ir.text import graph_constants
from ostinato.ir.verify import verify
from ostinato.ops.parser import parse_graph
from tests.devices.registered import open_session

Arrays = Mapping[str, Any]

#: Checks the outputs and states of a graph, for one run after the other.
Check = Callable[..., None]


@pytest.fixture(params=[True, False], ids=["optimised", "unoptimised"])
def check(request: pytest.FixtureRequest, device: str) -> Check:
    """Check a graph on a device, optimised or not."""
    optimize = request.param
    options = ost.CompileOptions(optimize=optimize, verify=True)

    def run(
        graph: ost.Graph,
        *runs: Arrays,
        params: Arrays | None = None,
        variables: Mapping[str, int] | None = None,
        rtol: float = 3e-6,
    ) -> None:
        verify(graph)
        read_back = parse_graph(str(graph), graph_constants(graph))
        assert str(read_back) == str(graph)
        compiled = open_session(device).compile(graph, params=params, options=options)
        states = None
        for inputs in runs:
            expected = reference.run(graph, inputs, params, states=states, variables=variables)
            found = compiled.run(inputs) if variables is None else _run(compiled, inputs, variables)
            for array, (name, wanted) in zip(found, expected.outputs.items(), strict=True):
                np.testing.assert_allclose(array, wanted, rtol, 1e-6, err_msg=name)
                assert array.dtype == wanted.dtype
            states = expected.states
            for name, wanted in states.items():
                held = compiled.read_handle(name)
                np.testing.assert_allclose(held, wanted, rtol, 1e-6, err_msg=f"state {name}")

    return run


def _run(compiled: Any, inputs: Arrays, variables: Mapping[str, int]) -> list[Any]:
    return list(compiled.run(inputs, variables=variables))
