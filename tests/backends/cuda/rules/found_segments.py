"""The segments of compiled graphs."""

from __future__ import annotations

import ostinato as ost
from ostinato.backends.cuda.rules.segment_assembly import Segment
from ostinato.plan.prepared import KernelCall

__all__ = ["segment_of", "segments_of"]


def segments_of(compiled: ost.CompiledGraph) -> list[Segment]:
    calls = [op for op in compiled.plan.prepared_ops if isinstance(op, KernelCall)]
    kernels = [call.kernel.kernel for call in calls]
    return [kernel for kernel in kernels if isinstance(kernel, Segment)]


def segment_of(compiled: ost.CompiledGraph) -> Segment:
    """The only one."""
    (segment,) = segments_of(compiled)
    return segment
