"""The kinds of memory of a compiled graph."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Slot"]


class Slot(IntEnum):
    """The fixed slots of a program's memory; those of inputs and outputs come after them."""

    ARENA = 0  #: what lives within a run, and results without an array of the caller's
    CONSTANTS = 1  #: shared by clones for good
    WEIGHTS = 2  #: params and what is prepared from them; shared by clones until one writes
    STATES = 3  #: what lives from run to run
    IDLE = 4  #: how many rows kernels may leave out
    PLACED = 5  #: resident experts, and their slots
