"""Attention as kernels of the device have it, whichever way it is computed."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg, Scalar, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.rules.attention_spec import AttentionSpec
    from ostinato.variables import Dim, Symbol

__all__ = ["AttentionKernel", "PartsKernel", "PointKernel"]


class PointKernel(CudaKernel):
    """A kernel of attention whose items are those of points: heads of keys.

    In a segment, blocks may compute for a point what it alone reads.
    """

    @property
    @abstractmethod
    def rows(self) -> Symbol:
        """The axis of rows of queries."""

    @property
    @abstractmethod
    def point_axes(self) -> Sequence[Symbol]:
        """The axes of points, outermost first; none where points are not to be told apart."""

    @property
    @abstractmethod
    def points(self) -> Dim:
        """Their number."""

    @property
    @abstractmethod
    def read_elements(self) -> Sequence[Scalar]:
        """The elements that it reads."""

    @property
    def head_pools(self) -> Mapping[int, int]:
        """By argument that is a pool of rows, of which a point reads its own part: its elements."""
        return {}

    @abstractmethod
    def items_of_point(self, target: CudaTarget) -> int:
        """The items of each point, where blocks go over items: points are the outer ones."""


@dataclass(frozen=True, eq=False)
class AttentionKernel(PointKernel):
    """Attention, or a part of the keys' share in it.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra; the store is made where there is one part.
        splits: parts that the keys are divided into.
        scratch: the argument with the results of parts, if there are several: by row and part,
            sums for every column, then the greatest score and the total of the weights.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: AttentionSpec
    splits: int = 1
    scratch: int | None = None
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "attention"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{type(self).__name__}, {self.splits} parts, scratch {self.scratch}")
        text.head(self.args)
        self.spec.describe_axes(text)
        self.spec.describe_elements(text)

    def accesses(self) -> Iterator[Access]:
        return iter(()) if self.scratch is not None else self.spec.accesses()

    @property
    def rows(self) -> Symbol:
        return self.spec.m

    @property
    def point_axes(self) -> Sequence[Symbol]:
        return self.spec.batch

    @property
    def points(self) -> Dim:
        return prod(map(extent_of, self.spec.batch))

    @property
    def read_elements(self) -> Sequence[Scalar]:
        return self.spec.operands

    @property
    def features(self) -> int:
        """The values' features."""
        return max_extent(self.spec.column)


@dataclass(frozen=True, eq=False)
class PartsKernel(CudaKernel):
    """The sum of the results of all parts of the keys, each weighted by its scores.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: outer axes, outermost first.
        m: the axis of rows.
        column: the axis of features.
        store: over ``batch``, ``m`` and ``column``; ``Accumulator`` is the result.
        acc: the dtype of sums.
        splits: the number of parts.
        scratch: the argument that has them; see :class:`AttentionKernel`.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    batch: tuple[Symbol, ...]
    m: Symbol
    column: Symbol
    store: Store
    acc: DType
    splits: int
    scratch: int
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "attention_parts"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{self.splits} parts of attention in b{self.scratch}")
        text.head(self.args)
        for symbol in (*self.batch, self.m, self.column):
            text.line(1, f"for {text.axis(symbol)}")
        text.statement(self.store)

    @property
    def points(self) -> Dim:
        """Key heads of all batches."""
        return prod(map(extent_of, self.batch))
