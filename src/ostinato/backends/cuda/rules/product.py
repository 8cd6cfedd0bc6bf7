"""A matmul as a kernel of the device has it, whichever way it is computed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.nodes import Reduce, Stage, extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.records import dataclass, field
from ostinato.variables import prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.dtypes import DType
    from ostinato.lower.loopir import traffic
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg, Scalar, Statement, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol
else:
    traffic = LazyModule("ostinato.lower.loopir.traffic")

__all__ = ["FEW_ROWS", "BlockwiseProduct", "Matmul"]

FEW_ROWS = 16
"""Rows up to which the right operand is best read straight from memory, once."""


@dataclass(frozen=True, eq=False)
class Matmul(CudaKernel):
    """A matmul or convolution.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: the axes of independent matmuls, outermost first.
        m, n: the axes of rows and columns.
        k: the axes summed over, outermost first.
        a: the left operand's element at ``batch``, ``m`` and ``k``.
        b: the right operand's element at ``batch``, ``k`` and ``n``.
        acc: the dtype of sums.
        stores: over ``batch``, ``m`` and ``n``; ``Accumulator`` is the sum.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    batch: tuple[Symbol, ...]
    m: Symbol
    n: Symbol
    k: tuple[Symbol, ...]
    a: Scalar
    b: Scalar
    acc: DType
    stores: tuple[Store, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "matmul"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{type(self).__name__}, sums of {self.acc.short}")
        text.head(self.args)
        for name, axes in (("batch", self.batch), ("m", [self.m]), ("n", [self.n]), ("k", self.k)):
            for symbol in axes:
                text.line(1, f"{name} {text.axis(symbol)}")
        text.named("a", [self.a])
        text.named("b", [self.b])
        for store in self.stores:
            text.statement(store)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The elements that it reads, but for those of stores."""
        return (self.a, self.b)

    def accesses(self) -> Iterator[Access]:
        yield from accesses_of_scalars(self.operands)
        yield from accesses_of_statements(self.stores)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        return self._reach.elements(position, writes=writes)

    @cached_property
    def _reach(self) -> traffic.Reach:
        return traffic.Reach((Stage((), self._statements),), self.variables)

    @cached_property
    def _statements(self) -> tuple[Statement, ...]:
        """All that it reads and writes, as statements."""
        reads = [Reduce("", "sum", scalar, self.acc) for scalar in self.operands]
        return (*reads, *self.stores)

    def variable_free(self) -> bool:
        known = set(self.variables)
        axes = (*self.batch, self.m, self.n, *self.k)
        dims = [extent_of(symbol) for symbol in axes]
        dims += index_expressions(self._statements)
        return not any(symbols(dim) & known for dim in dims)

    @property
    def depth(self) -> Dim:
        """The number of products in a sum."""
        return prod(map(extent_of, self.k))

    @property
    def points(self) -> Dim:
        """The number of independent matmuls."""
        return prod(map(extent_of, self.batch))


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

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        text.line(1, f"blocks of {self.group}")
        for name, axis_ in (("pairs", self.pairs), ("blocks", self.blocks)):
            text.line(1, f"{name} {text.axis(axis_)}")
        text.named("a_scale", [self.a_scale])
        text.named("b_scale", [self.b_scale])

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.a, self.b, self.a_scale, self.b_scale)
