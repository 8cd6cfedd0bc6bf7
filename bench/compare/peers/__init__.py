"""The runtimes, a module each. All have one function,

``prepare(workload, threads) -> Prepared``, which builds, compiles and binds.

Only one of them is imported in any one process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

#: The module of each side by the name it has in tables; the first is what the others are held to.
MODULES: Mapping[str, str] = {
    "ostinato": "ours",
    "onnxruntime": "onnx_runtime",
    "openvino": "open_vino",
    "torch": "torch_compile",
    "jax": "jax_jit",
}
OURS = "ostinato"
PEERS = tuple(name for name in MODULES if name != OURS)


@dataclass(frozen=True)
class Prepared:
    """A runtime that is ready to run one workload.

    Attributes:
        call: one run, finished when it returns.
        outputs: what the last run gave, in order.
    """

    call: Callable[[], object]
    outputs: Callable[[], list[np.ndarray[Any, Any]]]


def load(side: str) -> ModuleType:
    """The module of ``side``; imports the runtime itself."""
    return importlib.import_module(f"{__name__}.{MODULES[side]}")


def version(side: str) -> str | None:
    """The installed version, ``None`` if there is none. Imports nothing."""
    try:
        return importlib.metadata.version(side)
    except importlib.metadata.PackageNotFoundError:
        return None
