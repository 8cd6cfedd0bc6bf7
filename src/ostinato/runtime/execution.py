"""One run of a compiled graph: its checks, its memory, and its position in the order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ostinato.errors import CaptureError, InputError, VariableError
from ostinato.ir.binding import variable_values
from ostinato.plan.device_array import CUDA, DeviceArray, device_of, on_host
from ostinato.plan.order import ORDER, Accesses, Submission, arrays_touched
from ostinato.runtime.arena_outputs import ArenaOutputs, read_only
from ostinato.runtime.signature import NO_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ostinato.backends.base import Executable
    from ostinato.backends.common.context import Context
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.handles import Handles
    from ostinato.runtime.signature import Live, Signature

__all__ = ["Execution", "PreparedRun", "listed", "nothing"]


class PreparedRun(NamedTuple):
    """A run on arrays of known shapes, without further checks.

    Attributes:
        run: called with a buffer for each input and each output, and ``variables``, or other values
            within their bounds. The buffers are C-contiguous and at least of the sizes that follow,
            written ones apart from all others.
        variables: of the run.
        outputs: the shape and dtype of each output.
        bind: called as ``run``, gives a call that does the same at each call, and can be recorded.
        names: of the variables.
    """

    run: Callable[[list[Any], tuple[Any, ...]], None]
    variables: tuple[Any, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    bind: Callable[[list[Any], tuple[Any, ...]], Callable[[], None]]
    names: tuple[str, ...]


class Execution:
    """The runs of one compiled graph on the memory of one executable.

    Every call that runs, reads or writes is a submission that touches the executable's memory, so
    that one takes effect after the other. There are two paths. On the short one, the native core
    submits a run on arrays that were seen before. The long one submits it here, completes inputs
    with handles, converts arrays, and keeps results that the caller does not want in the arena.

    Args:
        signature: the graph's inputs, outputs and params.
        executable: runs it.
        context: the queue that it submits to.
        handles: those of this graph.
        cast: whether arrays of other dtypes are converted.

    Attributes:
        quick: whether runs may try the short path.
    """

    def __init__(
        self,
        signature: Signature,
        executable: Executable,
        context: Context,
        handles: Handles,
        *,
        cast: bool,
    ) -> None:
        self.signature = signature
        self.executable = executable
        self.context = context
        self.handles = handles
        self.cast = cast
        self.quick = False
        self._run_fresh = executable.run_fresh
        self._arena_outputs: ArenaOutputs | None = None
        self.choose_path()

    @property
    def accesses(self) -> Accesses:
        """The memory that every call touches."""
        return self.executable.accesses

    def clone(self, context: Context | None) -> Execution:
        """The same on memory of its own; see :meth:`CompiledGraph.clone`."""
        executable = self.executable
        copied = executable.clone() if context is None else executable.clone(context)
        handles = self.handles.copy()
        return Execution(self.signature, copied, context or self.context, handles, cast=self.cast)

    def choose_path(self) -> None:
        """Let runs take the short path, or not; to be called in turn with runs."""
        executable = self.executable
        read = self.signature.resident and not executable.minds_block
        aside = executable.unset or self.handles.active or read
        executable.direct = not aside
        # A hint: the executable decides when its turn has come.
        self.quick = executable.direct or (not aside and executable.minds_block)

    def in_order(self, what: str, touched: Accesses | None = None) -> Submission:
        """The calling thread's position in the order, for ``what`` it does to this graph's memory.

        Args:
            what: the call, and why a recording can not hold it.
            touched: other memory that it reads or writes.

        Raises:
            CaptureError: inside a recording.
        """
        self.context.refuse_while_capturing(what)
        if touched is None:
            return Submission(self.accesses)
        return Submission(self.accesses, touched)

    def block(self, given: Mapping[str, int] = NO_VALUES) -> Mapping[str, int]:
        """The values of Variables that a run takes from the device's variable block.

        Args:
            given: those that the caller gives.

        Raises:
            VariableError: a Variable is in both.
        """
        if not self.signature.resident:
            return NO_VALUES
        values = self.context.resident_values
        block = {name: values[name] for name in self.signature.resident if name in values}
        if twice := [name for name in given if name in block]:
            raise VariableError(
                f"Variable {twice[0]!r} is read from the variable block in dev-state mode; write "
                "it with set_decode_state"
            )
        return block

    def run(
        self,
        inputs: object,
        out: Any = None,
        *,
        variables: object = None,
        positions: Sequence[int] | None = None,
        feed: Mapping[str, int] | None = None,
        name: str = "run",
    ) -> list[Array]:
        """A run by the long path whose caller reads all outputs, or those at ``positions``.

        Args:
            inputs, out, variables: as for :meth:`CompiledGraph.run`.
            positions: the outputs to be read; ``None``: all.
            feed: handles that take outputs after this run alone.
            name: the call's, for messages.
        """
        given = self.values(variables)
        inputs, out = self.adopted(inputs), self.adopted(out)

        def choose(live: Live) -> Sequence[Array | None]:
            if out is not None:
                return self.signature.check_outputs(out, live)
            return self.fresh(live, positions)

        touched = self._touched(inputs, out)
        with self.in_order(f"{name} reads its results back", touched):
            return self.perform(inputs, choose, feed=feed, variables=given, own=out is None)

    def _touched(self, inputs: Any, out: Any = None) -> Accesses:
        """The memory of the arrays that a run is given."""
        written = self.signature.written
        if not written or not isinstance(inputs, Mapping):
            return arrays_touched(listed(inputs), listed(out))
        read = [array for name, array in inputs.items() if name not in written]
        rest = [array for name, array in inputs.items() if name in written]
        return arrays_touched(read, [*rest, *listed(out)])

    def fresh(self, live: Live, positions: Sequence[int] | None = None) -> list[Array | None]:
        """An array for each output, or those at ``positions``, whose shape depends on no data."""
        wanted = range(len(live.outputs)) if positions is None else positions
        return [
            np.empty(shape, dtype) if i in wanted and i not in live.data_sized else None
            for i, (shape, dtype) in enumerate(live.outputs)
        ]

    def run_quick(self, inputs: object, out: Any, variables: object = None) -> list[Array] | None:
        """A run by the short path; ``None``, and nothing has happened, where that is refused.

        That is so where arrays or values of Variables are not plainly right, handles have to be
        minded, or the calling thread records: the long path does it, or says what is wrong.
        """
        if not self.quick:
            return None
        known = self.signature.recognise_sizes(inputs, variables=variables)
        if known is None:
            return None
        arrays, live = known
        if live.binds:
            return None
        if out is None and self._run_fresh is not None:
            try:
                fresh = self._run_fresh(arrays, live.variables)
            except CaptureError:
                return None
            if fresh is not None:
                return fresh
        outputs = live.empty() if out is None else self.signature.check_outputs(out, live)
        try:
            return outputs if self.executable.run_direct(arrays, outputs, live.variables) else None
        except (ValueError, CaptureError):
            return None

    def run_in_arena(self, inputs: Sequence[Array], live: Live) -> ArenaOutputs | None:
        """As :meth:`run_quick`, with the results in the arena, on inputs that were recognised."""
        if not self.quick or live.binds:
            return None
        results = self.arena_outputs(live)
        try:
            ran = self.executable.run_direct(inputs, results.arrays, live.variables)
            return results if ran else None
        except (ValueError, CaptureError):
            return None

    def run_raw(self, inputs: object, variables: object) -> list[Array]:
        """A run by the long path; see :meth:`CompiledGraph.run_raw`."""
        given = self.values(variables)
        inputs = self.adopted(inputs)
        with self.in_order("run_raw reads its results back", self._touched(inputs)):
            outputs = self.perform(inputs, nothing, variables=given)
            results = self._arena_outputs
            assert results is not None
            return [
                view.view() if array is own else read_only(on_host(array))
                for array, own, view in zip(outputs, results.arrays, results.views, strict=True)
            ]

    def run_slots(self, inputs: Mapping[str, Array], variables: object) -> list[tuple[int, int]]:
        """A run by the long path; see :meth:`CompiledGraph.run_slots`."""
        given = self.values(variables)
        inputs = self.adopted(inputs)
        touched = self._touched(inputs)
        with self.in_order("run_slots reads its results back", touched):
            outputs = self.perform(inputs, self.results_in_arena, variables=given)
        offsets = self.executable.current.result_offsets
        return [(o, array.size) for o, array in zip(offsets, outputs, strict=True)]

    def bind(self, inputs: object, outputs: object, variables: object) -> Callable[[], None]:
        """See :meth:`CompiledGraph.bind`."""
        given = self.values(variables)
        inputs, outputs = self.adopted(inputs), self.adopted(outputs)
        block = self.block(given)
        arrays, live = self.checked(inputs, bound=True, block=block, variables=given)
        return self.bound_call(arrays, self.signature.check_outputs(outputs, live, block), live)

    def prepare(
        self, shapes: Sequence[tuple[int, ...]], variables: object = None
    ) -> PreparedRun | None:
        """See :meth:`CompiledGraph.prepare_run`."""
        signature, executable = self.signature, self.executable
        aside = executable.unset or self.handles.active or signature.resident
        if aside or signature.reads_contents or self.context.device.kind != "CPU":
            return None
        live = signature.live(shapes, variables=self.values(variables))
        if live.binds:
            return None
        inputs = len(signature.inputs)

        def bind(buffers: list[Any], values: tuple[Any, ...]) -> Callable[[], None]:
            return executable.bind(buffers[:inputs], buffers[inputs:], values)

        run = executable.run_buffers(inputs)
        return PreparedRun(run, live.variables, live.outputs, bind, tuple(signature.variables))

    def write_params(self, params: Mapping[str, Any]) -> None:
        """Check params and write them, in turn with runs."""
        self.executable.write_params(self.signature.check_params(params, cast=self.cast))
        self.choose_path()

    def perform(
        self,
        inputs: object,
        choose: Callable[[Live], Sequence[Array | None]],
        *,
        feed: Mapping[str, int] | None = None,
        variables: Mapping[str, int] = NO_VALUES,
        own: bool = False,
    ) -> list[Array]:
        """One run, with handles, when its turn has come.

        Args:
            inputs: those that handles stand in for may be missing.
            choose: for each output, the array that the caller wants to have filled, if any.
            feed: handles that take outputs after this run alone.
            variables: values of Variables that no input's shape gives.
            own: copy outputs whose shapes depend on data out of the arena.

        Returns:
            The outputs. Those that the caller did not want are in memory of ours.
        """
        given = self.handles.complete(inputs)
        block = self.block(variables)
        known = None
        if not (variables or self.executable.unset):
            known = self.signature.recognise(given, block)
        arrays, live = known or self.checked(given, block=block, variables=variables)
        chosen = choose(live)
        outputs = self._with_arena_outputs(chosen, live)
        feeds = {**self.handles.feeds, **feed} if feed else self.handles.feeds
        if feeds:
            results = self._launch_fed(arrays, chosen, outputs, live, feeds)
        else:
            results = self._launch(arrays, outputs, live)
        if own and live.data_sized:
            for position in live.data_sized:
                results[position] = results[position].copy()
            self.executable.last = tuple(results)
        return results

    def perform_many(
        self, input_sets: Sequence[object], variables: Mapping[str, int]
    ) -> list[list[Array]]:
        """A run for each set of inputs, with nothing in between; all outputs of each.

        Where one run decides what another one gets, or the shapes of its outputs, they run one by
        one; else the device has all of them at once.
        """
        runs = []
        for given in input_sets:
            block = self.block(variables)
            arrays, live = self.checked(
                self.handles.complete(given), block=block, variables=variables
            )
            if self.handles.feeds or live.data_sized:
                return [
                    self.perform(each, self.fresh, variables=variables, own=True)
                    for each in input_sets
                ]
            runs.append((arrays, self._with_arena_outputs(self.fresh(live), live), live))
        try:
            self.executable.run_many(
                [(arrays, outputs, live.variables) for arrays, outputs, live in runs]
            )
        except ValueError as error:
            raise self._refusal(*runs[0][:2], error) from None
        if runs:
            self.executable.last = tuple(runs[-1][1])
        return [outputs for _, outputs, _ in runs]

    def _launch(
        self,
        inputs: list[Array],
        outputs: list[Array],
        live: Live,
        consumed: Collection[int] = (),
    ) -> list[Array]:
        """One run; returns the outputs in the shapes that it gave them.

        Args:
            inputs, outputs, live: of the run.
            consumed: positions of inputs that nothing reads afterwards.
        """
        executable = self.executable
        try:
            if consumed:
                executable.run_consuming(inputs, outputs, live.variables, consumed)
            else:
                executable.run(inputs, outputs, live.variables)
        except VariableError:  # of a size that depends on data
            raise
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None
        if live.data_sized:
            outputs = live.fitted(outputs, executable.live_sizes)
        executable.last = tuple(outputs)
        return outputs

    def _launch_fed(
        self,
        inputs: list[Array],
        chosen: Sequence[Array | None],
        outputs: list[Array],
        live: Live,
        feeds: Mapping[str, int],
    ) -> list[Array]:
        """A run whose outputs handles take; the caller gets copies of those that it chose."""
        if clash := self.signature.overlap(inputs, outputs):
            raise InputError(clash)  # of arrays that the run itself may not get to see
        taken = self.handles.destinations(live, feeds)
        outputs = [taken.get(i, array) for i, array in enumerate(outputs)]
        results = self._launch(inputs, outputs, live, self.handles.replaced(inputs, feeds))
        for left in self.handles.take(taken, feeds):
            ORDER.memory_changes(left, replaced=True)
        self.choose_path()
        for position, buffer in taken.items():
            wanted = chosen[position]
            if wanted is not None:
                np.copyto(wanted, on_host(buffer))
                results[position] = wanted
        return results

    # -- memory for results without an array of the caller's --------------------------------------

    def _with_arena_outputs(self, chosen: Sequence[Array | None], live: Live) -> list[Array]:
        """``chosen``, with memory in the arena for the other outputs."""
        asked = [array for array in chosen if array is not None]
        if len(asked) == len(chosen):
            return asked
        results = self.arena_outputs(live).arrays
        return [own if c is None else c for c, own in zip(chosen, results, strict=True)]

    def results_in_arena(self, live: Live) -> list[Array]:
        """For each output, its memory in the arena."""
        return [*self.arena_outputs(live).arrays]

    def fitted_results_in_arena(self, live: Live) -> list[Array]:
        """The outputs of the last run where it left them all in the arena."""
        executable = self.executable.at(live.variables)
        return live.fitted(self.results_in_arena(live), executable.live_sizes)

    def arena_outputs(self, live: Live) -> ArenaOutputs:
        """The memory in the arena for outputs of these shapes."""
        results = self._arena_outputs
        if results is None or results.live is not live:
            executable = self.executable.at(live.variables)
            results = self._arena_outputs = ArenaOutputs.of(executable, live)
        return results

    def adopted(self, arrays: Any) -> Any:
        """Arrays as a caller gives them; those on a device become the executable's.

        Raises:
            InputError: the executable cannot use the memory of that device.
        """
        if not any(map(_is_on_device, listed(arrays))):
            return arrays
        if isinstance(arrays, Mapping):
            return {name: self._adopted(name, array) for name, array in arrays.items()}
        return [self._adopted(number, array) for number, array in enumerate(arrays)]

    def _adopted(self, name: object, array: Any) -> Any:
        if not _is_on_device(array):
            return array
        try:
            return self.executable.adopt(array)
        except InputError as error:
            raise InputError(f"{name!r}: {error}") from None

    def values(self, variables: object) -> Mapping[str, int]:
        """Values of Variables as a caller gives them, by name.

        Raises:
            VariableError: see :func:`~ostinato.ir.binding.variable_values`.
        """
        if variables is None:
            return NO_VALUES
        return variable_values(variables, self.signature.given)

    def checked(
        self,
        inputs: object,
        *,
        bound: bool = False,
        block: Mapping[str, int] = NO_VALUES,
        variables: Mapping[str, int] = NO_VALUES,
    ) -> tuple[list[Array], Live]:
        """See :meth:`Signature.check_inputs`.

        Raises:
            InputError, VariableError: as there; or a param was never set.
        """
        if self.executable.unset:
            unset = sorted(self.executable.unset)
            names = ", ".join(str(self.signature.params[name]) for name in unset)
            raise InputError(f"these params were never set: {names}; use set_param")
        given = {} if inputs is None else inputs
        return self.signature.check_inputs(
            given, cast=self.cast, bound=bound, block=block, variables=variables
        )

    def bound_call(
        self, inputs: Sequence[Array], outputs: Sequence[Array], live: Live
    ) -> Callable[[], None]:
        """A call on checked arrays."""
        try:
            return self.executable.bind(inputs, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None

    def _refusal(
        self, inputs: Sequence[Array], outputs: Sequence[Array], error: ValueError
    ) -> InputError:
        """The error for arrays that an executable refused."""
        return InputError(self.signature.overlap(inputs, outputs) or str(error))


def _is_on_device(array: object) -> bool:
    """Whether it is an array in memory of a device."""
    if type(array) is np.ndarray:
        return False
    return isinstance(array, DeviceArray) or device_of(array) == CUDA


def listed(arrays: object) -> Iterable[Any]:
    """Candidates for arrays in an argument of the caller's, by name or in order."""
    if isinstance(arrays, Mapping):
        return arrays.values()
    return arrays if isinstance(arrays, list | tuple) else ()


def nothing(live: Live) -> list[None]:
    """No array for any output: all of them go to the arena."""
    return [None] * len(live.outputs)
