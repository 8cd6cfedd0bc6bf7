"""Blockings and prefetch distances of a matmul whose weight comes from memory, next to each other.

    python -m bench.panel_sweep [--rows 1 4 8 16 32 64 128] [--seconds 15] [--dtype bfloat16]
        [--clock cpu] [--ahead] [--json FILE]

The register tiles of the CPU engine multiply a few rows with panels of 128 MB in all, in loops that
the engine does not have: whole panels tile by tile or block by block of ``k``, groups of panels
that share a block of rows, with lines prefetched into the second-level cache and into the first one
at several distances, on huge pages and on small ones. All variants alternate on one core, and what
counts is the least time of each. Their sums are compared: all must be the same bits. The rule that
the engine follows is in :mod:`ostinato.backends.cpu.rules.prefetch`.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench.compare.report import machine
from bench.compare.worker import go_ahead
from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop, open_kernel
from ostinato.backends.cpu.llvm.memory import load, store
from ostinato.backends.cpu.llvm.microkernel import define_tile
from ostinato.backends.cpu.llvm.toolchain import LinkedCode, TargetSpec, compile_module
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.backends.cpu.loader.link import load as link
from ostinato.backends.cpu.rules.sum_axes import SumAxis
from ostinato.dtypes import BFLOAT16, FLOAT32, DType

Array = np.ndarray[Any, Any]

ROWS = (1, 4, 8, 16, 32, 64, 128)
DEPTH, COLUMNS = 4096, 8192
_HUGE = 2 << 20
_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


@dataclass(frozen=True)
class Variant:
    """One way through the matmul.

    Attributes:
        m: rows of the matmul.
        rows, panel: the register tile.
        block: positions of ``k`` that all tiles go over before any goes on.
        group: panels that a block of rows is multiplied with before the next block.
        ahead: bytes from the block in use to what is prefetched meanwhile; 0: nothing is.
        near: bytes from a line in use to the one that goes to the first-level cache; 0: none does.
        huge: whether panels are on huge pages.
        dtype: of the panels.
    """

    m: int
    rows: int
    panel: int
    block: int = DEPTH
    group: int = 1
    ahead: int = 0
    near: int = 0
    huge: bool = True
    dtype: DType = FLOAT32

    def __str__(self) -> str:
        blocks = "" if self.block == DEPTH else f", k by {self.block}"
        groups = "" if self.group == 1 else f", {self.group} panels"
        near = f", {self.near} B near" if self.near else ""
        pages = "" if self.huge else ", small pages"
        return f"{self.rows}x{self.panel}{blocks}{groups}, {self.ahead >> 10} kB ahead{near}{pages}"

    @property
    def items(self) -> int:
        """Groups of panels."""
        return -(-COLUMNS // (self.panel * self.group))

    @property
    def columns(self) -> int:
        """Columns with those that fill the last group."""
        return self.items * self.group * self.panel

    @property
    def panel_bytes(self) -> int:
        return DEPTH * self.panel * self.dtype.itemsize


def variants(m: int, dtype: DType) -> list[Variant]:
    """The variants for ``m`` rows; the first prefetches nothing."""
    rows, panel = (m, 80) if m < 7 else (8, 48)
    plain = Variant(m, rows, panel, dtype=dtype)
    found = [plain, replace(plain, huge=False)]
    if m <= rows:
        for ahead, near in itertools.product((4, 8, 16, 24, 48), (0, 768, 1536, 4096)):
            found.append(replace(plain, ahead=ahead << 10, near=near))
        return found
    found += [replace(plain, ahead=24 << 10), replace(plain, ahead=24 << 10, huge=False)]
    for block, near in itertools.product((64, 128, 256, 512, 1024), (0, 1536)):
        nbytes = block * panel * dtype.itemsize
        for ahead in sorted({nbytes * -(-least // nbytes) for least in (nbytes, 48 << 10)}):
            found.append(replace(plain, block=block, ahead=ahead, near=near))
    blocked = replace(plain, block=512, ahead=512 * panel * dtype.itemsize)
    return [*found, *(replace(blocked, group=group) for group in (2, 4))]


class Kernel:
    """The code of a variant, and the least time of its calls."""

    def __init__(self, variant: Variant, target: TargetSpec) -> None:
        self.variant = variant
        self.least = float("inf")
        self._code = _compiled(variant, target)
        self._function = _KERNEL(self._code.address("kernel"))

    def __call__(self, addresses: tuple[int, int, int], scratch: int, items: int) -> None:
        self._function((ctypes.c_void_p * 3)(*addresses), None, 0, items, scratch)

    @property
    def gflops(self) -> float:
        return 2.0 * self.variant.m * DEPTH * self.variant.columns / self.least / 1e9

    @property
    def gbytes(self) -> float:
        """Of panels, per second."""
        return DEPTH * self.variant.columns * self.variant.dtype.itemsize / self.least / 1e9


def _compiled(v: Variant, target: TargetSpec) -> LinkedCode:
    kernel = open_kernel("kernel", target, 3)
    b = kernel.builder
    loops = _Loops(v, kernel, target)
    counted_loop(b, kernel.begin, kernel.end, 1, loops.item, name="item")
    b.ret_void()
    return link([(compile_module(kernel.module, target), ["kernel"])])


class _Loops:
    """The loops of a variant around the engine's register tile."""

    def __init__(self, v: Variant, kernel: KernelFunction, target: TargetSpec) -> None:
        self.v, self.kernel, self.b = v, kernel, kernel.builder
        self.a, self.panels, self.y = kernel.buffers
        self.tiles = -(-v.m // v.rows)
        self.blocked = v.block < DEPTH
        self.row_bytes = v.panel * v.dtype.itemsize
        self.line = target.caches.line
        self.lanes = next(lanes for lanes in (16, 8, 4) if v.panel % lanes == 0)
        # All that a register tile asks of its matmul.
        gemm: Any = SimpleNamespace(
            panel=v.panel,
            strip=v.panel,
            depth=DEPTH,
            acc=FLOAT32,
            a_dtype=FLOAT32,
            b_dtype=v.dtype,
            row_stride=DEPTH,
            sum_axes=(SumAxis(DEPTH, 1),),
            chains=1,
            caches=target.caches,
            depth_block=v.block if self.blocked else None,
            fetching_tiles=self.sharing,
            fetch=SimpleNamespace(near=v.near) if v.ahead else None,
            fetches=lambda rows: bool(v.ahead),
            fetches_ahead=True,
        )
        self.tile = define_tile(kernel.module, "tile", gemm, v.rows, target)

    @property
    def sharing(self) -> int:
        """Tiles that share the lines of a later block among them."""
        return self.tiles if self.blocked else 1

    def item(self, number: ir.Value) -> None:
        """A group of panels by all rows."""
        b, v = self.b, self.v
        first = b.mul(number, I64(v.group))

        def block(k: ir.Value) -> None:
            for place in range(v.group):
                self._tiles(b.add(first, I64(place)), place, k)

        counted_loop(b, I64(0), I64(DEPTH), v.block, block, trips=DEPTH // v.block, name="block")
        for place in range(v.group):
            self._store(b.add(first, I64(place)), place)

    def _tiles(self, panel: ir.Value, place: int, k: ir.Value) -> None:
        """All tiles over a block of a panel, the ``place``-th of its group."""
        b, v = self.b, self.v
        start = b.add(b.mul(panel, I64(v.panel_bytes)), b.mul(k, I64(self.row_bytes)))
        right = self._after(self.panels, start)
        share = v.block * self.row_bytes // self.sharing // self.line * self.line
        # What is behind a panel's end is of the next group, not of the next panel.
        beyond = b.icmp_signed(">=", b.add(k, I64(v.ahead // self.row_bytes)), I64(DEPTH))
        skipped = b.select(beyond, I64((v.group - 1) * v.panel_bytes), I64(0))

        def tile(number: ir.Value) -> None:
            row = b.mul(number, I64(v.rows))
            left = self._after(self.a, b.add(b.mul(row, I64(4 * DEPTH)), b.mul(k, I64(4))))
            arguments = [left, self.kernel.scratch, right, self._sums(place, row)]
            if v.ahead:
                ahead = b.add(I64(v.ahead), skipped)
                if self.blocked:
                    ahead = b.add(ahead, b.mul(number, I64(share)))
                arguments.append(self._after(right, ahead))
            if self.blocked:
                arguments += [I64(v.block), b.icmp_signed(">", k, I64(0))]
            b.call(self.tile, arguments)

        counted_loop(b, I64(0), I64(self.tiles), 1, tile, trips=self.tiles, name="tile")

    def _store(self, panel: ir.Value, place: int) -> None:
        """Copy the sums of a panel to the result."""
        b, v = self.b, self.v

        def row(number: ir.Value) -> None:
            source = self._sums(place, number)
            element = b.add(b.mul(number, I64(v.columns)), b.mul(panel, I64(v.panel)))
            for column in range(0, v.panel, self.lanes):
                lane = load(b, source, FLOAT32, I64(column), self.lanes)
                store(b, self.y, FLOAT32, b.add(element, I64(column)), lane)

        counted_loop(b, I64(0), I64(v.m), 1, row, trips=v.m, name="row")

    def _sums(self, place: int, row: ir.Value) -> ir.Value:
        number = self.b.add(I64(place * self.v.m), row)
        return self._after(self.kernel.scratch, self.b.mul(number, I64(4 * self.v.panel)))

    def _after(self, base: ir.Value, distance: ir.Value) -> ir.Value:
        return self.b.gep(base, [distance], source_etype=I8)


class Memory:
    """Bytes on huge pages, or on none."""

    def __init__(self, nbytes: int, *, huge: bool = True) -> None:
        self._map = mmap.mmap(-1, nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        whole: Array = np.frombuffer(self._map, np.uint8)
        skipped = -whole.ctypes.data % _HUGE
        self.array: Array = whole[skipped : skipped + nbytes]

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def fill(self) -> Memory:
        """Numbers that are small and normal, as float32 and as bfloat16."""
        numbers = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
        block = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        for start in range(0, len(self.array), len(block)):
            rest = self.array[start : start + len(block)]
            rest[...] = block[: len(rest)]
        return self


def _huge_kilobytes() -> int:
    """Of this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


class Sweep:
    """The memory that all variants share."""

    def __init__(self, dtype: DType) -> None:
        self.dtype, self.target = dtype, TargetSpec.host()
        nbytes = DEPTH * dtype.itemsize * (COLUMNS + 1024)
        before = _huge_kilobytes()
        self.panels = {huge: Memory(nbytes, huge=huge).fill() for huge in (True, False)}
        print(f"{_huge_kilobytes() - before} kB of huge pages, {nbytes >> 10} kB wanted")
        self.a = Memory(4 * DEPTH * max(ROWS)).fill()
        self.y, self.scratch = Memory(16 << 20), Memory(1 << 20)

    def measured(self, m: int, seconds: float, clock: Callable[[], float]) -> list[Kernel]:
        """All variants, the fastest first."""
        kernels = [Kernel(variant, self.target) for variant in variants(m, self.dtype)]
        bits = {kernel.variant.panel: self._result(kernel) for kernel in kernels}
        for kernel in kernels:
            if self._result(kernel) != bits[kernel.variant.panel]:
                raise SystemExit(f"{kernel.variant}: other sums than those of the other variants")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for kernel in random.sample(kernels, len(kernels)):
                start = clock()
                self._call(kernel, kernel.variant.items)
                kernel.least = min(kernel.least, clock() - start)
        return sorted(kernels, key=lambda kernel: kernel.least / kernel.variant.columns)

    def _result(self, kernel: Kernel) -> bytes:
        """The first panel's."""
        v = kernel.variant
        self._call(kernel, 1)
        y = self.y.array[: 4 * v.m * v.columns].view(np.float32).reshape(v.m, v.columns)
        return y[:, : v.panel].tobytes()

    def _call(self, kernel: Kernel, items: int) -> None:
        panels = self.panels[kernel.variant.huge]
        kernel((self.a.address, panels.address, self.y.address), self.scratch.address, items)


def _report(m: int, kernels: list[Kernel]) -> Iterator[dict[str, Any]]:
    print(f"{m} rows")
    for kernel in kernels:
        print(f"  {kernel.gflops:7.1f} GFLOP/s {kernel.gbytes:5.1f} GB/s  {kernel.variant}")
        yield {
            "rows": m,
            "variant": str(kernel.variant),
            "gflops": kernel.gflops,
            "gbytes": kernel.gbytes,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=15.0, help="for each number of rows")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="as in compare")
    parser.add_argument("--ahead", action="store_true", help="as in compare")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sweep = Sweep(BFLOAT16 if given.dtype == "bfloat16" else FLOAT32)
    print(f"{machine()}; {sweep.target.cpu}, caches {sweep.target.caches}")
    if given.ahead:
        go_ahead()
    clock = time.thread_time if given.clock == "cpu" else time.perf_counter
    rows: list[dict[str, Any]] = []
    for m in given.rows:
        rows += _report(m, sweep.measured(m, given.seconds, clock))
        if given.json is not None:
            page = {"machine": machine(), "dtype": given.dtype, "results": rows}
            given.json.write_text(json.dumps(page, indent=2) + "\n")


if __name__ == "__main__":
    main()
