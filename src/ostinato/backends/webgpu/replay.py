"""Recorded calls as one submission: arrays that calls pass on stay on the device between them.

Regions of the host's arrays have twins on the device, which kernels use in their place. A replay
copies what is read to the device, submits the launches of all calls as one command buffer, and
copies what was written back. Bind groups and offsets are made once.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.regions import Regions, host_address
from ostinato.backends.webgpu.memory import DeviceBlock
from ostinato.backends.webgpu.transfers import Download, Downloads
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.commands import RecordedWork
    from ostinato.backends.common.regions import Region
    from ostinato.backends.webgpu.gpu import Gpu
    from ostinato.backends.webgpu.launches import Launches
    from ostinato.backends.webgpu.steps import Slots

__all__ = ["MergedReplay"]

#: Kernels take arguments to begin at multiples of this, and to have the last one to themselves.
_VECTOR = 16

_WORD = 4


class MergedReplay:
    """The replay of recorded work as one submission.

    Args:
        gpu: the device.
        works: in order.
        regions: their arrays.
    """

    def __init__(self, gpu: Gpu, works: Sequence[RecordedWork], regions: Regions) -> None:
        self._gpu = gpu
        self._works = tuple(works)
        self._regions = regions
        for region in regions.all:
            region.block = DeviceBlock(gpu, region.nbytes, "arrays of a recording")
        self._downloads = Downloads(gpu)
        self._ready: tuple[tuple[Any, ...], list[tuple[Slots, Launches]]] | None = None

    @staticmethod
    def of(gpu: Gpu, works: Sequence[RecordedWork]) -> Callable[[], MergedReplay] | None:
        """Makes recorded work one submission; ``None``: that is not possible."""
        regions = Regions(works)
        possible = all(_fits(gpu, work, regions) for work in works)
        return partial(MergedReplay, gpu, works, regions) if possible else None

    def replay(self, variables: Sequence[Sequence[int]], /) -> None:
        """Run all of it.

        Args:
            variables: of each call, the values of its Variables.
        """
        for region in self._regions.all:
            if region.read:
                region.block.write(0, _host_bytes(region), padded=True)
        ready = self._launches()
        with self._gpu.calls(), self._gpu.driver.commands() as commands:
            for work, (slots, launches), values in zip(self._works, ready, variables, strict=True):
                if work.program is not None:
                    work.program.encode(commands, slots, launches, values)
                elif nbytes := work.uses[0].array.nbytes:
                    (target, to), (source, start) = (self._place(use.array) for use in work.uses)
                    target.copy_within(commands, to, source, start, -(-nbytes // _WORD) * _WORD)
            pending = self._downloads.encode(commands, self._results(variables))
        self._downloads.finish(pending._replace(submission=commands.index))
        for work, values in zip(self._works, variables, strict=True):
            if work.program is not None:
                work.program.note_run(values)

    def _launches(self) -> list[tuple[Slots, Launches]]:
        """The memory and the launches of each call; for a copy, there are none."""
        programs = [work.program for work in self._works if work.program is not None]
        key = tuple(program.fixed_addresses() for program in programs)
        if self._ready is None or self._ready[0] != key:
            ready: list[Any] = []
            for work in self._works:
                places = [self._place(use.array) for use in work.uses]
                ready.append(
                    ({}, None) if work.program is None else work.program.own_launches(places)
                )
            self._ready = key, ready
        return self._ready[1]

    def _place(self, array: Any) -> tuple[DeviceBlock, int]:
        """The block and the offset that stand for an array."""
        if isinstance(array, DeviceArray):
            return array.memory, 0
        if not array.nbytes:
            return DeviceBlock(self._gpu, 0, "an empty array"), 0
        at = host_address(array)
        region = self._regions.at(at)
        return region.block, at - region.start

    def _results(self, variables: Sequence[Sequence[int]]) -> list[Download]:
        """The arrays that were written, as far as they are in use."""
        found = []
        for work, values in zip(self._works, variables, strict=True):
            for use in work.uses:
                nbytes = use.array.nbytes
                if not use.written or not nbytes or isinstance(use.array, DeviceArray):
                    continue
                if work.program is not None:
                    nbytes = min(nbytes, work.program.result_bytes(use.number, values))
                block, offset = self._place(use.array)
                found.append(Download(block, offset, host_address(use.array), nbytes))
        return found


def _fits(gpu: Gpu, work: RecordedWork, regions: Regions) -> bool:
    """Whether recorded work can be a part of a submission.

    Not if the host has a part in it; nor if two of its arrays are in one region and one of them is
    written, since a buffer is bound either for reading or for writing; nor if an array within
    another one lies where kernels can not use it.
    """
    if work.program is not None and not work.program.mergeable:
        return False
    seen: dict[Region, bool] = {}
    for use in work.uses:
        array = use.array
        if isinstance(array, DeviceArray) or not array.nbytes:
            if work.program is None and array.nbytes % _WORD:
                return False
            continue
        at = host_address(array)
        region = regions.at(at)
        if region in seen and (use.written or seen[region]):
            return False
        seen[region] = use.written
        alone = array.nbytes % _VECTOR == 0 or at + array.nbytes == region.end
        if (at - region.start) % _VECTOR or not alone or region.nbytes > gpu.target.part_bytes:
            return False
    return True


def _host_bytes(region: Region) -> memoryview:
    """The bytes of a region, as they are on the host."""
    return memoryview((ctypes.c_uint8 * region.nbytes).from_address(region.start)).cast("B")
