"""The addresses of a program's buffers: slots, and offsets in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.program_image import Slot
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.plan.memory import ALIGNMENT, Placement, arena_placement
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ostinato.lower.program import Program

__all__ = ["BufferLayout"]


@dataclass(frozen=True)
class BufferLayout:
    """The slot and the offset of each buffer of a program.

    Attributes:
        locations: by buffer, its slot and its offset there.
        sizes: by fixed slot, its bytes.
        results: by output, the offset in the arena of room for a result that is not requested.
        placement: offsets of intermediate buffers in the arena.
    """

    locations: Mapping[LoweredBuffer, tuple[int, int]]
    sizes: tuple[int, ...]
    results: tuple[int, ...]
    placement: Placement

    @staticmethod
    def of(
        program: Program,
        non_retained: Collection[LoweredBuffer] = (),
        resident: Iterable[LoweredBuffer] = (),
        *,
        apart: bool = False,
    ) -> BufferLayout:
        """The layout of a program. Buffers start on cache lines.

        Args:
            program: the buffers.
            non_retained: params that have no memory here.
            resident: buffers that live as long as the program, whether or not calls use them.
            apart: let no two buffers share memory.
        """
        placement, temps = arena_placement(program, apart=apart)
        locations = {
            buffer: (int(Slot.ARENA), offset)
            for buffer, offset in zip(temps, placement.offsets, strict=True)
        }
        outputs = program.outputs.values()
        results, arena_bytes = _side_by_side(outputs, placement.arena_bytes)
        sizes = [arena_bytes]
        used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
        lasting = [*program.params.values(), *program.states.values(), *resident]
        owned = dict.fromkeys([*lasting, *used])
        for slot, roles in (
            (Slot.CONSTANTS, (Role.CONSTANT,)),
            (Slot.WEIGHTS, (Role.PARAM, Role.PREPARED)),
            (Slot.STATES, (Role.STATE,)),
            (Slot.MASKED_TAIL, (Role.MASKED_TAIL,)),
            (Slot.RESIDENT, (Role.RESIDENT,)),
        ):
            members = [
                b for b in owned if b.role in roles and not (b in non_retained or b.is_inout)
            ]
            offsets, size = _side_by_side(members, least=ALIGNMENT)
            locations.update((b, (int(slot), o)) for b, o in zip(members, offsets, strict=True))
            sizes.append(size)
        for number, buffer in enumerate(program.externals, len(Slot)):
            locations[buffer] = (number, 0)
        return BufferLayout(locations, tuple(sizes), tuple(results), placement)

    def members(self, slot: Slot) -> list[tuple[LoweredBuffer, int]]:
        """The buffers of a fixed slot, with their offsets."""
        return [(b, offset) for b, (number, offset) in self.locations.items() if number == slot]


def _side_by_side(
    buffers: Iterable[LoweredBuffer], start: int = 0, least: int = 0
) -> tuple[list[int], int]:
    """Offsets from ``start`` on, and the end of the last buffer.

    Args:
        buffers: in order.
        start: the first offset.
        least: bytes that a buffer takes even if it is empty, so that each has an offset of its own.
    """
    offsets = []
    for buffer in buffers:
        offsets.append(start)
        start += max(least, -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT)
    return offsets, start
