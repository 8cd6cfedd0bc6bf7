"""Paged attention as kernels of the device have it, whichever way it is computed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.rules.attention_kernel import PointKernel
from ostinato.lower.loopir.dependences import (
    accesses_of_scalars,
    accesses_of_statements,
    reached,
)
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg, Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.rules.paged_attention_spec import PagedAttentionSpec
    from ostinato.variables import Dim, Symbol

__all__ = ["PagedAttentionKernel"]


@dataclass(frozen=True, eq=False)
class PagedAttentionKernel(PointKernel):
    """Paged attention, or what parts of the keys contribute to it.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra. Where there are several parts, the store's buffer gets their results: by
            row, head and part, sums for every column, then the greatest score and the total of the
            weights.
        splits: parts that the keys of each row are divided into.
        rounds: whether many rows of queries, and their weights, may be rounded to bfloat16.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: PagedAttentionSpec
    splits: int = 1
    rounds: bool = False
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "paged_attention"

    def describe(self, text: KernelText) -> None:
        rounded = ", rounds to bfloat16" if self.rounds else ""
        text.line(0, f"paged attention, {self.splits} parts{rounded}")
        text.head(self.args)
        self.spec.describe(text)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        return self.spec.elements(position)

    def accesses(self) -> Iterator[Access]:
        if self.splits == 1:
            yield from accesses_of_scalars(self.spec.operands)
            yield from accesses_of_statements((self.spec.store,))

    @cached_property
    def plain_arguments(self) -> frozenset[int]:
        """See :class:`CudaKernel`: what says which keys a row attends to."""
        spec = self.spec
        numbers = _buffers((spec.table, spec.sequence, spec.position))
        others = (spec.q, spec.k, spec.v, spec.k_scale, spec.v_scale, spec.sink)
        return frozenset(numbers - _buffers(scalar for scalar in others if scalar is not None))

    @property
    def rows(self) -> Symbol:
        return self.spec.row

    @property
    def point_axes(self) -> Sequence[Symbol]:
        return (self.spec.shared,) if max_extent(self.spec.row) == 1 else ()

    @property
    def points(self) -> Dim:
        return extent_of(self.spec.row) * max_extent(self.spec.shared)

    @property
    def read_elements(self) -> Sequence[Scalar]:
        return self.spec.operands

    @cached_property
    def head_pools(self) -> Mapping[int, int]:
        spec, found = self.spec, dict[int, int]()
        for load in reached([s for s in (spec.k, spec.v, spec.k_scale, spec.v_scale) if s]):
            if isinstance(load, Load):
                head, row = (coefficient(load.index, s) for s in (spec.shared, spec.place))
                apart = head and row and row[0] == max_extent(spec.shared) * head[0]
                if apart and head and isinstance(head[0], int):
                    found[load.buffer] = head[0]
        return found


def _buffers(scalars: Iterable[Scalar]) -> set[int]:
    """The arguments that elements are read from."""
    return {load.buffer for load in reached(scalars) if isinstance(load, Load)}
