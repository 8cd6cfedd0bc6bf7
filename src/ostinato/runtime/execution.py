"""One run of a compiled graph: its checks, its memory, and its place in the order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.mutex import Mutex as Turn
from ostinato.backends.common.queue import Queue
from ostinato.errors import CaptureError, InputError
from ostinato.plan.order import ORDER, Accesses, Submission, arrays_touched
from ostinato.records import dataclass
from ostinato.runtime.handles import Handles, output_index
from ostinato.runtime.signature import NO_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.base import Capabilities, Executable
    from ostinato.backends.common.context import Context
    from ostinato.backends.options import CompileOptions
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Live, Signature

__all__ = ["Execution", "listed", "nothing", "read_only"]


class Execution:
    """What all ways to run a compiled graph share; a part of :class:`CompiledGraph`.

    Every call that runs, reads or writes is a submission that touches the executable's memory, so
    that one takes effect after the other. There are two paths. On the short one, the native core
    takes the place in the order for arrays that were seen before. The long one takes it here, then
    minds handles, converts arrays, and keeps results that the caller does not want in the arena.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    params: Mapping[str, TensorSpec]

    def __init__(
        self,
        signature: Signature,
        executable: Executable,
        context: Context,
        options: CompileOptions,
        capabilities: Callable[[], Capabilities],
    ) -> None:
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self.params = signature.params
        self._signature = signature
        self._context = context
        self._cast = options.cast_inputs
        self._capabilities = capabilities
        self._begin(executable, Handles(signature))

    def _begin(self, executable: Executable, handles: Handles) -> None:
        """Begin with memory of its own: what no other graph, and no clone, shares."""
        self._executable = executable
        self._handles = handles
        self._plan: ExecutionPlan | None = None
        self._planning = Turn()
        self._commits = Queue()
        self._extents: dict[int, list[tuple[int, int] | None]] = {}  # of threads with their own
        self._last_room: _Room | None = None
        self._accesses = executable.accesses
        self._run_direct = executable.run_direct
        self._choose_path()

    def _choose_path(self) -> None:
        """Let runs take the short path, or not; to be called in turn with runs."""
        aside = self._executable.unset or self._handles.active or self._signature.resident
        self._executable.direct = not aside
        self._quick = self._executable.direct  # the executable itself knows when its turn has come

    def _in_order(self, what: str, touched: Accesses | None = None) -> Submission:
        """The calling thread's place in the order, for ``what`` it does to this graph's memory.

        Args:
            what: the call, and why a recording can not hold it.
            touched: other memory that it reads or writes.

        Raises:
            CaptureError: inside a recording.
        """
        self._context.refuse_while_capturing(what)
        if touched is None:
            return Submission(self._accesses)
        return Submission(self._accesses, touched)

    def _block(self) -> Mapping[str, int]:
        """The values of Variables that a run takes from the device's variable block."""
        if not self._signature.resident:
            return NO_VALUES
        values = self._context.resident_values
        return {name: values[name] for name in self._signature.resident if name in values}

    def _positions(self, indices: object) -> list[int]:
        if not isinstance(indices, Iterable):
            raise InputError(f"expected positions of outputs, got {indices!r:.80}")
        return [output_index(index, len(self.outputs)) for index in indices]

    def _run_aside(
        self,
        inputs: object,
        out: Any = None,
        *,
        positions: Sequence[int] | None = None,
        feed: Mapping[str, int] | None = None,
        name: str = "run",
    ) -> list[Array]:
        """A run by the long path for a caller who reads all outputs, or those at ``positions``."""

        def choose(live: Live) -> Sequence[Array | None]:
            if out is not None:
                return self._signature.check_outputs(out, live)
            wanted = range(len(live.outputs)) if positions is None else positions
            return [
                np.empty(shape, dtype) if i in wanted else None
                for i, (shape, dtype) in enumerate(live.outputs)
            ]

        touched = arrays_touched(listed(inputs), listed(out))
        with self._in_order(f"{name} reads its results back", touched):
            return self._perform(inputs, choose, feed)

    def _launch_quick(self, inputs: Sequence[Array], outputs: list[Array], live: Live) -> bool:
        """A run by the short path; ``False``, and nothing has happened, where that is refused.

        That is so inside a recording, and where an array does not fit after all: the long path says
        what is wrong.
        """
        try:
            return self._run_direct(inputs, outputs, live.variables)
        except (ValueError, CaptureError):
            return False

    def _perform(
        self,
        inputs: object,
        choose: Callable[[Live], Sequence[Array | None]],
        feed: Mapping[str, int] | None = None,
    ) -> list[Array]:
        """One run, with handles, when its turn has come.

        Args:
            inputs: those that handles stand in for may be missing.
            choose: for each output, the array that the caller wants to have filled, if any.
            feed: handles that take outputs after this run alone.

        Returns:
            The outputs. Those that the caller did not want are in memory of ours.
        """
        given = self._handles.complete(inputs)
        block = self._block()
        known = None if self._executable.unset else self._signature.recognise(given, block)
        arrays, live = known or self._checked(given, block=block)
        chosen = choose(live)
        outputs = self._with_room(chosen, live)
        feeds = {**self._handles.feeds, **feed} if feed else self._handles.feeds
        if feeds:
            return self._launch_fed(arrays, chosen, outputs, live, feeds)
        self._launch(arrays, outputs, live)
        return outputs

    def _launch(self, inputs: list[Array], outputs: list[Array], live: Live) -> None:
        try:
            self._executable.run(inputs, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None
        self._executable.last = tuple(outputs)

    def _launch_fed(
        self,
        inputs: list[Array],
        chosen: Sequence[Array | None],
        outputs: list[Array],
        live: Live,
        feeds: Mapping[str, int],
    ) -> list[Array]:
        """A run whose outputs handles take; the caller gets copies of those that it chose."""
        if clash := self._signature.overlap(inputs, outputs):
            raise InputError(clash)  # of arrays that the run itself may not get to see
        taken = self._handles.destinations(live, feeds)
        self._launch(inputs, [taken.get(i, array) for i, array in enumerate(outputs)], live)
        for left in self._handles.take(taken, feeds):
            ORDER.memory_changes(left, replaced=True)
        self._choose_path()
        for position, buffer in taken.items():
            if chosen[position] is None:
                outputs[position] = buffer
            else:
                np.copyto(outputs[position], buffer)
        return outputs

    # -- memory for results that nobody brought an array for ---------------------------------------

    def _with_room(self, chosen: Sequence[Array | None], live: Live) -> list[Array]:
        """``chosen``, with places in the arena for the outputs that nobody chose."""
        asked = [array for array in chosen if array is not None]
        if len(asked) == len(chosen):
            return asked
        room = self._room(live).arrays
        return [place if c is None else c for c, place in zip(chosen, room, strict=True)]

    def _places(self, live: Live) -> list[Array]:
        """For each output, its place in the arena."""
        return [*self._room(live).arrays]

    def _room(self, live: Live) -> _Room:
        room, executable = self._last_room, self._executable
        address = executable.arena_address
        if room is None or room.live is not live or room.address != address:
            arena, offsets = executable.arena, executable.result_offsets
            arrays = [
                np.ndarray(shape, dtype, arena, offset)
                for offset, (shape, dtype) in zip(offsets, live.outputs, strict=True)
            ]
            slots = [(o, array.size) for o, array in zip(offsets, arrays, strict=True)]
            views = [*map(read_only, arrays)]
            room = self._last_room = _Room(live, address, arrays, views, slots)
        return room

    def _checked(
        self, inputs: object, *, bound: bool = False, block: Mapping[str, int] = NO_VALUES
    ) -> tuple[list[Array], Live]:
        if self._executable.unset:
            unset = sorted(self._executable.unset)
            names = ", ".join(str(self.params[name]) for name in unset)
            raise InputError(f"these params were never set: {names}; use set_param")
        given = {} if inputs is None else inputs
        return self._signature.check_inputs(given, cast=self._cast, bound=bound, block=block)

    def _bound(
        self, inputs: Sequence[Array], outputs: Sequence[Array], live: Live
    ) -> Callable[[], None]:
        """A call on checked arrays."""
        try:
            return self._executable.bind(inputs, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None

    def _refusal(
        self, inputs: Sequence[Array], outputs: Sequence[Array], error: ValueError
    ) -> InputError:
        """What was wrong with arrays that an executable would not run on."""
        return InputError(self._signature.overlap(inputs, outputs) or str(error))


@dataclass(frozen=True, eq=False)
class _Room:
    """Places in an arena, for outputs of certain shapes.

    Attributes:
        live: the shapes.
        address: the arena's.
        arrays: the places.
        views: the same, not to be written.
        slots: for each its offset in the arena, in bytes, and its number of elements.
    """

    live: Live
    address: int
    arrays: list[Array]
    views: list[Array]
    slots: list[tuple[int, int]]


def listed(arrays: object) -> Iterable[Any]:
    """What may be arrays among those that a caller gave, by name or in order."""
    if isinstance(arrays, Mapping):
        return arrays.values()
    return arrays if isinstance(arrays, list | tuple) else ()


def nothing(live: Live) -> list[None]:
    """What a caller wants who reads no output."""
    return [None] * len(live.outputs)


def read_only(array: Array) -> Array:
    """A view that can not be made writable."""
    octets: Any = array.reshape(-1).view(np.uint8)
    readable = np.frombuffer(memoryview(octets).toreadonly(), np.uint8)
    return readable.view(array.dtype).reshape(array.shape)
