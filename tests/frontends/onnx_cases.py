"""The node tests of the ``onnx`` package, which take ten seconds to collect, kept in a file."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["node_cases"]

FOLDER = Path(__file__).parents[2] / "build" / "test-models"


@functools.cache
def node_cases() -> list[Any]:
    """Every node test: the ``TestCase`` objects of the package's own loader."""
    python = "{}.{}".format(*sys.version_info)
    packages = "-".join(f"{name}{version(name)}" for name in ("onnx", "numpy", "protobuf"))
    path = FOLDER / f"node-cases-{packages}-python{python}.pickle"
    if path.exists():
        cases: list[Any] = pickle.loads(path.read_bytes())
        return cases
    cases = _collected()
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(cases))
    own.replace(path)  # other processes see the whole file, or none
    return cases


def _collected() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return list(load_model_tests(kind="node"))
