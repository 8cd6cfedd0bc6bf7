"""Regions: arrays of the host that overlap, as one range of bytes with a twin on a device.

A recording that a device replays as one launch uses the twins in the place of the arrays, so that
what calls pass on to each other stays on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.commands import RecordedWork, Use

__all__ = ["Region", "Regions", "host_address"]


class Region:
    """Bytes of the host that have a twin on a device.

    Attributes:
        start, end: the bytes.
        read: whether a replay needs what they hold before it.
        offset, block: the place of the twin, for the device to set: in memory that regions share,
            or a block of its own.
    """

    __slots__ = ("block", "end", "offset", "read", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.read = False
        self.offset = -1
        self.block: Any = None

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.end - self.start


class Regions:
    """The regions of recorded work.

    Args:
        works: the work, in order.

    Attributes:
        uses: the arrays of the host that have any bytes, in order.
        all: the regions, by address.
    """

    def __init__(self, works: Sequence[RecordedWork]) -> None:
        uses = (use for work in works for use in work.uses)
        self.uses: list[Use] = [
            use for use in uses if use.array.nbytes and not isinstance(use.array, DeviceArray)
        ]
        self.all: list[Region] = []
        for start, nbytes in sorted((host_address(u.array), u.array.nbytes) for u in self.uses):
            if self.all and start < self.all[-1].end:
                self.all[-1].end = max(self.all[-1].end, start + nbytes)
            else:
                self.all.append(Region(start, start + nbytes))
        self._find_reads()

    def at(self, address: int) -> Region:
        """The region that an address is in."""
        return next(region for region in self.all if region.start <= address < region.end)

    def _find_reads(self) -> None:
        """Mark the regions whose contents count: all that are not first written as a whole."""
        seen: set[Region] = set()
        for use in self.uses:
            region = self.at(host_address(use.array))
            if region not in seen:
                whole = use.written and use.whole and use.array.nbytes == region.nbytes
                region.read = not whole
                seen.add(region)


def host_address(data: object) -> int:
    """The address of the first byte of an array, or of another contiguous buffer of the host."""
    octets = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)  # type: ignore[call-overload]
    address: int = octets.__array_interface__["data"][0]
    return address
