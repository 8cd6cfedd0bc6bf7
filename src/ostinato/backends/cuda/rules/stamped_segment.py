"""Segments whose blocks log when they end each part: what profiles run."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.dtypes import INT64
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import Arg
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import segments
    from ostinato.backends.cuda.rules.segment_kernel import SegmentKernel
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol
else:
    segments = LazyModule("ostinato.backends.cuda.render.segments")

__all__ = ["LOG_WORDS", "StampedSegment"]

LOG_WORDS = 4
"""int64 words of an entry of a log; see ``stamps.cuh``."""


@dataclass(frozen=True, eq=False)
class StampedSegment(CudaKernel):
    """A segment with a further argument, the last one: the logs of its blocks, all zeros.

    Attributes:
        segment: the segment.
        args, variables: see :class:`~ostinato.lower.loopir.kernel.Kernel`.
    """

    segment: SegmentKernel
    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "stamped"

    @staticmethod
    def of(segment: SegmentKernel) -> StampedSegment:
        """``segment`` with logs."""
        log = Arg(INT64, reads=False, writes=True)
        return StampedSegment(segment, (*segment.args, log), segment.variables)

    def describe(self, text: KernelText) -> None:
        text.line(0, "stamped")
        self.segment.describe(text)

    def launch(self, target: CudaTarget) -> Launch:
        return segments.launch(self.segment, target, stamped=True)

    def source(self, target: CudaTarget) -> str:
        return segments.stamped_source(self.segment, target, self.name)

    def form(self, target: CudaTarget) -> tuple[int, list[int]]:
        """The entries of the log of a block, at most; by part, the blocks that have work."""
        return segments.stamped_form(self.segment, target)
