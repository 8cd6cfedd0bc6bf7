"""A matmul as a kernel of the device has it, whichever way it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.nodes import Apply
from ostinato.lower.rules.matmul_kernel import MatmulKernel
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["FEW_ROWS", "BlockwiseProduct", "FewRowsProduct", "Matmul"]

FEW_ROWS = 16
"""Rows up to which the right operand is best read straight from memory, once."""


@dataclass(frozen=True, eq=False)
class Matmul(MatmulKernel, CudaKernel):
    """A matmul or convolution.

    Attributes:
        fixed_right: whether the right operand, and all sizes, are the same in all runs: it may be
            read while the kernels in front still run.
        beside: the element of a second right operand, whose sum is ``Accumulator`` 1.
    """

    fixed_right: bool = False
    beside: Scalar | None = None

    prefix: ClassVar[str] = "matmul"

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        if self.beside is not None:
            text.named("beside", [self.beside])
        if self.fixed_right:
            text.line(1, "the right operands are fixed" if self.beside else "b is fixed")

    @property
    def rights(self) -> tuple[Scalar, ...]:
        """The right operands: by number of an ``Accumulator``, what its sum is with."""
        return (self.b,) if self.beside is None else (self.b, self.beside)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.a, *self.rights)

    @property
    def weight_bits(self) -> int:
        """Bits of an element of the right operand in memory."""
        b = self.b
        while isinstance(b, Apply) and b.op == "cast":
            (b,) = b.operands
        return 8 * b.dtype.itemsize

    def rewritten(self, change: Callable[[Scalar], Scalar]) -> Matmul:
        """The same with changed operands."""
        made = replace(self, a=change(self.a), b=change(self.b))
        return made if self.beside is None else replace(made, beside=change(self.beside))


@dataclass(frozen=True, eq=False)
class FewRowsProduct(Matmul):
    """A few rows by a matrix that is read once, straight from memory into registers.

    Of two right operands, both have their columns as rows of memory: see
    :mod:`ostinato.backends.cuda.render.single_rows`.

    Attributes:
        complete: whether the right operands, and what chooses them, are complete before the kernel
            in front of this one has started.
    """

    complete: bool = False

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        if self.complete:
            text.line(1, "the right operand is complete early")


@dataclass(frozen=True, eq=False)
class BlockwiseProduct(Matmul):
    """A matmul of bytes by a matrix of codes, two to a byte, which few rows read once.

    Attributes:
        pairs: the axis of pairs of ``k``, along which ``b`` has a byte each.
        blocks: the axis of blocks of ``k``.
        a_scale: the scale of ``a`` at ``m`` and ``blocks``.
        b_scale: the scale of ``b`` at ``blocks`` and ``n``.
        group: the size of a block.
    """

    pairs: Symbol = field(kw_only=True)
    blocks: Symbol = field(kw_only=True)
    a_scale: Scalar = field(kw_only=True)
    b_scale: Scalar = field(kw_only=True)
    group: int = field(kw_only=True)

    @property
    def weight_bits(self) -> int:
        return 4

    def rewritten(self, change: Callable[[Scalar], Scalar]) -> Matmul:
        made = super().rewritten(change)
        return replace(made, a_scale=change(self.a_scale), b_scale=change(self.b_scale))

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        text.line(1, f"blocks of {self.group}")
        for name, axis_ in (("pairs", self.pairs), ("blocks", self.blocks)):
            text.line(1, f"{name} {text.axis(axis_)}")
        text.named("a_scale", [self.a_scale])
        text.named("b_scale", [self.b_scale])

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (*super().operands, self.a_scale, self.b_scale)
