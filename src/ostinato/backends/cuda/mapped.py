"""Small inputs and outputs that kernels read and write in the host's memory, without a copy.

The device reads page-locked memory of the host at its own address, over the bus: where that takes
the place of a copy in the graph, which is an operation of its own before or behind all kernels, it
saves some microseconds. A copy that a run makes in any case brings all small inputs at once, and
kernels then read them from the device's memory, as often as they like.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ostinato.backends.common.program_image import Slot
from ostinato.backends.cuda.staging import SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.program_image import External
    from ostinato.backends.cuda.image import Step

__all__ = ["mapped_externals"]

#: Bytes that all blocks of a kernel together may read over the bus.
_MOST_READ = 16 << 10

#: Bytes of an output that is written over the bus, which takes stores without an answer.
_MOST_WRITTEN = 16 << 10


def mapped_externals(
    steps: Sequence[Step], externals: Sequence[External], *, copies: bool
) -> frozenset[int]:
    """The inputs and outputs of a program that may lie in the host's memory while it runs.

    An input is read by one kernel of few blocks, each of which may read all of it, once; an output
    is written by one kernel, and read by none. Nothing decides which kernels run, or how often.

    Args:
        steps: of a run.
        externals: inputs, then outputs.
        copies: whether a run begins with a copy, of Variables for example.
    """
    if any(step.control or not step.code for step in steps):
        return frozenset()
    uses: dict[int, list[tuple[Step, int]]] = defaultdict(list)
    for step in steps:
        for position, (slot, _) in enumerate(step.arguments):
            if slot >= len(Slot):
                uses[slot - len(Slot)].append((step, 1 << position))
    light = frozenset(
        number
        for number, external in enumerate(externals)
        if len(uses[number]) == 1 and _is_light(external, *uses[number][0])
    )
    small = {n for n, each in enumerate(externals) if each.read and each.nbytes <= SMALL}
    return light - small if copies or not small <= light else light


def _is_light(external: External, step: Step, argument: int) -> bool:
    """Whether the only kernel that uses an input or output moves few bytes of it."""
    if external.written:
        return external.nbytes <= _MOST_WRITTEN and not step.reads & argument
    if step.launch.cooperative:  # a segment, whose parts may all read it
        return False
    return external.nbytes * step.launch.grid <= _MOST_READ and not step.writes & argument
