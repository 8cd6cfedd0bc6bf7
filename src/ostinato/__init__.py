"""Ostinato compiles a model graph once and runs it many times.

>>> import ostinato as ost
>>> g = ost.Graph("example")
>>> x = g.input("x", (2, 4))
>>> g.set_outputs([g.exp(x) + 1])
>>> compiled = ost.Session("cpu").compile(g)

Names are imported when they are first used, so that ``import ostinato`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# First, since it describes the sources that are imported from here on.
import ostinato.cache.fingerprint  # noqa: F401

if TYPE_CHECKING:
    from ostinato import llm, moe, reference, torch
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.backends.registry import available_devices, is_available
    from ostinato.dtypes import DType
    from ostinato.eager.compute_graph import ComputeGraph
    from ostinato.eager.executor import GraphExecutor
    from ostinato.eager.pending import Pending, SessionStats
    from ostinato.eager.session import GraphSession
    from ostinato.errors import (
        Cancelled,
        CaptureError,
        CircularBuildError,
        ContextError,
        DeviceError,
        DeviceMemoryError,
        DeviceUnavailableError,
        GraphError,
        InputError,
        ModelFormatError,
        OstinatoError,
        Overloaded,
        PlanError,
        SessionStateError,
        UnsupportedOpError,
        VariableError,
    )
    from ostinato.frontends.onnx import load_onnx
    from ostinato.frontends.quantization import quantize
    from ostinato.frontends.torch.export import from_torch
    from ostinato.frontends.torch.pt2 import load_pt2
    from ostinato.ir.graph import Value
    from ostinato.moe.expert_pool import ExpertPool, MoeResidencyStats
    from ostinato.moe.policy import TidePolicy
    from ostinato.ops.builder import Graph
    from ostinato.ops.parser import parse_graph
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.profile import KernelProfile
    from ostinato.runtime.caches import (
        BucketedCompileCache,
        CompileCache,
        power_of_two_ladder,
    )
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.runtime.graph_runner import GraphRunner
    from ostinato.runtime.session import Session
    from ostinato.variables import Variable

__version__ = "0.1.0"

#: Public name -> module that defines it.
_HOMES = {
    "BucketedCompileCache": "ostinato.runtime.caches",
    "Buffer": "ostinato.plan.buffer",
    "Cancelled": "ostinato.errors",
    "CaptureError": "ostinato.errors",
    "CircularBuildError": "ostinato.errors",
    "CompileCache": "ostinato.runtime.caches",
    "CompileOptions": "ostinato.backends.options",
    "CompiledGraph": "ostinato.runtime.compiled_graph",
    "ComputeGraph": "ostinato.eager.compute_graph",
    "ContextError": "ostinato.errors",
    "DType": "ostinato.dtypes",
    "Device": "ostinato.backends.device",
    "DeviceError": "ostinato.errors",
    "DeviceMemoryError": "ostinato.errors",
    "DeviceUnavailableError": "ostinato.errors",
    "ExecutionPlan": "ostinato.plan.execution_plan",
    "ExpertPool": "ostinato.moe.expert_pool",
    "Graph": "ostinato.ops.builder",
    "GraphError": "ostinato.errors",
    "GraphExecutor": "ostinato.eager.executor",
    "GraphRunner": "ostinato.runtime.graph_runner",
    "GraphSession": "ostinato.eager.session",
    "InputError": "ostinato.errors",
    "KernelProfile": "ostinato.plan.profile",
    "ModelFormatError": "ostinato.errors",
    "MoeResidencyStats": "ostinato.moe.expert_pool",
    "OstinatoError": "ostinato.errors",
    "Overloaded": "ostinato.errors",
    "Pending": "ostinato.eager.pending",
    "PlanError": "ostinato.errors",
    "Session": "ostinato.runtime.session",
    "SessionStateError": "ostinato.errors",
    "SessionStats": "ostinato.eager.pending",
    "TidePolicy": "ostinato.moe.policy",
    "UnsupportedOpError": "ostinato.errors",
    "Value": "ostinato.ir.graph",
    "Variable": "ostinato.variables",
    "VariableError": "ostinato.errors",
    "available_devices": "ostinato.backends.registry",
    "from_torch": "ostinato.frontends.torch.export",
    "is_available": "ostinato.backends.registry",
    "load_onnx": "ostinato.frontends.onnx",
    "load_pt2": "ostinato.frontends.torch.pt2",
    "parse_graph": "ostinato.ops.parser",
    "power_of_two_ladder": "ostinato.runtime.caches",
    "quantize": "ostinato.frontends.quantization",
}

__all__ = [
    "BucketedCompileCache",
    "Buffer",
    "Cancelled",
    "CaptureError",
    "CircularBuildError",
    "CompileCache",
    "CompileOptions",
    "CompiledGraph",
    "ComputeGraph",
    "ContextError",
    "DType",
    "Device",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "ExecutionPlan",
    "ExpertPool",
    "Graph",
    "GraphError",
    "GraphExecutor",
    "GraphRunner",
    "GraphSession",
    "InputError",
    "KernelProfile",
    "ModelFormatError",
    "MoeResidencyStats",
    "OstinatoError",
    "Overloaded",
    "Pending",
    "PlanError",
    "Session",
    "SessionStateError",
    "SessionStats",
    "TidePolicy",
    "UnsupportedOpError",
    "Value",
    "Variable",
    "VariableError",
    "available_devices",
    "from_torch",
    "is_available",
    "llm",
    "load_onnx",
    "load_pt2",
    "moe",
    "parse_graph",
    "power_of_two_ladder",
    "quantize",
    "reference",
    "torch",
]


def __getattr__(name: str) -> Any:
    if name in ("llm", "moe", "reference", "torch"):
        return import_module(f"ostinato.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    from ostinato.lazy import public_attribute

    value = public_attribute(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
