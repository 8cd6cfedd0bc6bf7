"""Runs that are queued, recorded, or made as one batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.queue import Queue
from ostinato.errors import CaptureError, GraphError, InputError
from ostinato.ir.leaves import as_array
from ostinato.plan.device_array import DeviceArray
from ostinato.plan.order import Accesses, Submission, arrays_touched
from ostinato.runtime.execution import nothing
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.ir.binding import VariableValues
    from ostinato.runtime.active_extent import ActiveExtents, Extent
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.execution import Execution
    from ostinato.runtime.signature import Live

__all__ = ["QueueMethods", "QueuedCalls"]


class QueuedCalls:
    """The runs of one compiled graph that are queued, or recorded, and those that are made as one.

    Args:
        execution: the graph's runs.
        extents: the active extents that they go by.
    """

    def __init__(self, execution: Execution, extents: ActiveExtents) -> None:
        self._execution = execution
        self._extents = extents
        self._context = execution.context
        self._executable = execution.executable
        self._handles = execution.handles
        self._signature = execution.signature
        self._queue = Queue()

    def commit(self, inputs: Mapping[str, Any] | None, variables: object) -> None:
        """See :meth:`CompiledGraph.commit_no_wait`."""
        recording = self._context.capturing  # by this thread: nothing else begins or ends it
        inputs = self._execution.adopted(inputs)
        given = inputs if recording else _copied(inputs, self._signature.written)
        self._context.enqueue(
            self._queue,
            self._accesses(inputs),
            partial(self._perform_queued, given, variables, self._extents.own()),
            partial(self._record, inputs, variables),
        )

    def _accesses(self, inputs: object) -> Accesses:
        """The memory that a queued run touches: copies stand for arrays that it only reads."""
        own, written = self._execution.accesses, self._signature.written
        if not written or not isinstance(inputs, Mapping):
            return own
        arrays = [array for name, array in inputs.items() if name in written]
        return Accesses([*own, *arrays_touched([], arrays)])

    def _perform_queued(
        self, inputs: object, variables: object, extents: tuple[Extent, ...]
    ) -> None:
        """A queued run; ``extents`` are those of the thread that queued it."""
        values = self._execution.values(variables)
        with self._extents.applied(extents):
            self._execution.perform(inputs, nothing, variables=values)

    def sync(self) -> None:
        """See :meth:`CompiledGraph.sync_pending`."""
        self._context.refuse_while_capturing("sync_pending waits")
        self._queue.sync()

    def run_all(
        self, input_sets: Iterable[Mapping[str, Any]], variables: object
    ) -> list[list[Array]]:
        """See :meth:`CompiledGraph.run_pipelined`."""
        if not isinstance(input_sets, Iterable):
            raise InputError(f"expected a list of inputs for each run, got {input_sets!r:.80}")
        sets = list(input_sets)
        values = self._execution.values(variables)
        read = [array for given in sets if isinstance(given, Mapping) for array in given.values()]
        with self._execution.in_order("run_pipelined reads its results back", arrays_touched(read)):
            self._check_sets(sets, values)
            return self._execution.perform_many(sets, values)

    def _check_sets(self, sets: Sequence[object], values: Mapping[str, int]) -> None:
        """Check the inputs of all runs, with handles of the sizes that each run will leave."""
        block = self._execution.block(values)
        fed: dict[str, Array] = {}
        for given in sets:
            completed = self._handles.complete(given, fed)
            _, live = self._execution.checked(completed, block=block, variables=values)
            for name, position in self._handles.feeds.items():
                shape, dtype = live.outputs[position]
                fed[name] = np.zeros(shape, dtype)

    # -- inside a recording ------------------------------------------------------------------------

    def _record(self, inputs: object, variables: object) -> None:
        """Record a run on these arrays, with its results in the arena."""
        values = self._execution.values(variables)
        with Submission(self._execution.accesses):
            block = self._execution.block(values)
            given = self._handles.complete(inputs)
            arrays, live = self._execution.checked(given, bound=True, block=block, variables=values)
            results = self._result_memory(live)
            calls = [self._execution.bound_call(arrays, results, live)]
            calls += [
                self._context.copy_call(self._fed_buffer(name, position, live, block), result)
                for name, position in self._handles.feeds.items()
                for result in [results[position]]
            ]
            for call in calls:
                call()
            if block:
                shapes = [array.shape for array in arrays]
                self._context.after_replay(partial(self._replayed, shapes, tuple(block), values))
            else:
                self._context.after_replay(partial(self._keep_last, live))

    def _result_memory(self, live: Live) -> list[Array]:
        """For each output, all the bytes that the arena has for it."""
        executable = self._executable.at(live.variables)
        arena, offsets = executable.arena, executable.result_offsets
        if executable is self._executable:
            sizes = [spec.type.max_bytes for spec in self._signature.outputs.values()]
        else:
            sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in live.outputs]
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
        dims = list(self._signature.outputs.values())[position].shape
        if any(symbol.name in block for dim in dims for symbol in symbols(dim)):
            raise CaptureError(f"{feed} the size of that changes with the variable block")
        return buffer

    def _replayed(
        self,
        shapes: Sequence[tuple[int, ...]],
        resident: Sequence[str],
        variables: Mapping[str, int],
    ) -> None:
        """Part of a replay: its results are in the arena, as large as the variable block says."""
        state = self._context.decode_state
        block = {name: state[name] for name in resident}
        live = self._signature.live(self._signature.used(shapes, block), block, variables)
        self._keep_last(live)

    def _keep_last(self, live: Live) -> None:
        """Part of a replay: its results are in the arena."""
        self._executable.last = tuple(self._execution.fitted_results_in_arena(live))


def _copied(inputs: object, written: Collection[str]) -> object:
    """Inputs that the caller may change, but for those that the run writes to.

    What is no array is left for the run to refuse.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    copies: dict[Any, Any] = dict(inputs)
    for name, given in inputs.items():
        if name in written:
            continue
        with suppress(GraphError):
            array = given if isinstance(given, DeviceArray) else as_array(given)
            copies[name] = array.copy()
    return copies


class QueueMethods:
    """The methods of a compiled graph for queued runs."""

    _queue: QueuedCalls

    def commit_no_wait(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        variables: VariableValues | None = None,
    ) -> None:
        """Queue a run and return at once.

        The inputs are copied now, so that the caller may change them, but for those that the graph
        writes to (``Graph.inout``): the run takes their memory. Handles, states and params are
        those of the moment when the run's turn has come. Its results stay in the arena, where the
        next run overwrites them: read them through :meth:`read_output_row` or a handle that takes
        them. All other calls on this graph take effect after it.

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
        self._queue.commit(inputs, variables)

    def sync_pending(self) -> None:
        """Wait for the queued runs, then raise the first error among them, if there was one.

        Raises:
            CaptureError: inside a recording.
        """
        self._queue.sync()

    def run_pipelined(
        self,
        input_sets: Iterable[Mapping[str, Any]],
        *,
        variables: VariableValues | None = None,
    ) -> list[list[Array]]:
        """Run once for each set of inputs, with no other run in between.

        Returns:
            By run, the outputs: the same bits as from as many calls of :meth:`run`.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`. All sets are checked before the
                first one runs.
        """
        return self._queue.run_all(input_sets, variables)
