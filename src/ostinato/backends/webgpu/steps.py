"""The steps of a program, run on the memory of slots.

Launches between two steps of the host are submitted as one command buffer. A command buffer runs
once, so each run encodes its own: of launches whose bind groups and offsets are there already.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.regions import host_address
from ostinato.backends.webgpu.image import (
    ControlStep,
    CopyStep,
    ExpertStep,
    HostStep,
    LaunchStep,
    SizeStep,
)
from ostinato.backends.webgpu.launches import Launches
from ostinato.backends.webgpu.sizes import StoredSizes
from ostinato.backends.webgpu.transfers import Download, Downloads, Pending
from ostinato.errors import DeviceError, VariableError
from ostinato.lower.control import ControlKind
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.webgpu.code import LoadedCode
    from ostinato.backends.webgpu.commands import Commands
    from ostinato.backends.webgpu.gpu import Gpu, Pipeline
    from ostinato.backends.webgpu.image import AnyStep
    from ostinato.backends.webgpu.memory import DeviceBlock
    from ostinato.backends.webgpu.partial_launch import RowLimits

__all__ = ["Slots", "StepRunner"]

#: By number, the block and the offset of a slot.
Slots = dict[int, "tuple[DeviceBlock, int]"]

#: Values of Variables whose numbers of workgroups are remembered.
_MOST_COUNTS = 64

#: Times that one set of queries has room for, by the standard.
_MOST_TIMES = 4096

#: The order of bytes on a device.
_INT64 = np.dtype("<i8")


class StepRunner:
    """Runs steps in order.

    Args:
        gpu: the device.
        steps: the steps.
        code: of their kernels.
        variables: name and bounds of the Variables.
        describe: names the nodes of a step, for messages.

    Attributes:
        stage_experts: takes the number of a layer and the ids of its experts, brings those that are
            missing, and returns the place of each; needed by programs with such layers.
    """

    stage_experts: Callable[[int, np.ndarray[Any, Any]], np.ndarray[Any, Any]]

    def __init__(
        self,
        gpu: Gpu,
        steps: Sequence[AnyStep],
        code: LoadedCode,
        variables: Sequence[tuple[str, int, int]],
        describe: Callable[[int], str] | None = None,
    ) -> None:
        self._gpu = gpu
        self._steps = tuple(steps)
        self._describe = describe
        self.pipelines = [
            self._pipeline(code, number, step) if isinstance(step, LaunchStep) else None
            for number, step in enumerate(steps)
        ]
        self.loops = sum(
            isinstance(step, ControlStep) and step.kind == ControlKind.LOOP for step in steps
        )
        self._words = len(variables) + self.loops
        self._host = {
            number: code.host_program(step, self._words)
            for number, step in enumerate(steps)
            if isinstance(step, HostStep)
        }
        self._sizes = StoredSizes(variables, self.loops)
        self._groups = [
            self._sizes.read(step.groups) if isinstance(step, LaunchStep) else 0 for step in steps
        ]
        self._iterations = {
            number: self._sizes.read(step.iterations)
            for number, step in enumerate(steps)
            if isinstance(step, LaunchStep) and step.iterations
        }
        self._counts: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._downloads = Downloads(gpu)

    def _pipeline(self, code: LoadedCode, position: int, step: LaunchStep) -> Pipeline:
        try:
            return code.pipeline(step)
        except DeviceError as error:
            if self._describe is None:
                raise
            raise type(error)(f"{self._describe(position)}: {error}") from error

    @property
    def on_device(self) -> bool:
        """Whether the host has no part in a run: it is one submission."""
        return all(isinstance(step, LaunchStep | CopyStep) for step in self._steps)

    def launches(self, slots: Slots) -> Launches:
        """The launches on some memory."""
        return Launches(self._gpu, self._steps, self.pipelines, slots, self._words)

    def discard(self) -> None:
        """Give back the memory of its own, until the next run."""
        self._downloads.clear()

    # -- runs --------------------------------------------------------------------------------------

    def submit(
        self,
        launches: Launches,
        slots: Slots,
        variables: Sequence[int],
        downloads: Sequence[Download] = (),
        commands: Commands | None = None,
        limits: RowLimits | None = None,
    ) -> Pending:
        """Submit a run; its results are copied by :meth:`finish`.

        Args:
            launches: on ``slots``.
            slots: the memory.
            variables: the values of the Variables.
            downloads: the results.
            commands: encode here instead, without submitting: of steps :attr:`on_device` only.
            limits: the part that runs; by default, all.

        Raises:
            VariableError: a size that depends on data is out of bounds. The run has ended.
            DeviceError: the device refuses a step, or is lost.
        """
        values = [*variables, *[0] * self.loops]
        launches.write_variables(values)
        if commands is not None:
            counts = self._counts_at(values, limits)
            self._encode(commands, launches, 0, len(self._steps), slots, counts)
            return self._downloads.encode(commands, downloads)
        position = 0
        while True:
            end = self._end_of_stretch(position)
            last = end == len(self._steps)
            pending = Pending(None, 0, 0, ())
            if end > position or (last and downloads):
                counts = self._counts_at(values, limits)
                pending = self._submit_stretch(
                    launches, position, end, slots, counts, downloads if last else ()
                )
            if last:
                return pending
            position = self._on_host(end, slots, values, launches)

    def finish(self, pending: Pending) -> None:
        """Wait for the results of a run, and copy them."""
        self._downloads.finish(pending)

    def _end_of_stretch(self, position: int) -> int:
        while position < len(self._steps) and isinstance(
            self._steps[position], LaunchStep | CopyStep
        ):
            position += 1
        return position

    def _submit_stretch(
        self,
        launches: Launches,
        start: int,
        end: int,
        slots: Slots,
        counts: Sequence[tuple[int, int]],
        downloads: Sequence[Download],
    ) -> Pending:
        try:
            with self._gpu.calls(), self._gpu.driver.commands() as commands:
                self._encode(commands, launches, start, end, slots, counts)
                pending = self._downloads.encode(commands, downloads)
            return pending._replace(submission=commands.index)
        except DeviceError as error:
            raise self._named(error, launches, start, end, counts) from error

    def _encode(
        self,
        commands: Commands,
        launches: Launches,
        start: int,
        end: int,
        slots: Slots,
        counts: Sequence[tuple[int, int]],
    ) -> None:
        while start < end:
            step, stop = self._steps[start], start
            if isinstance(step, CopyStep):
                self._encode_copy(commands, step, slots)
                start += 1
                continue
            while stop < end and launches.by_step[stop] is not None:
                stop += 1
            commands.launch(launches.by_step[start:stop], counts[start:stop])  # type: ignore[arg-type]
            start = stop

    def _encode_copy(self, commands: Commands, step: CopyStep, slots: Slots) -> None:
        (target, to), (source, start) = (_at(slots, place) for place in step.arguments)
        if target is not source:
            target.copy_within(commands, to, source, start, step.nbytes)
            return
        between = type(source)(self._gpu, step.nbytes, "a copy")  # the driver wants two buffers
        between.copy_within(commands, 0, source, start, step.nbytes)
        target.copy_within(commands, to, between, 0, step.nbytes)

    def _counts_at(
        self, values: Sequence[int], limits: RowLimits | None = None
    ) -> list[tuple[int, int]]:
        """By step, its workgroups in two dimensions at these values of Variables."""
        key = (*values, *(() if limits is None else limits.extent))
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= _MOST_COUNTS:
                self._counts.clear()
            self._check_iterations(values)
            most = self._gpu.most_groups
            counts = [self._sizes.value(groups, values) for groups in self._groups]
            if limits is not None:
                counts = [
                    count if limit is None else min(count, limit)
                    for count, limit in zip(counts, limits.groups, strict=True)
                ]
            found = self._counts[key] = [folded(count, most) for count in counts]
        return found

    def _check_iterations(self, values: Sequence[int]) -> None:
        """Check that the device ends no loop of a kernel early.

        Raises:
            DeviceError: it would.
        """
        most = self._gpu.target.iterations
        for position, count in self._iterations.items():
            if most is not None and (found := self._sizes.value(count, values)) > most:
                name = "" if self._describe is None else f"{self._describe(position)}: "
                raise DeviceError(
                    f"{name}this adapter, {self._gpu.name}, ends loops after {most:,} iterations, "
                    f"and threads of this kernel may do {found:,}: use another device, or smaller "
                    "tensors"
                )

    def _named(
        self,
        error: DeviceError,
        launches: Launches,
        start: int,
        end: int,
        counts: Sequence[tuple[int, int]],
    ) -> DeviceError:
        """The error with the nodes of the first step that the device refuses, if there is one."""
        for position in range(start, end):
            launch = launches.by_step[position]
            if launch is None or self._describe is None:
                continue
            try:
                with self._gpu.calls():
                    self._gpu.driver.check(launch, counts[position])
            except DeviceError as found:
                return type(found)(f"{self._describe(position)}: {found}")
        return error

    # -- steps of the host -------------------------------------------------------------------------

    def _on_host(self, position: int, slots: Slots, values: list[int], launches: Launches) -> int:
        """Run a step of the host; return the position of the step that comes next."""
        step = self._steps[position]
        if isinstance(step, HostStep):
            self._compute(position, step, slots, values)
            return position + 1
        if isinstance(step, ExpertStep):
            self._stage(step, slots, values)
            return position + 1
        if isinstance(step, SizeStep):
            self._bind_size(step, slots, values)
            following = position + 1
        else:
            assert isinstance(step, ControlStep)
            following = self._decide(step, position, slots, values)
        launches.write_variables(values)
        return following

    def _compute(self, position: int, step: HostStep, slots: Slots, values: Sequence[int]) -> None:
        """Run a kernel of the CPU on copies of its arguments."""
        program = self._host[position]
        sizes = [self._sizes.value(self._sizes.read(text), values) for text in step.sizes]
        arguments = [program.memory(nbytes) for nbytes in sizes]
        self._read(step.arguments, slots, [a[:n] for a, n in zip(arguments, sizes, strict=True)])
        program.run(arguments, values)
        for place, array, nbytes, written in zip(
            step.arguments, arguments, sizes, step.writes, strict=True
        ):
            if written:
                block, offset = _at(slots, place)
                block.write(offset, bytes_of(array)[:nbytes])

    def _stage(self, step: ExpertStep, slots: Slots, values: Sequence[int]) -> None:
        """Bring the experts that the run calls, and write the place of each."""
        ids = np.empty(self._sizes.value(self._sizes.read(step.rows), values), _INT64)
        self._read(step.arguments[:1], slots, [ids.view(np.uint8)])
        places = self.stage_experts(step.layer, ids)
        block, offset = _at(slots, step.arguments[1])
        block.write(offset, bytes_of(places.astype(_INT64, copy=False)))

    def _read(
        self,
        places: Sequence[tuple[int, int]],
        slots: Slots,
        arrays: Sequence[np.ndarray[Any, Any]],
    ) -> None:
        """Copy memory to the host: what starts at a whole word by one submission."""
        downloads = []
        for place, array in zip(places, arrays, strict=True):
            block, offset = _at(slots, place)
            if offset % 4:
                block.read(offset, bytes_of(array))
            elif array.nbytes:
                downloads.append(Download(block, offset, host_address(array), array.nbytes))
        if downloads:
            with self._gpu.calls(), self._gpu.driver.commands() as commands:
                pending = self._downloads.encode(commands, downloads)
            self.finish(pending._replace(submission=commands.index))

    def _number(self, place: tuple[int, int], slots: Slots) -> int:
        """An int64 in memory of the device."""
        found = np.empty(1, _INT64)
        self._read([place], slots, [found.view(np.uint8)])
        return int(found[0])

    def _bind_size(self, step: SizeStep, slots: Slots, values: list[int]) -> None:
        limit = self._sizes.value(self._sizes.read(step.limit), values)
        if step.variable < 0:
            if limit < 0:
                raise VariableError(f"{step.problem}, got {limit}")
            return
        count, kept = step.arguments
        number = self._number(count, slots)
        if not 0 <= number <= limit:
            raise VariableError(f"{step.problem}, got {number}")
        block, offset = _at(slots, kept)
        block.write(offset, bytes_of(np.array([number], _INT64)))
        values[step.variable] = number

    def _decide(self, step: ControlStep, position: int, slots: Slots, values: list[int]) -> int:
        """The position of the step that comes after a decision."""
        kind, goes_on = ControlKind(step.kind), True
        if step.conditional:
            flag = np.empty(1, np.uint8)
            self._read(step.arguments[:1], slots, [flag])
            goes_on = bool(flag[0])
        if kind in (ControlKind.LOOP, ControlKind.END_LOOP):
            begins = kind is ControlKind.LOOP
            iteration = 0 if begins else values[step.counter] + 1
            values[step.counter] = iteration
            if step.trips:
                goes_on &= iteration < self._sizes.value(self._sizes.read(step.trips), values)
            if goes_on and step.counted:
                goes_on = iteration < self._number(step.arguments[-1], slots)
            return position + 1 if goes_on == begins else step.target
        return position + 1 if goes_on and kind is not ControlKind.ELSE else step.target

    # -- times -------------------------------------------------------------------------------------

    def run_profiled(
        self,
        launches: Launches,
        slots: Slots,
        variables: Sequence[int],
        downloads: Sequence[Download],
        limits: RowLimits | None = None,
    ) -> list[float]:
        """Run; return the seconds of each step."""
        seconds = [0.0] * len(self._steps)
        values = [*variables, *[0] * self.loops]
        launches.write_variables(values)
        position = 0
        while position < len(self._steps):
            step = self._steps[position]
            if isinstance(step, LaunchStep) and self._gpu.times_kernels:
                end = self._end_of_stretch(position)
                while isinstance(self._steps[end - 1], CopyStep):
                    end -= 1
                end = min(end, position + _MOST_TIMES // 2)
                counts = self._counts_at(values, limits)
                for number, spent in enumerate(
                    self._timed(launches, position, end, slots, counts), position
                ):
                    seconds[number] += spent
                position = end
                continue
            start, following = time.perf_counter(), position + 1
            if isinstance(step, LaunchStep | CopyStep):
                with self._gpu.calls(), self._gpu.driver.commands() as commands:
                    counts = self._counts_at(values, limits)
                    self._encode(commands, launches, position, position + 1, slots, counts)
                with self._gpu.calls():
                    self._gpu.driver.wait(commands.index)
            else:
                following = self._on_host(position, slots, values, launches)
            seconds[position] += time.perf_counter() - start
            position = following
        if downloads:
            self.finish(self._submit_stretch(launches, 0, 0, slots, (), downloads))
        return seconds

    def _timed(
        self,
        launches: Launches,
        start: int,
        end: int,
        slots: Slots,
        counts: Sequence[tuple[int, int]],
    ) -> list[float]:
        """Run a stretch in one submission; the seconds of its steps by the device's clock."""
        driver = self._gpu.driver
        found = np.zeros(2 * (end - start), np.uint64)
        with self._gpu.calls():
            queries = driver.time_queries(len(found))
            resolved = driver.query_buffer(found.nbytes)
            staging = driver.staging_buffer(found.nbytes)
            with driver.commands() as commands:
                for number, position in enumerate(range(start, end)):
                    launch, step = launches.by_step[position], self._steps[position]
                    if isinstance(step, CopyStep):
                        self._encode_copy(commands, step, slots)
                    times = queries, 2 * number
                    ready = [] if launch is None else [launch]
                    commands.launch(ready, counts[position : position + len(ready)], times)
                commands.resolve(queries, len(found), resolved)
                commands.copy(staging, 0, resolved, 0, found.nbytes)
            with driver.mapped(staging, found.nbytes, commands.index) as address:
                ctypes.memmove(host_address(found), address, found.nbytes)
        spans = found[1::2].astype(np.int64) - found[::2].astype(np.int64)
        return [max(0.0, float(ticks)) * driver.tick_seconds for ticks in spans]


def folded(groups: int, most: int) -> tuple[int, int]:
    """So many workgroups, or a few more, in two dimensions of at most ``most`` each."""
    if groups <= most:
        return groups, 1
    rows = -(-groups // most)
    return -(-groups // rows), rows


def _at(
    slots: Mapping[int, tuple[DeviceBlock, int]], place: tuple[int, int]
) -> tuple[DeviceBlock, int]:
    """The block of a place, and the offset in it."""
    block, start = slots[place[0]]
    return block, start + place[1]
