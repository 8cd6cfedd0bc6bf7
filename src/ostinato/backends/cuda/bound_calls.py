"""Bound calls whose later calls may be one native launch each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.commands import BoundCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda._graph_calls import Epoch, GraphRun
    from ostinato.backends.cuda.program import CudaProgram

__all__ = ["CudaCall"]


class CudaCall(BoundCall):
    """See :class:`~ostinato.backends.common.commands.BoundCall`."""

    _program: CudaProgram
    _epoch: Epoch | None = None  # in which the places were found

    def run(self, variables: Sequence[int]) -> None:
        epoch = self._program.epoch
        if self._epoch is not epoch:
            self._epoch, self._places = epoch, None
        super().run(variables)

    def run_slowly(self) -> GraphRun | None:
        """Make the call; return the native run that later calls are, if they can be one."""
        self()
        if self._places is None or self._epoch is None or self._resident:
            return None
        places, variables = self._places
        owners = self._program, *self._blocks
        return self._program.graph_run(self._epoch, places, variables, self.accesses, owners)
