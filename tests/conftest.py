"""Fixtures for several folders: a cache folder, and the real MiniLM as an ONNX file."""

from __future__ import annotations

import gc
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

pytest_plugins = ["tests.devices.selection"]

# Not the user's cache, but a lasting one, so that the next run need not compile everything again.
# The processes of pytest-xdist share it, and so do those that tests start.
os.environ["OSTINATO_CACHE_DIR"] = str(ROOT / "build" / "test-cache")

# Matrices of tests are small: a second thread of NumPy's BLAS would only wait, in a busy loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Mesa's layer that chooses among GPUs looks for a display, and complains where there is none.
os.environ.setdefault("NODEVICE_SELECT", "1")

# No test fails because the machine is busy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def minilm_writer() -> ModuleType:
    """``examples/minilm_onnx.py``; skips where the weights are not installed."""
    pytest.importorskip("safetensors")
    path = ROOT / "examples" / "minilm_onnx.py"
    spec = importlib.util.spec_from_file_location("minilm_onnx", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.model_folder()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return module


@pytest.fixture(scope="session")
def minilm(minilm_writer: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2, written for this session."""
    path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    written: Path = minilm_writer.write_model(path)
    return written


def pytest_collection_finish() -> None:
    """Keep what was collected out of the garbage collector's sight: it lives until the end.

    Compiles make many objects that hold each other, and few that are garbage: collections at
    Python's own thresholds take a twentieth of the time of all tests.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
