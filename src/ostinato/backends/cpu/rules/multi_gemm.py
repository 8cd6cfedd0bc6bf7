"""Horizontally fused GEMMs: the matmuls of the same rows with several matrices in one kernel.

Queries, keys and values are matmuls of the same rows, and so are the gate and up projections of a
gated unit. One kernel for all of them is handed out to threads once. Each matrix keeps panels of
its own, packed from where it lies; the kernel goes from one to the next.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.backends.cpu.rules.prefetch import fits_cache
from ostinato.lower.loopir.nodes import extent_of
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["MultiGemm", "multi_gemm"]


@dataclass(frozen=True, eq=False)
class MultiGemm(CpuKernel):
    """GEMMs that have all in common but their right operands, whose columns stand side by side.

    An output *segment* is the columns of one GEMM, or of several of the same width that share an
    epilogue, where ``Accumulator`` ``i`` is the sum of the ``i``-th. An item is a block of rows by
    one panel of a segment.

    Attributes:
        args: the buffers of all, in the order of the kernel's ``buffers``.
        segments: each with the same ``args``, ``m``, ``k``, ``a``, register tile and block of rows,
            without ``batch``; within a segment with the same ``n`` and ``epilogue``, too.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    segments: tuple[tuple[Gemm, ...], ...]
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "gemm"

    @property
    def directing(self) -> Mapping[int, object]:
        return {} if self.masked_tail is None else {self.masked_tail: None}

    def describe(self, text: KernelText) -> None:
        text.line(0, "gemms, horizontally fused")
        text.head(self.args)
        for segment in self.segments:
            text.line(0, "segment")
            for gemm in segment:
                gemm.describe_sums(text)
            for store in segment[0].epilogue:
                text.statement(store)

    def accesses(self) -> Iterator[Access]:
        for gemm in self.gemms:
            yield from gemm.accesses()

    @property
    def row_axis(self) -> Symbol | None:
        m = self.first.m
        known = isinstance(extent_of(m), int) and isinstance(self.extent, int)
        return m if self.masked_tail is not None and known else None

    @property
    def first(self) -> Gemm:
        """The GEMM whose rows are all others', too."""
        return self.segments[0][0]

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """All of them."""
        return tuple(gemm for segment in self.segments for gemm in segment)

    @cached_property
    def panels(self) -> Dim:
        """Panels of all segments."""
        total: Dim = 0
        for segment in self.segments:
            total = total + segment[0].panels
        return total

    @cached_property
    def extent(self) -> Dim:
        """The parallel range: row blocks x panels."""
        return self.first.blocks * self.panels

    def extent_for(self, wanted: int) -> Dim:
        """The parallel range where the first ``wanted`` rows are wanted."""
        return self.first.blocks_for(wanted) * self.panels

    @cached_property
    def panels_innermost(self) -> bool:
        """See :attr:`~ostinato.backends.cpu.rules.gemm.Gemm.panels_innermost`."""
        together = sum(gemm.panels_bytes for gemm in self.gemms)
        many = self.first.streams_rows or self.first.tall > 0
        return many or fits_cache(together, self.first.caches)

    @property
    def masked_tail(self) -> int | None:
        """See :attr:`~ostinato.backends.cpu.rules.gemm.Gemm.masked_tail`."""
        return self.first.masked_tail

    @cached_property
    def grain(self) -> int:
        """The number of consecutive items that are worth handing out together."""
        return min(max(1, segment[0].grain // len(segment)) for segment in self.segments)

    @cached_property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return max(segment[0].sums_at(len(segment)) for segment in self.segments)


def multi_gemm(
    segments: Sequence[Sequence[Gemm]], args: tuple[Arg, ...], variables: tuple[Symbol, ...]
) -> MultiGemm:
    """The kernel of GEMMs that were each built as if alone, with blocks of rows for all.

    Args:
        segments: those of one segment have the first one's epilogue.
        args: the buffers of all, of which each GEMM knows the first few.
        variables: the graph's Variables.
    """
    rows = max(segment[0].block for segment in segments)
    made = tuple(
        tuple(
            replace(gemm, args=args, item_rows=rows, epilogue=segment[0].epilogue)
            for gemm in segment
        )
        for segment in segments
    )
    return MultiGemm(args, tuple(map(_in_step, made)), variables)


def _in_step(segment: tuple[Gemm, ...]) -> tuple[Gemm, ...]:
    """The GEMMs of a segment, which go over ``k`` together: in equal blocks, or all at once."""
    if len({gemm.depth_block for gemm in segment}) == 1:
        return segment
    return tuple(replace(gemm, prefetch=None) for gemm in segment)
