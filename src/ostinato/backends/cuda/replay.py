"""Recorded calls as one launch: arrays that calls pass on stay on the device between them.

Arrays of the host that overlap form a *region*, which has a twin on the device. Kernels use the
twins in the place of the arrays. A replay copies what is read to the device, launches the kernels
of all calls as one graph, and copies what was written back.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.regions import Regions, host_address
from ostinato.backends.cuda.abi import HEADER_WORDS
from ostinato.backends.cuda.graphs import Graphs
from ostinato.backends.cuda.memory import DeviceBlock, HostBlock
from ostinato.plan.device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.commands import RecordedWork
    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Stream

__all__ = ["MergedReplay"]

#: The most bytes of a region that is copied together with others.
_SMALL = 1 << 16

_ALIGNMENT = 256

#: Kernels take arguments to be aligned by this, so that they can load several elements at once.
_VECTOR = 16


class MergedReplay:
    """The replay of recorded work as one launch.

    Args:
        stream: takes the work.
        works: in order.
    """

    def __init__(self, stream: Stream, works: Sequence[RecordedWork]) -> None:
        self._stream = stream
        self._works = tuple(works)
        gpu = stream.gpu
        self._regions = Regions(works)
        end = 0
        self._variables: list[int] = []  # by call, the offset of its block
        for work in works:
            self._variables.append(end + 8 * HEADER_WORDS)
            words = 0 if work.program is None else HEADER_WORDS + work.program.words
            end = _aligned(end + 8 * words)
        self._status_end = end
        small = [r for r in self._regions.all if r.nbytes <= _SMALL]
        for region in sorted(small, key=lambda r: not r.read):  # those that are read come first
            region.offset = end
            end = _aligned(end + region.nbytes)
        self._read_end = max(
            [self._status_end, *(_aligned(r.offset + r.nbytes) for r in small if r.read)]
        )
        for region in self._regions.all:
            if region.offset < 0:
                region.block = DeviceBlock(gpu, region.nbytes, "arrays of a recording")
        self._end = end
        self._device = DeviceBlock(gpu, max(end, 1), "small arrays of a recording")
        self._host = HostBlock(gpu, max(end, 1))
        self._graphs = Graphs(stream, 4, after=0)
        self._found: tuple[list[int], list[list[int]], tuple[int, ...]] | None = None

    @staticmethod
    def of(stream: Stream, works: Sequence[RecordedWork]) -> Callable[[], MergedReplay] | None:
        """Makes recorded work one launch; ``None``: that is not possible."""
        return partial(MergedReplay, stream, works) if MergedReplay.possible(works) else None

    @staticmethod
    def possible(works: Sequence[RecordedWork]) -> bool:
        """Whether recorded work can be one launch.

        An array within another may lie where kernels can not use it: then calls are replayed one by
        one.
        """
        if not all(work.program is None or work.program.mergeable for work in works):
            return False
        regions = Regions(works)
        given = (use.array for work in works for use in work.uses)
        if any(isinstance(a, DeviceArray) and a.address % _ALIGNMENT for a in given):
            return False
        starts = (host_address(use.array) for use in regions.uses)
        return all((at - regions.at(at).start) % _VECTOR == 0 for at in starts)

    def replay(self, variables: Sequence[Sequence[int]]) -> None:
        """Run all of it.

        Args:
            variables: of each call, the values of its Variables.
        """
        for work, offset, values in zip(self._works, self._variables, variables, strict=True):
            self._write_variables(offset, values)
            if work.program is not None:
                work.program.take_memory(values)
        for region in self._regions.all:
            if region.read and region.offset >= 0:
                ctypes.memmove(self._host.address + region.offset, region.start, region.nbytes)
        stream = self._stream.handle
        slots, key = self._current_slots()
        with self._stream.guard, self._stream.gpu.current() as driver:
            try:
                for region in self._regions.all:
                    if region.read and region.block is not None:
                        driver.copy(region.block.address, region.start, region.nbytes, stream)
                self._graphs.launch(driver, key, lambda: self._launch(driver, slots))
                driver.synchronize(stream)
                self._copy_back(driver, variables)
            finally:
                driver.synchronize(stream)
        for work, values in zip(self._works, variables, strict=True):
            if work.program is not None and work.program.on_run is not None:
                work.program.on_run(values)

    def _write_variables(self, offset: int, values: Sequence[int]) -> None:
        count = HEADER_WORDS + len(values)
        start = self._host.address + offset - 8 * HEADER_WORDS
        words = (ctypes.c_int64 * count).from_address(start)
        words[:HEADER_WORDS] = [0] * HEADER_WORDS
        words[HEADER_WORDS:] = list(values)

    def _current_slots(self) -> tuple[list[list[int]], tuple[int, ...]]:
        """The addresses of all calls' slots, by call and as the key of a graph."""
        fixed = [
            address
            for work in self._works
            if work.program is not None
            for address in work.program.fixed_addresses()
        ]
        if self._found is None or self._found[0] != fixed:
            slots = [self._slots(work) for work in self._works]
            key = (self._device.address, *(address for found in slots for address in found))
            self._found = fixed, slots, key
        return self._found[1:]

    def _slots(self, work: RecordedWork) -> list[int]:
        """The addresses of a call's slots, on the device."""
        places = [self._place(use.array) for use in work.uses]
        return places if work.program is None else [*work.program.fixed_addresses(), *places]

    def _place(self, array: Any) -> int:
        """The address of an array's twin."""
        if isinstance(array, DeviceArray):
            return array.address
        if not array.nbytes:
            return self._device.address
        at = host_address(array)
        region = self._regions.at(at)
        if region.block is not None:
            found: int = region.block.address + at - region.start
            return found
        return self._device.address + region.offset + at - region.start

    def _launch(self, driver: Driver, slots: Sequence[Sequence[int]]) -> None:
        """The launches of a replay."""
        stream, device, host = self._stream.handle, self._device.address, self._host.address
        if self._read_end:
            driver.copy(device, host, self._read_end, stream)
        for work, found, variables in zip(self._works, slots, self._variables, strict=True):
            if work.program is not None:
                work.program.launch_on(driver, found, device + variables, stream)
            elif work.uses[0].array.nbytes:
                driver.copy(found[0], found[1], work.uses[0].array.nbytes, stream)
        if self._end:
            driver.copy(host, device, self._end, stream)

    def _copy_back(self, driver: Driver, variables: Sequence[Sequence[int]]) -> None:
        """Copy what was written to the arrays, as far as it is in use."""
        stream = self._stream.handle
        for work, values in zip(self._works, variables, strict=True):
            for use in work.uses:
                nbytes = use.array.nbytes
                if not use.written or not nbytes or isinstance(use.array, DeviceArray):
                    continue
                if work.program is not None:
                    nbytes = min(nbytes, work.program.sizes.nbytes(use.number, values))
                at = host_address(use.array)
                region = self._regions.at(at)
                if region.block is not None:
                    driver.copy(at, region.block.address + at - region.start, nbytes, stream)
                else:
                    staged = self._host.address + region.offset + at - region.start
                    ctypes.memmove(at, staged, nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
