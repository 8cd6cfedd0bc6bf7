"""The calls that queue runs, and those that make many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import CaptureError, GraphError, InputError
from ostinato.ir.leaves import as_array
from ostinato.plan.order import Submission, arrays_touched
from ostinato.runtime.active_extent import ActiveExtent
from ostinato.runtime.execution import nothing
from ostinato.runtime.signature import Live
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.runtime.arrays import Array

__all__ = ["QueuedCalls"]


class QueuedCalls(ActiveExtent):
    """Runs that are made later, and many at once; a part of :class:`CompiledGraph`."""

    def commit_no_wait(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Queue a run and return at once.

        The inputs are copied now, so that the caller may change them. Handles, states and params
        are those of the moment when the run's turn has come. Its results stay in the arena, where
        the next run overwrites them: read them through :meth:`read_output_row` or a handle that
        takes them. All other calls on this graph take effect after it.

        What is wrong with the inputs is raised by :meth:`sync_pending`; later runs still run.

        Inside a recording the run is recorded: on these very arrays, as by :meth:`bind`, and on the
        buffers that handles have now. A handle that takes an output keeps its buffer: the recorded
        run ends with a copy. Results are in the arena after each replay.

        Raises:
            InputError: inside a recording, the arrays do not fit or can not be used in place.
            VariableError: inside a recording, a size is out of its Variable's bounds.
            CaptureError: a handle takes an output, and has no buffer yet that it could be recorded
                with.
        """
        recording = self._context.capturing  # by this thread: nothing else begins or ends it
        given = inputs if recording else _copied(inputs)
        self._context.enqueue(
            self._commits,
            self._accesses,
            partial(self._perform_queued, given, self._own_extents()),
            partial(self._record, inputs),
        )

    def _perform_queued(self, inputs: object, extents: tuple[tuple[int, int] | None, ...]) -> None:
        """A queued run; ``extents`` are those of the thread that queued it."""
        with self._hinted(*extents):
            self._perform(inputs, nothing)

    def sync_pending(self) -> None:
        """Wait for the queued runs, then raise the first error among them, if there was one.

        Raises:
            CaptureError: inside a recording.
        """
        self._context.refuse_while_capturing("sync_pending waits")
        self._commits.sync()

    def run_pipelined(self, input_sets: Iterable[Mapping[str, Any]]) -> list[list[Array]]:
        """Run once for each set of inputs, with no other run in between.

        Returns:
            By run, the outputs: the same bits as from as many calls of :meth:`run`.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`. All sets are checked before the
                first one runs.
        """
        if not isinstance(input_sets, Iterable):
            raise InputError(f"expected a list of inputs for each run, got {input_sets!r:.80}")
        sets = list(input_sets)
        read = [array for given in sets if isinstance(given, Mapping) for array in given.values()]
        with self._in_order("run_pipelined reads its results back", arrays_touched(read)):
            self._check_sets(sets)
            return [self._perform(given, Live.empty) for given in sets]

    def _check_sets(self, sets: Sequence[object]) -> None:
        """Check the inputs of all runs, with handles of the sizes that each run will leave."""
        block = self._block()
        fed: dict[str, Array] = {}
        for given in sets:
            _, live = self._checked(self._handles.complete(given, fed), block=block)
            for name, position in self._handles.feeds.items():
                shape, dtype = live.outputs[position]
                fed[name] = np.zeros(shape, dtype)

    # -- inside a recording ------------------------------------------------------------------------

    def _record(self, inputs: object) -> None:
        """Record a run on these arrays, with its results in the arena."""
        with Submission(self._accesses):
            block = self._block()
            given = self._handles.complete(inputs)
            arrays, live = self._checked(given, bound=True, block=block)
            results = self._result_memory()
            calls = [self._bound(arrays, results, live)]
            calls += [
                self._context.copy_call(self._fed_buffer(name, position, live, block), result)
                for name, position in self._handles.feeds.items()
                for result in [results[position]]
            ]
            for call in calls:
                call()
            if block:
                shapes = [array.shape for array in arrays]
                self._context.after_replay(partial(self._replayed, shapes, tuple(block)))
            else:
                self._context.after_replay(partial(self._keep_last, self._places(live)))

    def _result_memory(self) -> list[Array]:
        """For each output, all the bytes that the arena has for it."""
        arena, offsets = self._executable.arena, self._executable.result_offsets
        sizes = [spec.type.max_bytes for spec in self.outputs.values()]
        return [
            np.ndarray((size,), np.uint8, arena, offset)
            for size, offset in zip(sizes, offsets, strict=True)
        ]

    def _fed_buffer(self, name: str, position: int, live: Live, block: Mapping[str, int]) -> Array:
        """The buffer that a recorded run copies an output to, for a handle that takes it.

        Raises:
            CaptureError: there is none of the right size.
        """
        feed = f"the handle of {name!r} takes output {position}, and"
        buffer = self._handles.bound.get(name)
        if buffer is None:
            raise CaptureError(f"{feed} has no buffer yet: use bind_handle before recording")
        shape, _ = live.outputs[position]
        if buffer.shape != shape:
            raise CaptureError(f"{feed} would change from {buffer.shape} to {shape}")
        dims = list(self.outputs.values())[position].shape
        if any(symbol.name in block for dim in dims for symbol in symbols(dim)):
            raise CaptureError(f"{feed} the size of that changes with the variable block")
        return buffer

    def _replayed(self, shapes: Sequence[tuple[int, ...]], resident: Sequence[str]) -> None:
        """Part of a replay: its results are in the arena, as large as the variable block says."""
        state = self._context.decode_state
        block = {name: state[name] for name in resident}
        live = self._signature.live(self._signature.used(shapes, block), block)
        self._keep_last(self._places(live))

    def _keep_last(self, results: Sequence[Array]) -> None:
        self._executable.last = tuple(results)


def _copied(inputs: object) -> object:
    """Inputs that the caller may change; what is no array is left for the run to refuse."""
    if not isinstance(inputs, Mapping):
        return inputs
    copies: dict[Any, Any] = dict(inputs)
    for name, given in copies.items():
        with suppress(GraphError):
            copies[name] = as_array(given).copy()
    return copies
