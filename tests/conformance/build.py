"""The graphs of many tests, built at once for a device whose compiler is better called rarely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import numpy as np
import pytest

import ostinato as ost
from tests.devices.catalogue import catalogued

__all__ = ["OPTIMISED", "UNOPTIMISED", "BuildCases", "Case", "build_cases", "cases_of"]

OPTIMISED = ost.CompileOptions(verify=True)
UNOPTIMISED = ost.CompileOptions(optimize=False, verify=True)


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


def cases_of(recipes: Mapping[str, tuple[Any, Sequence[str]]]) -> list[Any]:
    """Parameters ``(name, dtype, options)`` of recipes and their dtypes.

    Without optimisation a plain run has the first dtype of each: the other dtypes differ in their
    kernels, which the optimised graphs have too.
    """
    return [
        pytest.param(
            name,
            dtype,
            options,
            marks=[pytest.mark.slow] if options is UNOPTIMISED and dtype != dtypes[0] else [],
            id=f"{name}-{dtype}-{'optimised' if options is OPTIMISED else 'plain'}",
        )
        for name, (_, dtypes) in recipes.items()
        for dtype in dtypes
        for options in (OPTIMISED, UNOPTIMISED)
    ]


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
