"""LLVM code generation, for the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.attention import AttentionKernel
from ostinato.lower.contraction import Contraction
from ostinato.lower.grouped import GroupedProduct
from ostinato.lower.grouping import Grouping
from ostinato.lower.joint import JointProduct
from ostinato.lower.loops import LoopNest
from ostinato.lower.recurrent import RecurrentKernel
from ostinato.lower.topk import TopK

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.codegen.llvm.toolchain import TargetSpec
    from ostinato.lower.program import Kernel

__all__ = ["render"]


def render(kernel: Kernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic."""
    from ostinato.codegen.llvm import (
        attention,
        contraction,
        grouped,
        grouping,
        loops,
        recurrent,
        topk,
    )

    match kernel:
        case LoopNest():
            return loops.render(kernel, name, target)
        case Contraction() | JointProduct():
            return contraction.render(kernel, name, target)
        case AttentionKernel():
            return attention.render(kernel, name, target)
        case RecurrentKernel():
            return recurrent.render(kernel, name, target)
        case Grouping():
            return grouping.render(kernel, name, target)
        case GroupedProduct():
            return grouped.render(kernel, name, target)
        case TopK():
            return topk.render(kernel, name, target)
    raise TypeError(f"no renderer for a {type(kernel).__name__}")
