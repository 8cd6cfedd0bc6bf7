"""Executables of devices with memory of their own, of bytes: params, states and results."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from ostinato.backends.common.expert_layers import ExpertLayers
from ostinato.backends.common.model_executable import ModelExecutable
from ostinato.backends.common.program_executable import ProgramExecutable, SlotProgram
from ostinato.backends.common.program_image import Slot
from ostinato.plan.buffer import bytes_of
from ostinato.plan.device_array import DeviceArray
from ostinato.plan.order import NOTHING, Submission, arrays_touched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.expert_layers import ResidentTier
    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_executable import CompiledProgram
    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.backends.common.program_memory import BlockKind, ProgramMemory
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.backends.common.weights import Weights
    from ostinato.ir.stored import ExpertTensor, ParamSource
    from ostinato.lower.program import LoweredBuffer
    from ostinato.plan.buffer import Storage

__all__ = ["DeviceExecutable", "DeviceMemory", "DeviceProgram"]

Array = np.ndarray[Any, Any]


class DeviceMemory(Protocol):
    """A block of memory of a device."""

    @property
    def address(self) -> int:
        """The address of the first byte, on the device."""

    def write(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of the host into the block."""

    def read(self, offset: int, data: memoryview, /) -> None:
        """Copy bytes of the block to the host."""

    def repeat(self, offset: int, element: bytes, count: int, /) -> None:
        """Fill bytes of the block with copies of an element."""

    def copy_from(self, other: Self, /) -> None:
        """Copy another block of the same size."""

    def discard(self) -> None:
        """Give the memory back, until the next use; it is zero then."""


class DeviceProgram(SlotProgram, Protocol):
    """A device's program, which may be run several times at once.

    Attributes:
        on_run: called after each run, with the values of its Variables.
    """

    on_run: Callable[[Sequence[int]], None] | None

    @property
    def sizes(self) -> LiveSizes:
        """The Variables, and the sizes of inputs and outputs."""

    def run_many(self, runs: Sequence[tuple[Sequence[Any], Sequence[int]]], /) -> None:
        """Run several times, in this order."""


M = TypeVar("M", bound=DeviceMemory)
S = TypeVar("S", bound=tuple[Any, ...])
P = TypeVar("P", bound=DeviceProgram)
C = TypeVar("C", bound="Context")


class DeviceExecutable(ModelExecutable[M, S], ProgramExecutable[M, S, P, C]):
    """See :class:`~ostinato.backends.common.program_executable.ProgramExecutable`.

    Weights, states and intermediate values are on the device. Inputs and outputs are copied from
    and to the caller's arrays.

    Args:
        image, kind, context, params, compilation: see there.
        siblings: executables of the same model at other sizes, to share weights with; ``None``:
            there will be none.
        experts: further params: matrices of experts, of which only some stay on the device.

    Raises:
        ModelFormatError: experts could not be read from their file.
    """

    def __init__(
        self,
        image: ProgramImage[S],
        kind: BlockKind[M],
        context: C,
        params: Mapping[str, ParamSource],
        compilation: Callable[[], CompiledProgram],
        siblings: Sequence[Self] | None = None,
        experts: Mapping[str, ExpertTensor] | None = None,
    ) -> None:
        self._tensors = experts or {}
        self._weight_form = None if siblings is None else image.weight_form()
        self._siblings = tuple(siblings or ())
        super().__init__(image, kind, context, params, compilation)
        self._siblings = ()
        self.memory.weights.record(self._tensors)
        self._experts.begin()

    # -- what a device hands in --------------------------------------------------------------------

    @abstractmethod
    def _new_block(self, nbytes: int, purpose: str) -> M:
        """Memory of the device; messages mention its purpose."""

    @abstractmethod
    def _perform(self, steps: Sequence[S], blocks: dict[int, M]) -> None:
        """Run steps once, on these blocks by slot."""

    @abstractmethod
    def _memory_of(self, storage: Storage) -> M:
        """The block that a storage is."""

    def _open_tier(
        self,
        layers: Sequence[ResidentLayer],
        locations: Mapping[LoweredBuffer, tuple[int, int]],
        memory: M,
    ) -> ResidentTier:
        """The experts of some layers, of which none is resident.

        Args:
            layers: their matrices are in files.
            locations: by buffer, its slot and its offset there; theirs are all in one fixed slot.
            memory: that of the slot.

        Raises:
            ModelFormatError: the matrices could not be read.
        """
        raise NotImplementedError

    # -- memory ------------------------------------------------------------------------------------

    def _start(self, memory: ProgramMemory[M, S]) -> None:
        super()._start(memory)
        self._experts = self._open_experts()

    def _open_experts(self) -> ExpertLayers:
        """The layers of experts, of which none is resident."""
        if not self._tensors:
            return ExpertLayers(self._image.routings, self.program)
        lowered = self._compilation().lowered
        program, locations = lowered.program, lowered.layout.locations
        tier = self._open_tier(program.resident, locations, self._block(Slot.RESIDENT))
        resident = [layer.resident for layer in program.called]
        return ExpertLayers(self._image.routings, self.program, resident, tier)

    def clone(self, context: Context | None = None) -> Self:
        twin = super().clone(context)
        twin._experts.begin(self._experts)
        return twin

    def discard(self) -> None:
        super().discard()
        self._experts.clear()

    # -- params and states -------------------------------------------------------------------------

    def _shared_weights(self, params: Mapping[str, ParamSource]) -> Weights[M, S] | None:
        return self._weights_of(self._siblings, params)

    def _held(self, location: tuple[int, int], nbytes: int) -> memoryview:
        held = memoryview(bytearray(nbytes))
        self.memory.weights.block.memory.read(location[1], held)
        return held

    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[S]]) -> None:
        """Copy arrays into params, then prepack; non-retained params are only prepacked."""
        block = self.memory.weights.block
        given: dict[int, M] = {}
        with block.guard:
            self._own_weights()
            fixed = self.memory.fixed()
            for position, (name, (nbytes, place)) in enumerate(self._image.params.items()):
                if name not in params:
                    continue
                data = bytes_of(np.ascontiguousarray(params[name]))
                if place is None:
                    given[-1 - position] = self._new_block(nbytes, f"param {name!r}")
                    given[-1 - position].write(0, data)
                else:
                    slot, offset = place
                    self._store(fixed[slot], offset, data)
            if steps := [step for part in stale for step in part.steps]:
                self._perform(steps, {**dict(enumerate(fixed)), **given})

    def read_state(self, name: str) -> Array:
        state = self._image.states[name]
        array = state.empty()
        slot, offset = state.location
        self.memory.fixed()[slot].read(offset, bytes_of(array))
        return array

    def write_state(self, name: str, array: Array | None) -> None:
        state = self._image.states[name]
        slot, offset = state.location
        block = self.memory.fixed()[slot]
        if array is not None:
            self._store(block, offset, bytes_of(np.ascontiguousarray(array)))
        elif len(element := bytes(state.initial)) == state.itemsize:
            block.repeat(offset, element, math.prod(state.shape))
        else:
            self._store(block, offset, bytes_of(state.initial_array()))

    def _store(self, block: M, offset: int, data: memoryview) -> None:
        """Write a param or a state; the bytes behind it, up to a cache line's end, are unused."""
        block.write(offset, data)

    # -- arrays on the device ----------------------------------------------------------------------

    def resident(self, array: Array) -> Array:
        if isinstance(array, DeviceArray):
            return array
        kept: Any = self.empty(array.shape, array.dtype)
        kept.memory.write(0, bytes_of(np.ascontiguousarray(array)))
        resident: Array = kept
        return resident

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        block = self._new_block(math.prod(shape) * dtype.itemsize, "a handle")
        array: Any = DeviceArray(self._context.device, block, shape, dtype)
        found: Array = array
        return found

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.empty(shape, dtype)  # new memory of a device is zeroed

    # -- running -----------------------------------------------------------------------------------

    def run_many(
        self, runs: Sequence[tuple[Sequence[Array], Sequence[Array], Sequence[int]]]
    ) -> None:
        self.program.run_many(
            [(self._apart(inputs, outputs), variables) for inputs, outputs, variables in runs]
        )

    def run_direct(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> bool:
        self._context.refuse_while_capturing("run reads its results back")
        if not all(array.flags.c_contiguous for array in (*inputs, *outputs)):
            raise ValueError("an array is not C-contiguous")
        arrays, read = self._apart(inputs, outputs), self._inputs
        touched = arrays_touched(arrays[:read], arrays[read:]) if arrays else NOTHING
        with Submission(self.program.accesses, touched):
            if not self.direct:
                return False
            self.program.run(arrays, variables)
            self.last = tuple(outputs)
        return True

    @property
    def live_sizes(self) -> dict[str, int]:
        arena, found = self._block(Slot.ARENA), {}
        for name, offset in self._image.live_sizes.items():
            number = np.empty(1, np.int64)
            arena.read(offset, bytes_of(number))
            found[name] = int(number[0])
        return found

    # -- experts -----------------------------------------------------------------------------------

    @property
    def _layers(self) -> ExpertLayers:
        return self._experts

    def take_expert_ids(self) -> list[Array] | None:
        self.memory.check_open()
        return self._experts.take_ids(self._block(Slot.ARENA), lambda: self.live_sizes)

    # -- rows in use: all are computed, but calls of experts are counted of these alone ------------

    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        self._experts.extents.set(extent)

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        self._experts.extents.push(extent)

    def pop_limit(self) -> None:
        self._experts.extents.pop()
