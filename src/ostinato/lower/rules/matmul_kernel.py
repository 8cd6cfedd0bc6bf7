"""The kernel of a matmul or convolution, whichever way a device computes it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.lazy import LazyModule
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nodes import Accumulator, Reduce, Stage, extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.records import dataclass
from ostinato.variables import prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    from ostinato.dtypes import DType
    from ostinato.lower.loopir import traffic
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg, Scalar, Statement, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim, Symbol

    Made = TypeVar("Made", bound="MatmulKernel")
else:
    traffic = LazyModule("ostinato.lower.loopir.traffic")

__all__ = ["MatmulKernel", "matmul_kernel"]


@dataclass(frozen=True, eq=False)
class MatmulKernel(Kernel):
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


def matmul_kernel(
    kind: type[Made],
    build: KernelBuilder,
    spec: MatmulSpec,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
) -> Made:
    """The kernel of a matmul.

    Args:
        kind: its class.
        build: its builder.
        spec: the algebra.
        outputs: the values that it stores, and their buffers.
        variables: the graph's Variables.
    """
    at = spec.axes(build)
    a = spec.left(build, at)
    b = build.at(spec.b, spec.b_at(spec.group_of(at.batch), at.k, at.n))
    result = spec.out_at(at.batch, at.m, at.n)
    stores = spec.stores(build, Accumulator(spec.acc), result, outputs)
    (m,), (n,) = symbols_of([at.m]), symbols_of([at.n])
    return kind(
        build.args,
        symbols_of(at.batch),
        m,
        n,
        symbols_of(at.k),
        a,
        b,
        spec.acc,
        stores,
        variables,
    )
