"""LLVM code generation, for the CPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.lower.program import Kernel

__all__ = ["render"]

#: The module that renders each kind of kernel, by the name of its class. One that no graph asks
#: for is never imported.
_RENDERERS = {
    "AttentionKernel": "attention",
    "Contraction": "gemm",
    "GroupedProduct": "grouped_gemm",
    "Grouping": "group_rows",
    "JointProduct": "gemm",
    "LoopNest": "loops",
    "RecurrentKernel": "recurrent",
    "TopK": "topk",
}


def render(kernel: Kernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic."""
    renderer = import_module(f"{__name__}.{_RENDERERS[type(kernel).__name__]}")
    module: ir.Module = renderer.render(kernel, name, target)
    return module
