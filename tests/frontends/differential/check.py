"""Graphs drawn by number, and compared: ``python -m tests.frontends.differential.check 0 100``."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, printer

import ostinato as ost
from tests.frontends.differential.drawing import Array, Drawing, runtime_session
from tests.frontends.differential.recipes import RECIPES

__all__ = ["check", "draw"]

#: The number of assignments of sizes that a graph with dynamic dims runs with.
ASSIGNMENTS = 3

#: A few roundings of each element type, relative to the largest number in sight.
_TOLERANCE = {"float32": 3e-5, "float64": 1e-10}


def draw(number: int) -> tuple[ModelProto, list[dict[str, Array]]]:
    """The graph ``number`` and its inputs, by assignment of sizes."""
    rng = np.random.default_rng(number)
    drawing = Drawing(rng, dynamic=bool(rng.random() < 0.6), assignments=ASSIGNMENTS)
    wanted, names = int(rng.integers(1, 16)), sorted(RECIPES)
    for _ in range(4 * wanted):
        RECIPES[names[int(rng.integers(len(names)))]](drawing)
        if len(drawing.nodes) >= wanted:
            break
    return drawing.finished()


def check(number: int, sessions: Sequence[ost.Session]) -> str:
    """Compare the graph ``number``; ``""`` or the reason why Ostinato refuses it.

    Raises:
        AssertionError: a result differs.
    """
    model, runs = draw(number)
    if not model.graph.node:
        return ""
    expected, allowed = _expected(model, runs, number)
    try:
        graph = ost.load_onnx(model)
    except ost.UnsupportedOpError as error:
        return str(error)
    for session in sessions:
        for optimize in (True, False):
            options = ost.CompileOptions(optimize=optimize)
            compiled = session.compile(graph, options=options)
            for inputs, truth, bound in zip(runs, expected, allowed, strict=True):
                live = {name: array for name, array in inputs.items() if name in graph.inputs}
                actual = compiled.run(live)
                for name, mine, theirs, most in zip(
                    graph.outputs, actual, truth, bound, strict=True
                ):
                    complaint = _complaint(mine, theirs, most)
                    sizes = {name: array.shape for name, array in inputs.items()}
                    assert not complaint, (
                        f"graph {number}, output {name}: {complaint}\noptimize={optimize}, "
                        f"inputs {sizes}\n{printer.to_text(model)}"
                    )
    return ""


def _expected(
    model: ModelProto, runs: Sequence[Mapping[str, Array]], number: int
) -> tuple[list[list[Any]], list[list[Array]]]:
    """ONNX Runtime's results, and by how much each element may differ.

    That is a few roundings of the largest element, and some of what it changes by where every
    input changes by a rounding.
    """
    session = runtime_session(model)
    rng = np.random.default_rng(number)
    expected = [session.run(None, dict(inputs)) for inputs in runs]
    moved = [session.run(None, _perturbed(inputs, rng)) for inputs in runs]
    allowed = [
        [_allowed(truth, other) for truth, other in zip(truths, others, strict=True)]
        for truths, others in zip(expected, moved, strict=True)
    ]
    return expected, allowed


def _perturbed(inputs: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    found = dict(inputs)
    for name, array in inputs.items():
        if array.dtype.kind == "f":
            factors = 1 + _TOLERANCE[str(array.dtype)] / 30 * rng.standard_normal(array.shape)
            found[name] = (array * factors).astype(array.dtype)
    return found


def _allowed(truth: Array, moved: Array) -> Array:
    if truth.dtype.kind != "f":
        return np.zeros(truth.shape)
    largest = float(np.abs(truth).max()) if truth.size else 0.0
    same = truth.shape == moved.shape
    spread = np.abs(truth - moved).astype(np.float64) if same else np.zeros(truth.shape)
    return 20 * spread + _TOLERANCE[str(truth.dtype)] * (1.0 + largest)


def _complaint(mine: Array, theirs: Array, most: Array) -> str:
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return f"{mine.dtype}{mine.shape}, expected {theirs.dtype}{theirs.shape}"
    error = np.abs(mine.astype(np.float64) - theirs.astype(np.float64))
    wrong = ~(error <= most)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} differ, first at {at}: {mine[at]} for {theirs[at]}"


def main(first: int, last: int) -> int:
    """Compare the graphs ``first..last - 1``; the number of those that failed."""
    sessions = [ost.Session("cpu", threads=2)]
    failed, refused = 0, Counter[str]()
    for number in range(first, last):
        print(f"graph {number}", flush=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if reason := check(number, sessions):
                    refused[reason.splitlines()[-1]] += 1
                    print(f"REFUSED {number} {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {number}\n{traceback.format_exc()}", flush=True)
    print(f"done: {last - first} graphs, {failed} failed, {refused.total()} refused")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
