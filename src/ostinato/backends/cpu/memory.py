"""Where the buffers of a program lie, and the memory that clones share until one writes it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ostinato.backends.cpu import _core
from ostinato.backends.turns import Turn
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.plan.memory import ALIGNMENT, Placement, arena_placement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ostinato.lower.program import Program

__all__ = ["Layout", "Slot", "Tenancy"]


class Slot(IntEnum):
    """The fixed slots of a native program; those of inputs and outputs come after them."""

    ARENA = 0  #: what lives within a run, and results that nobody brought an array for
    CONSTANTS = 1  #: shared by clones for good
    WEIGHTS = 2  #: params and what is prepared from them; shared by clones until one writes
    STATES = 3  #: what lives from run to run
    IDLE = 4  #: how many rows kernels may leave out
    PLACED = 5  #: experts that have places, and where


@dataclass(frozen=True)
class Layout:
    """Where each buffer of a program lies.

    Attributes:
        places: by buffer, its slot and its offset there.
        sizes: by fixed slot, its bytes.
        results: by output, the offset in the arena of the place for a result that is not asked for.
        placement: how buffers that live within a run share the arena.
    """

    places: Mapping[LoweredBuffer, tuple[int, int]]
    sizes: tuple[int, ...]
    results: tuple[int, ...]
    placement: Placement

    @staticmethod
    def of(
        program: Program, passing: Collection[LoweredBuffer] = (), *, apart: bool = False
    ) -> Layout:
        """The layout of a program. Buffers start on cache lines.

        Args:
            program: the buffers.
            passing: params that have no place here.
            apart: let no two buffers share memory.
        """
        placement, temps = arena_placement(program, apart=apart)
        places = {
            buffer: (int(Slot.ARENA), offset)
            for buffer, offset in zip(temps, placement.offsets, strict=True)
        }
        outputs = program.outputs.values()
        results, arena_bytes = _side_by_side(outputs, placement.arena_bytes)
        sizes = [arena_bytes]
        used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
        placed = [buffer for layer in program.stored_experts for buffer in layer.buffers]
        lasting = [*program.params.values(), *program.states.values(), *placed]
        owned = dict.fromkeys([*lasting, *used])
        for slot, roles in (
            (Slot.CONSTANTS, (Role.CONSTANT,)),
            (Slot.WEIGHTS, (Role.PARAM, Role.PREPARED)),
            (Slot.STATES, (Role.STATE,)),
            (Slot.IDLE, (Role.IDLE,)),
            (Slot.PLACED, (Role.PLACED,)),
        ):
            members = [b for b in owned if b.role in roles and b not in passing]
            offsets, size = _side_by_side(members)
            places.update((b, (int(slot), o)) for b, o in zip(members, offsets, strict=True))
            sizes.append(size)
        for number, buffer in enumerate((*program.inputs.values(), *outputs), len(Slot)):
            places[buffer] = (number, 0)
        return Layout(places, tuple(sizes), tuple(results), placement)

    def members(self, slot: Slot) -> list[tuple[LoweredBuffer, int]]:
        """The buffers of a fixed slot, with their offsets."""
        return [(b, offset) for b, (number, offset) in self.places.items() if number == slot]


def _side_by_side(buffers: Iterable[LoweredBuffer], start: int = 0) -> tuple[list[int], int]:
    """Offsets from ``start`` on, and where the last buffer ends."""
    offsets = []
    for buffer in buffers:
        offsets.append(start)
        start += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, start


class _Block:
    """Memory, and those who read it. What reads it keeps its tenancy alive, and nothing else."""

    def __init__(self, nbytes: int) -> None:
        self.arena = _core.Arena(nbytes)
        self.tenants: weakref.WeakSet[Tenancy] = weakref.WeakSet()


class Tenancy:
    """A claim to read a block of memory that others may read too; before it writes, it moves out.

    Attributes:
        guard: to be held while tenants join, move out or write; all who ever shared a block have
            the same one, so that nobody writes what somebody else is about to copy or to share.
    """

    def __init__(self, nbytes: int) -> None:
        self.guard = Turn()
        self._enter(_Block(nbytes))

    @property
    def arena(self) -> _core.Arena:
        """The memory, as long as this tenant does not move out."""
        return self._block.arena

    def join(self) -> Tenancy:
        """A claim of somebody else to the same block."""
        other = Tenancy.__new__(Tenancy)
        other.guard = self.guard
        other._enter(self._block)
        return other

    def move_out(self) -> bool:
        """Have the block to oneself: a copy of it, if others read it. Whether it is a copy."""
        left = self._block
        if len(left.tenants) == 1:
            return False
        self._enter(_Block(left.arena.nbytes))
        memoryview(self.arena)[:] = memoryview(left.arena)
        left.tenants.discard(self)
        return True

    def _enter(self, block: _Block) -> None:
        self._block = block
        block.tenants.add(self)
