"""Bound calls of a WebGPU device's programs, and recordings of them that may be one submission."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.commands import (
    Call,
    CallRecording,
    Commands,
    HostCopy,
    ProgramCall,
    Resident,
)
from ostinato.backends.common.recorded_work import RecordedWork, Use
from ostinato.backends.webgpu.replay import MergedReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.program import Places, WebGpuProgram
    from ostinato.plan.order import Accesses

__all__ = ["BoundCall", "WebGpuHostCopy", "WebGpuRecording"]


class WebGpuCall(Call):
    """A call that can be part of a submission."""

    @property
    @abstractmethod
    def recorded(self) -> RecordedWork:
        """Its work as part of a recording."""


class BoundCall(ProgramCall, WebGpuCall):
    """A program with its arrays and the values of its Variables; see :class:`ProgramCall`."""

    def __init__(
        self,
        program: WebGpuProgram,
        resident: Resident,
        blocks: Sequence[Any],
        variables: Sequence[int] | None,
        check: Callable[[], object],
        touched: Callable[[], Accesses] | None = None,
        uses: Callable[[object], bool] | None = None,
    ) -> None:
        super().__init__(program, resident, blocks, program.inputs, variables, check, touched, uses)
        self._program = program
        self._places: tuple[Places, list[int]] | None = None

    @property
    def recorded(self) -> RecordedWork:
        return RecordedWork(self._program, Use.all_of(self._program, self._blocks))

    def run(self, variables: Sequence[int]) -> None:
        program, found = self._program, self._places
        if found is None or found[1] != variables or found[0].fixed != program.fixed_addresses():
            found = self._places = program.places(self._blocks, variables), list(variables)
        program.run_at(found[0], variables)


class WebGpuHostCopy(HostCopy, WebGpuCall):
    """A copy of the bytes of an array to another one, each of the host or the device."""

    @property
    def recorded(self) -> RecordedWork:
        return RecordedWork.copy(self._target, self._source)


class WebGpuRecording(CallRecording):
    """See :class:`~ostinato.backends.common.encoded.Recording`.

    Args:
        commands: holds the variable block.
        gpu: the device.
        calls: the calls, and whether each reads its Variables from the block.
    """

    def __init__(self, commands: Commands, gpu: Gpu, calls: Sequence[tuple[Call, bool]]) -> None:
        super().__init__(commands, calls)
        works = [call.recorded for call, _ in calls if isinstance(call, WebGpuCall)]
        self._merge = MergedReplay.of(gpu, works)
        self._merged: MergedReplay | None = None

    def _run(self, values: Sequence[list[int]]) -> None:
        if self._merge is None:
            super()._run(values)
            return
        if self._merged is None:
            self._merged = self._merge()
        self._merged.replay(values)
