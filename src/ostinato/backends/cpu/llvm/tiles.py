"""Register tiles of several heights, so that blocks of any number of rows have one that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.kernel import counted_loop, when
from ostinato.backends.cpu.llvm.microkernel import define_tile
from ostinato.backends.cpu.llvm.types import I64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.rules.gemm import Gemm

__all__ = ["Tiles"]


class Tiles:
    """The tile functions of one GEMM.

    Args:
        kernel: the kernel that calls them.
        name: what their names start with.
        gemm: see :func:`~ostinato.backends.cpu.llvm.microkernel.define_tile`.
        heights: rows of each function, greatest first.
        pitch: elements between rows of the right operand, if it is not packed.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        name: str,
        gemm: Gemm,
        heights: Sequence[int],
        pitch: int | None = None,
    ) -> None:
        self.builder = kernel.builder
        self.heights = tuple(heights)
        self._functions = {
            height: define_tile(
                kernel.module, f"{name}{height}", gemm, height, kernel.target, pitch
            )
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

    def cover(self, count: ir.Value, arguments: Callable[[ir.Value], Sequence[ir.Value]]) -> None:
        """Calls tiles that cover ``count`` rows exactly.

        The highest that fits is used; its last call may go back over rows of the one before it. So
        each height must be at least half of the counts that are below the next.

        Args:
            arguments: of a tile, by its first row.
        """
        b = self.builder
        for height, higher in zip(self.heights, (None, *self.heights[:-1]), strict=True):
            fits: ir.Value | bool = True
            if height != self.heights[-1]:
                fits = b.icmp_signed(">=", count, I64(height))
            if higher is not None:
                fewer = b.icmp_signed("<", count, I64(higher))
                fits = fewer if fits is True else b.and_(fits, fewer)
            with when(b, fits):
                self._cover(height, count, arguments)

    def _cover(
        self, height: int, count: ir.Value, arguments: Callable[[ir.Value], Sequence[ir.Value]]
    ) -> None:
        b, function = self.builder, self._functions[height]
        whole = b.mul(b.udiv(count, I64(height)), I64(height))

        def tile(row: ir.Value) -> None:
            b.call(function, arguments(row))

        counted_loop(b, I64(0), whole, height, tile, name="tile")
        with when(b, b.icmp_signed("!=", whole, count)):
            tile(b.sub(count, I64(height)))
