"""Register tiles of several heights, so that blocks of any number of rows have one that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.codegen.llvm.kernel import when
from ostinato.codegen.llvm.microkernel import define_tile
from ostinato.codegen.llvm.types import I64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite import ir

    from ostinato.codegen.llvm.kernel import KernelFunction
    from ostinato.lower.contraction import Contraction

__all__ = ["Tiles"]


class Tiles:
    """The tile functions of one product.

    Args:
        kernel: the kernel that calls them.
        name: what their names start with.
        product: see :func:`~ostinato.codegen.llvm.microkernel.define_tile`.
        heights: rows of each function, greatest first.
    """

    def __init__(
        self, kernel: KernelFunction, name: str, product: Contraction, heights: Sequence[int]
    ) -> None:
        self.builder = kernel.builder
        self.heights = tuple(heights)
        self._functions = {
            height: define_tile(kernel.module, f"{name}{height}", product, height, kernel.target)
            for height in heights
        }

    def call(self, count: ir.Value, arguments: Sequence[ir.Value]) -> None:
        """Calls the lowest tile of at least ``count`` rows; there must be one.

        Rows beyond ``count`` are computed too: of whatever is there.
        """
        b = self.builder
        for height, lower in zip(self.heights, (*self.heights[1:], None), strict=True):
            fits: ir.Value | bool = True
            if height != self.heights[0]:
                fits = b.icmp_signed("<=", count, I64(height))
            if lower is not None:
                more = b.icmp_signed(">", count, I64(lower))
                fits = more if fits is True else b.and_(fits, more)
            with when(b, fits):
                b.call(self._functions[height], arguments)
