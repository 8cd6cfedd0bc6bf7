"""Sessions of ONNX Runtime, whose results ours are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto


def onnxruntime_session(model: ModelProto | bytes | Path, *, rewrites: bool = True) -> Any:
    """A session on one thread, without messages; skips where ONNX Runtime is not installed.

    With its own choice of threads, each of them waits in a busy loop after a run: 10 ms of
    processor time for every session, instead of one.

    Args:
        model: in memory, or its file.
        rewrites: whether it optimises the graph; else each op is computed by itself.
    """
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not rewrites:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, ModelProto) else model
    source = str(source) if isinstance(source, Path) else source
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
