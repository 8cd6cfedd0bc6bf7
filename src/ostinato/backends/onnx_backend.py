"""The path at which tools look for ONNX's backend interface; its home is the ONNX front end.

>>> import ostinato.backends.onnx_backend as backend
>>> outputs = backend.prepare(model).run([x])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = (
    "OstinatoBackend",
    "OstinatoBackendRep",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
)


def __getattr__(name: str) -> Any:
    """The same name of :mod:`ostinato.frontends.onnx.backend`, a higher layer, at first use."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ostinato.frontends.onnx.backend"), name)
