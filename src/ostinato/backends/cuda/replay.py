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
from ostinato.backends.cuda._graph_calls import Epoch, GraphRun
from ostinato.backends.cuda.abi import HEADER_WORDS, SIGNAL_LAUNCH
from ostinato.backends.cuda.graphs import Graphs
from ostinato.backends.cuda.memory import DeviceBlock, HostBlock
from ostinato.backends.cuda.places import Transfer
from ostinato.plan.device_array import DeviceArray
from ostinato.plan.order import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ostinato.backends.common.commands import RecordedWork, Use
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
        self._variables: list[int] = []  # by call, the first of its words
        words = HEADER_WORDS  # which all calls without Variables have in common
        for work in works:
            self._variables.append(words if _words_of(work) else 0)
            if count := _words_of(work):
                words += HEADER_WORDS + -(-count // HEADER_WORDS) * HEADER_WORDS
        self._n_words = words - HEADER_WORDS
        end = self._start = _aligned(8 * words)
        self._read_end = end if self._n_words else 0
        small = [r for r in self._regions.all if r.nbytes <= _SMALL]
        for region in sorted(small, key=lambda r: not r.read):  # those that are read come first
            region.offset = end
            end = _aligned(end + region.nbytes)
            if region.read:
                self._read_end = end
        for region in self._regions.all:
            if region.offset < 0:
                region.block = DeviceBlock(gpu, region.nbytes, "arrays of a recording")
        self._end = end  # of what is copied; words of the signal follow
        self._device = DeviceBlock(gpu, end + _ALIGNMENT, "small arrays of a recording")
        self._host = HostBlock(gpu, end + _ALIGNMENT)
        signals = (work.program.signal for work in works if work.program is not None)
        self._signal: int = next(filter(None, signals), 0)
        self._graphs = Graphs(stream, 4, after=0)
        self._found: tuple[list[int], list[list[int]], tuple[int, ...]] | None = None
        self._native: tuple[tuple[int, ...], GraphRun | None] = (), None

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
        words = [0] * self._n_words
        for work, start, values in zip(self._works, self._variables, variables, strict=True):
            words[start : start + len(values)] = values
            if work.program is not None:
                work.program.memory.take(values)
        slots, key = self._current_slots()
        if not self._run_natively(key, words):
            self._run(slots, key, words, variables)
            if self._native[0] is not key:
                self._native = key, self._native_run(key)
        for work, values in zip(self._works, variables, strict=True):
            if work.program is not None and work.program.on_run is not None:
                work.program.on_run(values)

    def _run_natively(self, key: tuple[int, ...], words: list[int]) -> bool:
        """Run as one native call; whether there is one for these addresses."""
        found, run = self._native
        if run is None or found is not key:
            return False
        with self._stream.guard:
            return run.run(words)

    def _run(
        self,
        slots: Sequence[Sequence[int]],
        key: tuple[int, ...],
        words: list[int],
        variables: Sequence[Sequence[int]],
    ) -> None:
        """Run, with copies of large arrays by the driver."""
        host = self._host.address
        (ctypes.c_int64 * self._n_words).from_address(host + 8 * HEADER_WORDS)[:] = [*words]
        for region in self._regions.all:
            if region.read and region.offset >= 0:
                ctypes.memmove(host + region.offset, region.start, region.nbytes)
        stream = self._stream.handle
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

    def _native_run(self, key: tuple[int, ...]) -> GraphRun | None:
        """The replay as one native call, which has run on these addresses before.

        ``None``, where the driver copies arrays, or parts of them that depend on Variables.
        """
        gpu, host = self._stream.gpu, self._host
        calls, graph = gpu.driver.entry_points, self._graphs.find(key)
        if calls is None or graph is None or any(r.block is not None for r in self._regions.all):
            return None
        flag = host.address + self._end if self._signal else 0
        before = [
            Transfer(region.start, host.address + region.offset, region.nbytes)
            for region in self._regions.all
            if region.read
        ]
        after = []
        for work in self._works:
            for use in self._written(work):
                if work.program is not None and work.program.sizes.depends(use.number):
                    return None
                start = host_address(use.array)
                after.append(Transfer(start, self._staged(start), use.array.nbytes))
        return GraphRun(
            Epoch(),
            calls,
            gpu.refuse,
            (gpu.context, graph.handle, self._stream.handle, flag),
            before,
            after,
            NOTHING,
            (graph, host, self._device, self._works),
            (host.address + 8 * HEADER_WORDS, self._n_words),
        )

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
        for work, found, first in zip(self._works, slots, self._variables, strict=True):
            if work.program is not None:
                variables = device + 8 * (HEADER_WORDS + first)
                work.program.launch_on(driver, found, variables, stream)
            elif work.uses[0].array.nbytes:
                driver.copy(found[0], found[1], work.uses[0].array.nbytes, stream)
        if nbytes := self._end - self._start:
            driver.copy(host + self._start, device + self._start, nbytes, stream)
        if self._signal:
            words = [host + self._end, device + self._end, device]
            driver.launch(self._signal, SIGNAL_LAUNCH, words, stream)

    def _written(self, work: RecordedWork) -> Iterator[Use]:
        """The arrays of the host that a call writes."""
        for use in work.uses:
            if use.written and use.array.nbytes and not isinstance(use.array, DeviceArray):
                yield use

    def _staged(self, address: int) -> int:
        """The address in page-locked memory of a byte of a small array."""
        region = self._regions.at(address)
        return self._host.address + region.offset + address - region.start

    def _copy_back(self, driver: Driver, variables: Sequence[Sequence[int]]) -> None:
        """Copy what was written to the arrays, as far as it is in use."""
        stream = self._stream.handle
        for work, values in zip(self._works, variables, strict=True):
            for use in self._written(work):
                nbytes, at = use.array.nbytes, host_address(use.array)
                if work.program is not None:
                    nbytes = min(nbytes, work.program.sizes.nbytes(use.number, values))
                region = self._regions.at(at)
                if region.block is not None:
                    driver.copy(at, region.block.address + at - region.start, nbytes, stream)
                else:
                    ctypes.memmove(at, self._staged(at), nbytes)


def _words_of(work: RecordedWork) -> int:
    """The number of a call's Variables."""
    return 0 if work.program is None else work.program.words


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
