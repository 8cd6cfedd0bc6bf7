"""The calls that queue runs, and those that make many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import as_array
from ostinato.runtime.execution import Execution, nothing
from ostinato.runtime.signature import Live

if TYPE_CHECKING:
    from ostinato.runtime.arrays import Array

__all__ = ["QueuedCalls"]


class QueuedCalls(Execution):
    """Runs that are made later, and many at once; a part of :class:`CompiledGraph`."""

    def commit_no_wait(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Queue a run and return at once.

        The inputs are copied now, so that the caller may change them. Handles, states and params
        are those of the moment when the run's turn has come. Its results stay in the arena, where
        the next run overwrites them: read them through :meth:`read_output_row` or a handle that
        takes them. All other calls wait for queued runs, but for those of :meth:`bind`.

        What is wrong with the inputs is raised by :meth:`sync_pending`; later runs still run.
        """
        given = _copied(inputs)
        self._quick = False
        self._commits.submit(partial(self._perform, given, nothing))

    def sync_pending(self) -> None:
        """Wait for the queued runs, then raise the first error among them, if there was one."""
        self._commits.sync()

    def run_pipelined(self, input_sets: Iterable[Mapping[str, Any]]) -> list[list[Array]]:
        """Run once for each set of inputs, with no other run in between.

        Returns:
            By run, the outputs: the same bits as from as many calls of :meth:`run`.

        Raises:
            InputError, VariableError: as :meth:`run`. Unless handles are fed from run to run, all
                sets are checked before the first one runs.
        """
        if not isinstance(input_sets, Iterable):
            raise InputError(f"expected a list of inputs for each run, got {input_sets!r:.80}")
        sets = list(input_sets)
        self._commits.settle()
        with self._turn:
            if not self._handles.feeds:
                for given in sets:
                    self._checked(self._handles.complete(given))
            return [self._perform(given, Live.empty) for given in sets]


def _copied(inputs: object) -> object:
    """Inputs that the caller may change; what is no array is left for the run to refuse."""
    if not isinstance(inputs, Mapping):
        return inputs
    copies: dict[Any, Any] = dict(inputs)
    for name, given in copies.items():
        with suppress(GraphError):
            copies[name] = as_array(given).copy()
    return copies
