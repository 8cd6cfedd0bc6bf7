"""Comparing a compiled graph with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ostinato as ost

#: Relative to the largest magnitude in sight: a few roundings of each dtype.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 6e-3, "bfloat16": 5e-2}

Array = np.ndarray[Any, Any]


def assert_close(actual: Array, expected: Array, what: str, scale: float = 1.0) -> None:
    """Equal dtype and shape; integers equal, floats within a few roundings."""
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, expected {expected.shape}"
    name = str(expected.dtype)
    if name not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    wide, reference = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(reference), err_msg=what)
    magnitude = np.abs(reference[finite])
    bound = TOLERANCE[name] * (scale + (magnitude.max() if magnitude.size else 0.0))
    error = np.abs(wide[finite] - reference[finite])
    worst = error.max() if error.size else 0.0
    assert worst <= bound, f"{what}: off by {worst:.3g}, allowed {bound:.3g}"
    same = np.isnan(reference) | finite | (wide == reference)
    assert same.all(), f"{what}: infinities differ"


def check_against_oracle(
    graph: ost.Graph,
    inputs: Mapping[str, Array],
    sessions: Sequence[tuple[ost.Session, ost.CompileOptions]],
) -> None:
    """Every session's results are the oracle's."""
    expected = ost.reference.evaluate(graph, inputs)
    for session, options in sessions:
        compiled = session.compile(graph, options=options)
        actual = compiled.run(inputs)
        how = "optimised" if options.optimize else "unoptimised"
        for name, mine, truth in zip(graph.outputs, actual, expected, strict=True):
            assert_close(mine, truth, f"{name} ({how})\n{graph}")
