"""The recording of bound calls, and the variable block that calls may read instead of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ostinato.backends.common.decode_state import DECODE_VARIABLES
from ostinato.backends.common.program_runner import RunnableProgram
from ostinato.errors import CaptureError, VariableError
from ostinato.plan import _order
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray, on_host
from ostinato.plan.order import Accesses, Submission, arrays_touched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.encoded import Recording
    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_image import External

__all__ = [
    "BoundCall",
    "BoundProgram",
    "Call",
    "CallRecording",
    "Commands",
    "HostCopy",
    "ProgramCall",
    "RecordedWork",
    "Resident",
    "Use",
]


class BoundProgram(RunnableProgram, Protocol):
    """A device's program whose runs can be bound to arrays, and recorded."""

    @property
    def externals(self) -> Sequence[External]:
        """Inputs, then outputs."""

    @property
    def inputs(self) -> int:
        """The number of inputs."""

    def fixed_addresses(self) -> Sequence[Any]:
        """The addresses of the fixed slots: equal as long as they are the same memory."""

    def places(self, blocks: Sequence[Any], variables: Sequence[int], /) -> Any:
        """The memory of a run; its ``fixed`` is :meth:`fixed_addresses` of that moment."""

    def run_at(self, places: Any, variables: Sequence[int], /) -> None:
        """Run on memory that was found by :meth:`places`."""


class Use(NamedTuple):
    """An array that a call reads or writes.

    Attributes:
        array: of the host or the device.
        written: whether it is written.
        whole: whether a write changes all of its bytes.
        number: the input or output of the program that it is.
    """

    array: Any
    written: bool
    whole: bool
    number: int


class RecordedWork(NamedTuple):
    """A recorded call: a program on arrays, or a copy between two.

    Attributes:
        program: the program; ``None``: the second array is copied to the first.
        uses: its arrays.
    """

    program: Any
    uses: tuple[Use, ...]


class Replay(Protocol):
    """Recorded work as one launch."""

    def replay(self, variables: Sequence[Sequence[int]], /) -> None:
        """Run all of it; each call has its values of Variables."""


class Commands:
    """Whether the bound calls of a context run or are recorded, and its variable block.

    Args:
        label: names the context in messages.
        merge: makes recorded work one launch; ``None``: that is not possible.

    Attributes:
        block: the values of ``token``, ``position`` and ``kv_len``.
        from_block: whether calls read these from the block.
        recording_number: the number of the recording in progress, or 0.
    """

    def __init__(
        self, label: str, merge: Callable[[Sequence[RecordedWork]], Callable[[], Replay] | None]
    ) -> None:
        self._label = label
        self._merge = merge
        self._calls: list[tuple[Call, bool]] = []
        self.block = (0, 0, 1)
        self.from_block = False
        self.recording_number = 0

    @property
    def accesses(self) -> Accesses:
        """The accesses of a write of the block or of its mode."""
        return Accesses([(id(self), 1, True)])

    @property
    def recording(self) -> bool:
        """Whether bound calls of the calling thread are recorded."""
        return self.recording_number != 0 and _order.is_recording(self.recording_number)

    @property
    def n_calls(self) -> int:
        """The number of calls in the recording in progress."""
        return len(self._calls)

    def begin(self, exclusive: bool) -> None:
        """Record the calling thread's bound calls."""
        self._calls = []
        self.recording_number = _order.begin_recording(self._label, exclusive)

    def end(self) -> Recording:
        """Stop recording, and return the recording.

        Raises:
            CaptureError: the recording has failed.
        """
        calls, failure = self._taken()
        if failure is not None:
            raise CaptureError(failure)
        works = [work for call, _ in calls if (work := call.recorded) is not None]
        merged = self._merge(works) if len(works) == len(calls) else None
        return CallRecording(self, calls, merged)

    def cancel(self) -> None:
        """Stop recording, and drop the recording."""
        self._taken()

    def _taken(self) -> tuple[list[tuple[Call, bool]], str | None]:
        calls, self._calls = self._calls, []
        number, self.recording_number = self.recording_number, 0
        return calls, _order.end_recording(number)

    def uses(self, memory: object) -> bool:
        """Whether the recording in progress runs on this memory, or is a call of this program."""
        return any(call.uses(memory) for call, _ in list(self._calls))

    def takes(self, call: Call) -> bool:
        """Record a call, if the calling thread records.

        Raises:
            CaptureError: it makes an exclusive recording of another context.
            VariableError: the call needs the block, and the mode is off.
            PlanError: memory of the call was given back.
        """
        if self.recording:
            call.check()
            self._calls.append((call, call.reads_block()))
            return True
        _order.refuse_elsewhere(self.recording_number, self._label, CaptureError)
        return False


class CallRecording:
    """See :class:`~ostinato.backends.common.encoded.Recording`.

    Args:
        commands: holds the variable block.
        calls: the calls, and whether each reads its Variables from the block.
        merged: makes all of them one launch; ``None``: they are replayed one by one.
    """

    def __init__(
        self,
        commands: Commands,
        calls: Sequence[tuple[Call, bool]],
        merged: Callable[[], Replay] | None,
    ) -> None:
        self._calls = tuple(calls)
        self._merge = merged
        self._merged: Replay | None = None
        touched = [span for call, _ in calls for span in call.accesses]
        self.accesses = Accesses([*touched, (id(commands), 1, False)])

    @property
    def n_calls(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        for call, _ in self._calls:
            call.check()
        values = [call.values(from_block) for call, from_block in self._calls]
        if self._merge is not None:
            if self._merged is None:
                self._merged = self._merge()
            self._merged.replay(values)
            return
        for (call, _), variables in zip(self._calls, values, strict=True):
            call.run(variables)

    def uses(self, memory: object, /) -> bool:
        return any(call.uses(memory) for call, _ in self._calls)


class Resident:
    """The Variables of a program that can be read from the variable block.

    Args:
        commands: holds the block.
        sizes: the program's Variables, and the sizes of its inputs and outputs.
    """

    def __init__(self, commands: Commands, sizes: LiveSizes) -> None:
        self.commands = commands
        self._sizes = sizes
        self._found = [
            (position, DECODE_VARIABLES.index(name))
            for position, (name, _, _) in enumerate(sizes.variables)
            if name in DECODE_VARIABLES
        ]

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def accesses(self) -> list[tuple[int, int, bool]]:
        """The access to the block of a run of the program."""
        return [(id(self.commands), 1, False)] if self._found else []

    @property
    def count(self) -> int:
        """The number of all Variables of the program."""
        return len(self._sizes.variables)

    def values(self, given: Sequence[int], nbytes: Sequence[int]) -> list[int]:
        """The values of a run's Variables, those of the block replaced by what it holds.

        Args:
            given: the values that the call was bound with.
            nbytes: the sizes of its inputs and outputs.

        Raises:
            VariableError: a value is out of bounds, or an array too small for it.
        """
        values = list(given)
        for position, entry in self._found:
            name, least, most = self._sizes.variables[position]
            value = self.commands.block[entry]
            if not least <= value <= most:
                raise VariableError(
                    f"Variable {name!r} is bounded by {least}..{most}, but the variable block has "
                    f"{value}"
                )
            values[position] = value
        for number, room in enumerate(nbytes):
            needed = self._sizes.nbytes(number, values)
            if room < needed and self._sizes.depends(number):
                token, position, kv_len = self.commands.block
                raise VariableError(
                    f"the variable block (token {token}, position {position}, kv_len {kv_len}) "
                    f"needs {needed} bytes in an array that has {room}"
                )
        return values


class Call(ABC):
    """A call that runs, or is recorded while its thread records.

    Attributes:
        commands: records it, and holds the variable block.
    """

    def __init__(self, commands: Commands) -> None:
        self.commands = commands

    def __call__(self) -> None:
        if self.commands.takes(self):
            return
        with Submission(self.accesses):
            self.check()
            self.run(self.values(self.reads_block()))

    @property
    @abstractmethod
    def accesses(self) -> Accesses:
        """The memory that a run touches."""

    @property
    def recorded(self) -> RecordedWork | None:
        """Its work as part of a launch; ``None``: it has to be run by itself."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Check that it can run; raises the reason if not."""

    def reads_block(self) -> bool:
        """Whether it reads Variables from the block now.

        Raises:
            VariableError: it has no others, and the mode is off.
        """
        return False

    def values(self, from_block: bool) -> list[int]:
        """The values of the Variables of a run.

        Raises:
            VariableError: a value of the block does not fit.
        """
        return []

    @abstractmethod
    def run(self, variables: Sequence[int]) -> None:
        """Run when its turn has come."""

    @abstractmethod
    def uses(self, memory: object) -> bool:
        """Whether it is a call of this program, or runs on this memory."""


class ProgramCall(Call):
    """A program with its arrays and the values of its Variables.

    Args:
        program: the program.
        resident: its Variables that may be read from the context's block.
        blocks: inputs, then outputs.
        inputs: how many of them are inputs.
        variables: the values; ``None``: the program takes all of them from the block.
        check: raises if the program can not run.
        touched: the memory that a run touches; by default, the program and the arrays.
        uses: whether the program runs on some memory, besides the arrays.
    """

    def __init__(
        self,
        program: RunnableProgram,
        resident: Resident,
        blocks: Sequence[Any],
        inputs: int,
        variables: Sequence[int] | None,
        check: Callable[[], object],
        touched: Callable[[], Accesses] | None = None,
        uses: Callable[[object], bool] | None = None,
    ) -> None:
        super().__init__(resident.commands)
        self._runnable = program
        self._resident = resident
        self._blocks = blocks
        self._variables = variables
        self._needs_block = bool(resident) and (variables is None or self.commands.from_block)
        self._nbytes = [block.nbytes for block in blocks]
        self._check = check
        self._uses = uses
        self._touched = touched
        arrays = arrays_touched(blocks[:inputs], blocks[inputs:])
        self._own = Accesses([*program.accesses, *arrays])

    @property
    def accesses(self) -> Accesses:
        return self._own if self._touched is None else self._touched()

    def check(self) -> None:
        self._check()

    def reads_block(self) -> bool:
        if not self._resident:
            return False
        if self._needs_block and not self.commands.from_block:
            raise VariableError(
                "this call takes Variables from the variable block, in dev-state mode only: turn "
                "that on with set_dev_state_mode(True)"
            )
        return self.commands.from_block

    def values(self, from_block: bool) -> list[int]:
        given = self._variables
        if given is None:
            given = [0] * self._resident.count
        return self._resident.values(given, self._nbytes) if from_block else list(given)

    def run(self, variables: Sequence[int]) -> None:
        self._runnable.run(self._blocks, variables)

    def uses(self, memory: object) -> bool:
        if isinstance(memory, tuple):
            return all(self.uses(part) for part in memory)
        if memory is self._runnable or any(_shares(block, memory) for block in self._blocks):
            return True
        return self._uses is not None and self._uses(memory)


class BoundCall(ProgramCall):
    """A call whose program finds the memory of its arrays once; see :class:`ProgramCall`."""

    def __init__(
        self,
        program: BoundProgram,
        resident: Resident,
        blocks: Sequence[Any],
        variables: Sequence[int] | None,
        check: Callable[[], object],
        touched: Callable[[], Accesses] | None = None,
        uses: Callable[[object], bool] | None = None,
    ) -> None:
        super().__init__(program, resident, blocks, program.inputs, variables, check, touched, uses)
        self._program = program
        self._places: tuple[Any, list[int]] | None = None

    @property
    def recorded(self) -> RecordedWork:
        program = self._program
        uses = [
            Use(block, external.written, not (external.size or external.inout), number)
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


class HostCopy(Call):
    """A copy of the bytes of an array to another one, each of the host or the device.

    Args:
        commands: records it.
        target: the array that is written, all of it.
        source: has at least as many bytes.
    """

    def __init__(self, commands: Commands, target: Any, source: Any) -> None:
        super().__init__(commands)
        self._target, self._source = target, source
        self._touched = arrays_touched([source], [target])

    @property
    def accesses(self) -> Accesses:
        return self._touched

    @property
    def recorded(self) -> RecordedWork:
        target, source = Use(self._target, True, True, 0), Use(self._source, False, False, 1)
        return RecordedWork(None, (target, source))

    def check(self) -> None:
        """Do nothing: arrays are always there."""

    def run(self, variables: Sequence[int]) -> None:
        octets = bytes_of(on_host(self._source))[: self._target.nbytes]
        if isinstance(self._target, DeviceArray):
            self._target.memory.write(0, octets)
        else:
            bytes_of(self._target)[:] = octets

    def uses(self, memory: object) -> bool:
        if isinstance(memory, tuple):
            return all(self.uses(part) for part in memory)
        return _shares(self._target, memory) or _shares(self._source, memory)


def _shares(block: object, memory: object) -> bool:
    """Whether an array is this one, or a view of it."""
    while block is not memory and isinstance(block, np.ndarray) and block.base is not None:
        block = block.base
    return block is memory
