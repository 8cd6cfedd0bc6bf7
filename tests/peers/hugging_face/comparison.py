"""Comparison of a model's results with those of ONNX Runtime, at several sizes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime

import ostinato as ost
from ostinato.cache.objects import process_cache
from ostinato.variables import symbols
from tests.peers.hugging_face.architectures import ARCHITECTURES, Architecture

__all__ = ["TOLERANCE", "Comparison", "PeerError", "compare", "compare_architecture"]

#: The largest difference, relative to the largest magnitude of an output.
TOLERANCE = 1e-4


class PeerError(Exception):
    """ONNX Runtime does not run the model."""


@dataclass(frozen=True)
class Comparison:
    """The results of a model next to those of ONNX Runtime.

    Attributes:
        difference: the largest of an output, relative to its largest magnitude.
        numbers: the axes of inputs that have to be numbers when the graph is built.
        reason: why ONNX Runtime runs it at the exported sizes alone; empty if it does not.
    """

    difference: float
    numbers: tuple[tuple[str, int], ...]
    reason: str = ""

    def text(self, architecture: Architecture) -> str:
        """The result as the file of results has it."""
        dims = {operand.name: operand.dims for operand in architecture.inputs}
        names = dict.fromkeys(str(dims[name][axis]) for name, axis in self.numbers)
        built = f" built again for each {', '.join(names)}" if names else ""
        alone = f" at the exported sizes alone: ONNX Runtime: {self.reason}" if self.reason else ""
        return f"{self.difference:.1e}{built}{alone}"


def compare_architecture(architecture: Architecture, path: Path) -> Comparison:
    """Compare the architecture's ONNX file at its two sizes; see :func:`compare`.

    An exporter may have written the exported sizes into the file: then at these.
    """
    sizes = enumerate(architecture.run_sizes, start=1)
    try:
        return compare(path, [architecture.arrays(of_run, seed) for seed, of_run in sizes])
    except PeerError as error:
        exported = [architecture.arrays(architecture.exported_sizes, seed) for seed in (1, 2)]
        return replace(compare(path, exported), reason=str(error))


def compare(path: Path, runs: Sequence[Mapping[str, np.ndarray]]) -> Comparison:
    """Compare all runs, then repeat them.

    Raises:
        PeerError: there is nothing to compare with.
        OstinatoError: the model is refused.
        AssertionError: shapes, dtypes or values differ, or a repeated run compiles or differs.
    """
    graph = ost.load_onnx(path)
    runs = [{name: feeds[name] for name in graph.inputs} for feeds in runs]  # exports drop some
    wanted = [_wanted(path, feeds) for feeds in runs]
    compiled = ost.Session("cpu", threads=1).compile(graph)
    results = [compiled.run(feeds) for feeds in runs]
    difference = max(
        _difference(result, reference)
        for of_run, references in zip(results, wanted, strict=True)
        for result, reference in zip(of_run, references, strict=True)
    )
    assert difference <= TOLERANCE, f"a result is off by {difference:.1e}"
    programs, counters = compiled.specializations, copy.copy(process_cache().counters)
    for feeds, before in zip(runs, results, strict=True):
        for result, earlier in zip(compiled.run(feeds), before, strict=True):
            np.testing.assert_array_equal(result, earlier, "a repeated run differs")
    assert len(compiled.specializations) == len(programs), "a repeated run compiles a program"
    assert process_cache().counters == counters, "a repeated run compiles kernels"
    numbers = [
        (name, axis)
        for name, value in graph.inputs.items()
        for axis, dim in enumerate(value.shape)
        if any(symbol.name in graph.specialization.reasons for symbol in symbols(dim))
    ]
    return Comparison(difference, tuple(numbers))


def _wanted(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options).run(None, dict(feeds))
    except Exception as error:  # its errors have no common class
        status = " ".join(str(error).split())
        raise PeerError(status.partition("Status Message: ")[2] or status) from error


def _difference(result: np.ndarray, wanted: np.ndarray) -> float:
    assert result.dtype == wanted.dtype, f"dtype {result.dtype} instead of {wanted.dtype}"
    assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
    assert np.isfinite(wanted).all(), "the model overflows"
    largest = np.abs(wanted).max(initial=0.0)
    return float(np.abs(result - wanted).max(initial=0.0) / max(largest, 1e-30))


def main(name: str, path: Path, report: Path) -> None:
    """Compare one architecture, and write the result or the reason against it to ``report``."""
    try:
        architecture = ARCHITECTURES[name]
        report.write_text(compare_architecture(architecture, path).text(architecture))
    except PeerError as error:
        report.write_text(f"not compared: ONNX Runtime: {error}")
    except ost.OstinatoError as error:
        report.write_text(f"refused: {' '.join(str(error).split())}")
    except AssertionError as error:
        report.write_text(f"wrong: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
