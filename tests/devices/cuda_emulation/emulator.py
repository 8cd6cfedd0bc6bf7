"""Launches of emulated kernels: arguments are copied apart, run on, compared and copied back."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .toolchain import engine, kernel_objects

__all__ = ["EmulatedKernel", "EmulationError", "Memory", "load_kernels"]

Array = np.ndarray[Any, Any]

#: The engine has one block at a time.
_ENGINE = threading.Lock()

_WRITTEN, _UNSET, _SHARED = 1, 2, 4

#: Copies of arguments begin at odd multiples of this: that is what the runtime's memory promises.
_ALIGNMENT = 64

_DYNAMIC_SHARED = 228 << 10

#: Blocks that run at the same time, at most.
_MOST_TOGETHER = 4


class EmulationError(Exception):
    """A kernel did what no kernel may do; the message names it, the thread and the line."""


class Memory(NamedTuple):
    """An argument of a launch.

    Attributes:
        name: in messages.
        array: one-dimensional.
        reads: whether the kernel may read what it has not written.
        writes: whether the kernel may write.
        start: the element that the kernel gets the address of.
    """

    name: str
    array: Array
    reads: bool = True
    writes: bool = False
    start: int = 0


class _Region(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("start", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("grain", ctypes.c_uint),
        ("flags", ctypes.c_int),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_int),
        ("block", ctypes.c_int),
        ("together", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_int),
        ("image_low", ctypes.c_void_p),
        ("image_high", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel in a shared object of the host.

    Attributes:
        name: its symbol.
        source: its text.
        path: of the object.
    """

    name: str
    source: str
    path: Path

    def run(
        self,
        grid: int,
        block: int,
        memory: Sequence[Memory],
        *,
        shared_bytes: int = 0,
        together: bool = False,
        seeds: Sequence[int] = (0,),
        readable: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Run a launch.

        Args:
            grid: the number of blocks.
            block: threads of a block.
            memory: the arguments, in order.
            shared_bytes: bytes of dynamic shared memory.
            together: whether all blocks run at the same time, up to four, and may wait for one
                another.
            readable: start and size of further memory that it reads, by addresses that it finds.
            seeds: a run for each: the order of blocks and threads is ascending for 0, descending
                for 1, shuffled for others. All of them have to end with the same bits.

        Raises:
            EmulationError: the kernel did what no kernel may do, or the results differ.
        """
        if together and grid > _MOST_TOGETHER:
            raise EmulationError(f"{self.name}: {grid} blocks together, more than {_MOST_TOGETHER}")
        if not (1 <= block <= 1024 and 1 <= grid < 1 << 31 and shared_bytes <= _DYNAMIC_SHARED):
            raise EmulationError(
                f"{self.name}: no launch has {grid} blocks of {block} threads and {shared_bytes} "
                "bytes of shared memory"
            )
        first: list[_Span] | None = None
        for seed in seeds:
            spans = _apart(memory)
            self._launch(grid, block, shared_bytes, together, seed, memory, spans, readable)
            if first is None:
                first = spans
                continue
            for one, other in zip(first, spans, strict=True):
                if one.writes and one.copy.tobytes() != other.copy.tobytes():
                    at = int(np.flatnonzero(one.copy != other.copy)[0]) // one.grain
                    raise EmulationError(
                        f"{self.name}: element {at} of {one.name} depends on the order in which "
                        f"threads run\n{self.source}"
                    )
        for span in first or ():
            if span.writes:
                span.original[:] = span.copy

    def _launch(
        self,
        grid: int,
        block: int,
        shared_bytes: int,
        together: bool,
        seed: int,
        memory: Sequence[Memory],
        spans: Sequence[_Span],
        readable: Sequence[tuple[int, int]],
    ) -> None:
        core, library = engine(), ctypes.CDLL(str(self.path))
        image = (ctypes.c_void_p * 4).in_dll(library, "emu_image")
        low, high, shared_low, shared_high = (image[i] or 0 for i in range(4))
        regions = [span.region() for span in spans]
        regions += [_Region(b"further memory", start, size, 1, 0) for start, size in readable]
        dynamic = ctypes.addressof(ctypes.c_char.in_dll(core, "emu_dynamic_shared"))
        flags = _SHARED | _WRITTEN | _UNSET
        for start, size in ((shared_low, shared_high - shared_low), (dynamic, shared_bytes)):
            regions.append(_Region(b"shared memory", start, size, 1, flags))
        addresses = [_address(item, spans) for item in memory]
        launch = _Launch(
            ctypes.cast(getattr(library, f"{self.name}_call"), ctypes.c_void_p),
            (ctypes.c_void_p * len(addresses))(*addresses),
            grid,
            block,
            together,
            seed,
            (_Region * len(regions))(*regions),
            len(regions),
            low,
            high,
        )
        with _ENGINE:
            if not core.emu_launch(ctypes.byref(launch)):
                return
            core.emu_message.restype = ctypes.c_char_p
            pc = ctypes.c_void_p()
            message = core.emu_message(ctypes.byref(pc)).decode()
        raise EmulationError(f"{self.name}: {message}{self._line((pc.value or 0) - low)}")

    def _line(self, offset: int) -> str:
        """The line of the kernel's text at an offset in the object, and the text around it."""
        command = ["addr2line", "-i", "-e", str(self.path), hex(offset - 1)]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            found = ""
        for line in found.splitlines():
            file, _, number = line.partition(":")
            digits = number.split()[0] if number else ""
            text = self.source.splitlines()
            if Path(file).name == f"{self.name}.cu" and 0 < int(digits or 0) <= len(text):
                return f"\nat line {digits}: {text[int(digits) - 1].strip()}\n{self.source}"
        return f"\n{self.source}"


class _Span:
    """A run of memory that arguments share, and its copy."""

    def __init__(self, members: Sequence[Memory]) -> None:
        self.low = min(m.array.ctypes.data for m in members)
        self.high = max(m.array.ctypes.data + m.array.nbytes for m in members)
        self.name = "/".join(dict.fromkeys(m.name for m in members))
        self.reads = any(m.reads for m in members)
        self.writes = any(m.writes for m in members)
        self.grain = min(m.array.itemsize for m in members)
        owner = (ctypes.c_uint8 * (self.high - self.low)).from_address(self.low)
        self.original = np.frombuffer(owner, np.uint8)
        room = np.empty(self.original.size + 3 * _ALIGNMENT, np.uint8)
        shift = (_ALIGNMENT - room.ctypes.data) % (2 * _ALIGNMENT)
        self.copy = room[shift : shift + self.original.size]
        self.copy[:] = self.original
        self._bytes = self.name.encode()

    def region(self) -> _Region:
        flags = _WRITTEN * self.writes | _UNSET * (self.writes and not self.reads)
        return _Region(self._bytes, self.copy.ctypes.data, self.copy.size, self.grain, flags)


def _apart(memory: Sequence[Memory]) -> list[_Span]:
    """Copies of the arguments' memory; arguments that overlap share one."""
    groups: list[list[Memory]] = []
    end = 0
    for item in sorted(memory, key=lambda m: (m.array.ctypes.data, -m.array.nbytes)):
        start = item.array.ctypes.data
        if not item.array.nbytes:
            continue
        if groups and start < end:
            groups[-1].append(item)
        else:
            groups.append([item])
        end = max(end, start + item.array.nbytes)
    return [_Span(group) for group in groups]


def _address(item: Memory, spans: Sequence[_Span]) -> int:
    """The address of an argument's copy; of an empty one, any that is not null."""
    array = item.array
    start: int = array.ctypes.data
    for span in spans:
        if array.nbytes and span.low <= start < span.high:
            return int(span.copy.ctypes.data) + start - span.low + item.start * array.itemsize
    return _ALIGNMENT


def load_kernels(
    sources: Mapping[str, str], headers: Path | None = None
) -> dict[str, EmulatedKernel]:
    """Kernels by name, compiled together where they are new.

    Raises:
        CompileError: a text is no C++.
    """
    paths = kernel_objects(sources, headers)
    engine()
    return {name: EmulatedKernel(name, sources[name], path) for name, path in paths.items()}
