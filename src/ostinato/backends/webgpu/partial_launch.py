"""Launches of a program on the first rows alone: workgroups, and bytes of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.lower.extent import RowwiseCalls
from ostinato.lower.program import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.lower.program import Program

__all__ = ["LeadingRows", "RowLimits"]

#: Numbers of rows whose limits are remembered.
_MOST_LIMITS = 64


class RowLimits(NamedTuple):
    """The part of a program that runs where only the first rows are in use.

    Attributes:
        extent: the number of rows in use, and that of all.
        groups: by step, the most workgroups; ``None``: all.
        nbytes: by number of an input or output, the bytes that the run gives.
    """

    extent: tuple[int, int]
    groups: Sequence[int | None]
    nbytes: Mapping[int, int]


class LeadingRows:
    """The launches of one program for one number of rows.

    Args:
        program: see :class:`~ostinato.lower.extent.RowwiseCalls`.
        upper: how many rows it was compiled for.
        target: the device that its kernels were rendered for.
    """

    def __init__(self, program: Program, upper: int, target: WebGpuTarget) -> None:
        self._rowwise = RowwiseCalls(program, upper)
        self._calls = program.calls
        self._numbers = {buffer: n for n, buffer in enumerate(program.externals)}
        self._upper = upper
        self._target = target
        self._found: dict[int, RowLimits] = {}

    def limits(self, actual: int) -> RowLimits:
        """The part that has to run to give ``actual`` rows."""
        found = self._found.get(actual)
        if found is None:
            if len(self._found) >= _MOST_LIMITS:
                self._found.clear()
            found = self._found[actual] = self._limits(actual)
        return found

    def _limits(self, actual: int) -> RowLimits:
        groups: list[int | None] = []
        nbytes: dict[int, int] = {}
        for call, steps in zip(self._calls, self._rowwise.steps(actual), strict=True):
            if steps is None or not isinstance(call.kernel, WebGpuKernel):
                groups.append(None)
            else:
                groups.append(call.kernel.groups_for(steps[0], self._target))
            for buffer in call.writes() if steps is not None else ():
                if buffer.role is Role.OUTPUT:
                    nbytes[self._numbers[buffer]] = buffer.nbytes // self._upper * actual
        return RowLimits((actual, self._upper), groups, nbytes)
