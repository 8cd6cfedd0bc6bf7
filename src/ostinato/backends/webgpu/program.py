"""Programs: the steps of an image on the device, with copies of inputs and outputs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ostinato.backends.common.regions import host_address
from ostinato.backends.webgpu.memory import DeviceBlock
from ostinato.backends.webgpu.steps import Slots, StepRunner
from ostinato.backends.webgpu.transfers import Download
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray
from ostinato.plan.order import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_image import External
    from ostinato.backends.webgpu.code import LoadedCode
    from ostinato.backends.webgpu.commands import Commands
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.image import AnyStep
    from ostinato.backends.webgpu.launches import Launches
    from ostinato.backends.webgpu.partial_launch import RowLimits
    from ostinato.backends.webgpu.transfers import Pending

__all__ = ["Places", "WebGpuProgram"]

#: Launches that are kept, by the memory that they are on.
_MOST_LAUNCHES = 8

#: Runs of :meth:`WebGpuProgram.run_many` that are under way at a time.
_MOST_PENDING = 2


class Places(NamedTuple):
    """The memory of a run.

    Attributes:
        fixed: identities of the blocks of the fixed slots.
        slots: the block and the offset of each slot.
        uploads: arrays of the host that are copied to blocks before it.
        downloads: by number of an output, what is copied to the host after it.
    """

    fixed: tuple[tuple[int, int], ...]
    slots: Slots
    uploads: list[tuple[DeviceBlock, memoryview]]
    downloads: dict[int, Download]


class WebGpuProgram:
    """See :class:`~ostinato.backends.common.program_runner.RunnableProgram`.

    Args:
        gpu: the device.
        steps: of a run.
        code: of their kernels.
        sizes: the Variables, and the sizes of inputs and outputs.
        externals: inputs, then outputs; their slots follow the fixed ones.
        fixed: returns the present blocks of the fixed slots.
        touches: further accesses of every run.
        describe: names the nodes of a step, for messages.

    Attributes:
        sizes: see above.
        on_run: called after each run, with the values of its Variables.
        row_limits: returns the part of the program that the calling thread's runs need; ``None``:
            all.
    """

    def __init__(
        self,
        gpu: Gpu,
        steps: Sequence[AnyStep],
        code: LoadedCode,
        sizes: LiveSizes,
        externals: Sequence[External],
        fixed: Callable[[], Sequence[DeviceBlock]],
        *,
        touches: Sequence[tuple[int, int, bool]] = (),
        describe: Callable[[int], str] | None = None,
    ) -> None:
        self.sizes = sizes
        self._gpu = gpu
        self._code = code
        self._externals = tuple(externals)
        self._fixed = fixed
        self._touches = tuple(touches)
        self._runner = StepRunner(gpu, steps, code, sizes.variables, describe)
        self._staged = [
            DeviceBlock(gpu, e.nbytes, f"{'output' if e.written else 'input'} {n} of a run")
            for n, e in enumerate(externals)
        ]
        self._launches: dict[tuple[Any, ...], Launches] = {}
        self.on_run: Callable[[Sequence[int]], None] | None = None
        self.row_limits: Callable[[], RowLimits | None] = _no_limits

    def discard(self) -> None:
        """Give back the memory of its own, until the next run."""
        self._launches.clear()
        self._runner.discard()
        for block in self._staged:
            block.discard()

    @property
    def stage_experts(self) -> Callable[[int, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
        """Brings the experts of a layer that are missing; see :class:`StepRunner`."""
        return self._runner.stage_experts

    @stage_experts.setter
    def stage_experts(
        self, stage: Callable[[int, np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    ) -> None:
        self._runner.stage_experts = stage

    @cached_property
    def accesses(self) -> Accesses:
        return Accesses([(id(self), 1, True), *self._touches])

    @property
    def externals(self) -> Sequence[External]:
        """Inputs, then outputs."""
        return self._externals

    @cached_property
    def inputs(self) -> int:
        """The number of inputs that are only read; the other externals are written."""
        return sum(not external.written for external in self._externals)

    @property
    def mergeable(self) -> bool:
        """Whether a run may be a part of a larger submission."""
        return self._runner.on_device

    # -- runs --------------------------------------------------------------------------------------

    def run(self, blocks: Sequence[Any], variables: Sequence[int]) -> None:
        """Run on inputs, then outputs: arrays of the host, or blocks of the device.

        Raises:
            VariableError: a size that depends on data is out of bounds.
        """
        self.run_at(self.places(blocks, variables), variables)

    def run_at(self, places: Places, variables: Sequence[int]) -> None:
        """Run on memory that was found by :meth:`places`; see :meth:`run`."""
        self._finish(self._submit(places, variables), variables)

    def _finish(self, pending: Pending, variables: Sequence[int]) -> None:
        """Wait for the results of a run."""
        self._runner.finish(pending)
        self.note_run(variables)

    def note_run(self, variables: Sequence[int]) -> None:
        """Call :attr:`on_run` for a run that was part of other work."""
        if self.on_run is not None:
            self.on_run(variables)

    def run_many(self, runs: Sequence[tuple[Sequence[Any], Sequence[int]]]) -> None:
        """Run several times, in this order, the copies of one run beside the kernels of another.

        Args:
            runs: see :meth:`run` for the arguments of each.
        """
        pending: list[tuple[Pending, Sequence[int]]] = []
        try:
            for blocks, variables in runs:
                submitted = self._submit(self.places(blocks, variables), variables)
                pending.append((submitted, variables))
                if len(pending) == _MOST_PENDING:
                    self._finish(*pending.pop(0))
        finally:
            for one in pending:
                self._finish(*one)

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int]) -> Sequence[float]:
        """Run; return the seconds of each step."""
        places = self.places(blocks, variables)
        launches, limits = self._prepare(places), self.row_limits()
        downloads = _limited(places.downloads, limits)
        seconds = self._runner.run_profiled(launches, places.slots, variables, downloads, limits)
        self.note_run(variables)
        return seconds

    def perform(self, steps: Sequence[AnyStep], blocks: dict[int, DeviceBlock]) -> None:
        """Run other steps of the same code once, on these blocks by slot."""
        runner = StepRunner(self._gpu, steps, self._code, self.sizes.variables)
        slots = {slot: (block, 0) for slot, block in blocks.items()}
        values = [0] * len(self.sizes.variables)
        runner.submit(runner.launches(slots), slots, values)

    def _submit(self, places: Places, variables: Sequence[int]) -> Pending:
        launches, limits = self._prepare(places), self.row_limits()
        downloads = _limited(places.downloads, limits)
        return self._runner.submit(launches, places.slots, variables, downloads, limits=limits)

    def _prepare(self, places: Places) -> Launches:
        """Copy the inputs of a run; return the launches on its memory."""
        for block, data in places.uploads:
            block.write(0, data, padded=True)
        return self.launches(places.slots)

    def launches(self, slots: Slots) -> Launches:
        """The launches on some memory, made at its first use."""
        key = tuple((block.identity, offset) for block, offset in slots.values())
        found = self._launches.pop(key, None)
        if found is None:
            if len(self._launches) >= _MOST_LAUNCHES:
                self._launches.pop(next(iter(self._launches)))
            found = self._runner.launches(slots)
        self._launches[key] = found
        return found

    def fixed_addresses(self) -> tuple[tuple[int, int], ...]:
        """The identities of the blocks of the fixed slots."""
        return tuple(block.identity for block in self._fixed())

    def places(self, blocks: Sequence[Any], variables: Sequence[int]) -> Places:
        """The memory of a run on these inputs and outputs; see :meth:`run`."""
        fixed = self._fixed()
        slots: Slots = {number: (block, 0) for number, block in enumerate(fixed)}
        places = Places(tuple(block.identity for block in fixed), slots, [], {})
        for number, (external, block) in enumerate(zip(self._externals, blocks, strict=True)):
            slot = len(fixed) + number
            if isinstance(block, DeviceArray):
                slots[slot] = block.memory, 0
                continue
            if isinstance(block, DeviceBlock):
                slots[slot] = block, 0
                continue
            staged = self._staged[number]
            slots[slot] = staged, 0
            octets = octets_of(block)
            nbytes = min(octets.nbytes, self.sizes.nbytes(number, variables))
            if not nbytes:
                continue
            if external.written:
                places.downloads[number] = Download(staged, 0, host_address(octets), nbytes)
            if external.read:
                places.uploads.append((staged, octets[:nbytes]))
        return places

    # -- as part of other work ---------------------------------------------------------------------

    def own_launches(self, externals: Sequence[tuple[DeviceBlock, int]]) -> tuple[Slots, Launches]:
        """Memory with these inputs and outputs, and launches on it, with Variables of their own."""
        fixed = [(block, 0) for block in self._fixed()]
        slots: Slots = dict(enumerate([*fixed, *externals]))
        return slots, self._runner.launches(slots)

    def encode(
        self, commands: Commands, slots: Slots, launches: Launches, variables: Sequence[int]
    ) -> None:
        """Encode a run of a program that is :attr:`mergeable`."""
        limits = self.row_limits()
        self._runner.submit(launches, slots, variables, commands=commands, limits=limits)

    def result_bytes(self, number: int, variables: Sequence[int]) -> int:
        """The bytes of an output that a run of the calling thread gives."""
        nbytes, limits = self.sizes.nbytes(number, variables), self.row_limits()
        return nbytes if limits is None else min(nbytes, limits.nbytes.get(number, nbytes))


def _no_limits() -> RowLimits | None:
    """No limits: all rows are computed."""
    return None


def _limited(downloads: Mapping[int, Download], limits: RowLimits | None) -> list[Download]:
    """The downloads of what a run gives."""
    if limits is None:
        return [*downloads.values()]
    return [
        each._replace(nbytes=min(each.nbytes, limits.nbytes.get(number, each.nbytes)))
        for number, each in downloads.items()
    ]


def octets_of(block: Any) -> memoryview:
    """The bytes of an array, or of another contiguous buffer of the host."""
    return bytes_of(block) if isinstance(block, np.ndarray) else memoryview(block).cast("B")
