"""The memory of a run: what its kernels use, and the copies around them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Places", "Transfer"]


class Transfer(NamedTuple):
    """A copy between a host array and the memory that a run uses in its place."""

    outside: int
    inside: int
    nbytes: int


class Places(NamedTuple):
    """The memory of a run.

    Attributes:
        fixed: the addresses of the fixed slots.
        slots: the address of each slot.
        before, after: copies between arrays and page-locked memory, by the processor.
        copied_in, copied_out: copies between arrays and the device.
    """

    fixed: list[int]
    slots: list[int]
    before: list[Transfer]
    after: list[Transfer]
    copied_in: list[Transfer]
    copied_out: list[Transfer]
