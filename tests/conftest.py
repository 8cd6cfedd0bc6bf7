"""What tests of several folders share: the real MiniLM encoder as an ONNX file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


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
