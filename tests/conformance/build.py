"""The graphs of many tests, built at once for a device whose compiler is better called rarely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import ostinato as ost

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
    """Compile all cases of a module ahead, on the emulated CUDA device; elsewhere, do nothing."""

    def build(make_case: Callable[..., Case | None]) -> None:
        if device != "cudaemu":
            return
        from tests.devices.cuda_emulation.backend import build_ahead

        cases = []
        for item in request.session.items:
            params = dict(getattr(getattr(item, "callspec", None), "params", {}))
            if item.path == request.path and params.pop("device", None) == device:
                case = make_case(**params)
                if case is not None:
                    cases += [(case.graph, options) for options in case.options]
        build_ahead(cases)

    return build
