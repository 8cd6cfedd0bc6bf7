"""Rendering the CPU's kernels as LLVM IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.kernel import CpuKernel

__all__ = ["render"]


def render(kernel: CpuKernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's class names the module that renders it; one that no graph asks for is never
    imported.
    """
    renderer = import_module(f"{__name__}.{kernel.renderer}")
    module: ir.Module = renderer.render(kernel, name, target)
    return module
