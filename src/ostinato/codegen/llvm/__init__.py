"""LLVM code generation, for the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.contraction import Contraction
from ostinato.lower.loops import LoopNest

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.codegen.llvm.toolchain import TargetSpec
    from ostinato.lower.program import Kernel

__all__ = ["render"]


def render(kernel: Kernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic."""
    from ostinato.codegen.llvm import contraction, loops

    if isinstance(kernel, Contraction):
        return contraction.render(kernel, name, target)
    assert isinstance(kernel, LoopNest)
    return loops.render(kernel, name, target)
