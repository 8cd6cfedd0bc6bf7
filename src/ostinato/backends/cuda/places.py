"""The memory of a run: what its kernels use, and the copies around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ostinato.backends.common.program_image import External

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

    def add(self, external: External, transfer: Transfer, *, staged: bool) -> None:
        """Add the copies of an input or output.

        Args:
            external: says which ones it takes.
            transfer: from the array inwards, and back.
            staged: whether the processor makes them.
        """
        if external.read:
            (self.before if staged else self.copied_in).append(transfer)
        if external.written:
            (self.after if staged else self.copied_out).append(transfer)
