"""Kernels that read their weights before the kernel in front of them has ended.

From Hopper on, a kernel is launched while the one in front of it runs, and waits for its end before
it reads what that may have written. All kernels before that one have ended by then.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.matmul import FewRowsMatmul
from ostinato.lazy import LazyModule
from ostinato.lower.control import Control
from ostinato.lower.loopir.dependences import accesses_of_scalars
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.render import single_rows
    from ostinato.lower.program import Call
else:
    single_rows = LazyModule("ostinato.backends.cuda.render.single_rows")

__all__ = ["with_early_operands"]


def with_early_operands(calls: Sequence[Call]) -> list[Call]:
    """The calls, those of matmuls told whether the one in front writes their right operands."""
    return [*calls[:1], *(_told(before, call) for before, call in pairwise(calls))]


def _told(before: Call, call: Call) -> Call:
    kernel = call.kernel
    if not isinstance(kernel, FewRowsMatmul) or isinstance(before.kernel, Control):
        return call
    if not single_rows.suits(kernel):
        return call
    read = {call.buffers[a.position] for a in accesses_of_scalars(kernel.operands[1:])}
    complete = read.isdisjoint(before.writes())
    return replace(call, kernel=replace(kernel, complete=complete))
