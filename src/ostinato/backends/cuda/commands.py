"""Bound calls of a GPU's programs, and recordings of them that may run as one launch."""

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
from ostinato.backends.cuda.replay import MergedReplay, RecordedWork, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cuda.gpu import Stream
    from ostinato.backends.cuda.places import Places
    from ostinato.backends.cuda.program import CudaProgram
    from ostinato.plan.order import Accesses

__all__ = ["BoundCall", "CudaHostCopy", "CudaRecording"]


class CudaCall(Call):
    """A call that can be part of a launch."""

    @property
    @abstractmethod
    def recorded(self) -> RecordedWork:
        """Its work as part of a recording."""


class CudaRecording(CallRecording):
    """See :class:`~ostinato.backends.common.encoded.Recording`.

    Args:
        commands: holds the variable block.
        stream: takes the work of replays.
        calls: the calls, and whether each reads its Variables from the block.
    """

    def __init__(
        self, commands: Commands, stream: Stream, calls: Sequence[tuple[Call, bool]]
    ) -> None:
        super().__init__(commands, calls)
        self._stream = stream
        self._merged: MergedReplay | None = None
        self._works = [call.recorded for call, _ in calls if isinstance(call, CudaCall)]
        self._merges = MergedReplay.possible(self._works)

    def _run(self, values: Sequence[list[int]]) -> None:
        if not self._merges:
            super()._run(values)
            return
        if self._merged is None:
            self._merged = MergedReplay(self._stream, self._works)
        self._merged.replay(values)


class BoundCall(ProgramCall, CudaCall):
    """A program with its arrays and the values of its Variables; see :class:`ProgramCall`."""

    def __init__(
        self,
        program: CudaProgram,
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
        program = self._program
        uses = [
            Use(block, external.written, not external.size, number)
            for number, (block, external) in enumerate(
                zip(self._blocks, program.externals, strict=True)
            )
        ]
        return RecordedWork(program, tuple(uses))

    def run(self, variables: Sequence[int]) -> None:
        program, found = self._program, self._places
        if found is None or found[1] != variables or found[0].fixed != program.fixed_addresses():
            found = self._places = program.places(self._blocks, variables), list(variables)
        program.run_at(found[0], variables)


class CudaHostCopy(HostCopy, CudaCall):
    """A copy of the bytes of an array to another one, each of the host or the device."""

    @property
    def recorded(self) -> RecordedWork:
        target, source = Use(self._target, True, True, 0), Use(self._source, False, False, 1)
        return RecordedWork(None, (target, source))
