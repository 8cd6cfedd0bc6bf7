"""The graphs of many tests, built at once for a device whose compiler is better called rarely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import numpy as np
import pytest

import ostinato as ost
from tests.devices.catalogue import catalogued

__all__ = ["BuildCases", "Case", "build_cases"]


class Case(NamedTuple):
    """A graph to compile and run.

    Attributes:
        graph: the graph.
        inputs: of a run.
        options: with which it is compiled.
    """

    graph: ost.Graph
    inputs: Mapping[str, np.ndarray[Any, Any]]
    options: tuple[ost.CompileOptions, ...]


#: Takes the function that makes a case, if there is one, of a test's other parameters.
BuildCases = Callable[[Callable[..., Case | None]], None]


@pytest.fixture(scope="module")
def build_cases(device: str, request: pytest.FixtureRequest) -> BuildCases:
    """Compile all cases of a module ahead, on a device that has a way to; elsewhere, do nothing."""
    build_ahead = catalogued(device).build_ahead

    def build(make_case: Callable[..., Case | None]) -> None:
        if not build_ahead:
            return
        cases = []
        for item in request.session.items:
            params = dict(getattr(getattr(item, "callspec", None), "params", {}))
            if item.path == request.path and params.pop("device", None) == device:
                case = make_case(**params)
                if case is not None:
                    cases += [(case.graph, options) for options in case.options]
        EntryPoint("build_ahead", build_ahead, "").load()(cases)

    return build
