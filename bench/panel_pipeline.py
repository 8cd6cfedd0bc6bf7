"""The share of memory bandwidth and arithmetic that matmuls of few rows reach.

    python -m bench.panel_pipeline [--threads 1 2] [--seconds 8] [--formats f32 bf16]
        [--clock cpu] [--json FILE]

Matmuls of 1 to 128 rows with a weight that stays in a cache and with one that comes from memory,
next to the rate of multiply-adds in registers and of reads from memory. The lesser of both rates
is the ceiling of a matmul. Where the bandwidth of memory and the clock swing with other machines'
work, so does the ceiling: on one thread, times are compared with those of reads and multiply-adds
right before and after, too. All of them alternate in one process that is pinned to its cores, with
``CompileOptions(prefetch=False)`` as a further side; times are the least of many, since whatever
else runs on the machine only adds to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench.compare.floors import CHAINS, Kernels, Probe
from bench.compare.report import machine
from bench.compare.worker import Clock, clock_named
from bench.compare.workloads import Workload

import ostinato as ost
from ostinato.ops.packed.formats import FORMATS as BLOCKS

Array = np.ndarray[Any, Any]
Call = Callable[[], None]

ROWS = (1, 4, 8, 16, 32, 64, 128)
DEPTH = 4096
#: Columns of the weight that stays in a cache and of the one that does not.
COLUMNS = {"cache": 96, "memory": 8192}
#: Packed weights, by their names without the prefix.
PACKED = {name.removeprefix("gguf:"): form for name, form in BLOCKS.items() if form.computed}
FORMATS = {
    "f32": 4.0,
    "bf16": 2.0,
    "int8": 1.0,
    "int4": 0.5,
    **{name: form.nbytes / form.size for name, form in PACKED.items()},
}
#: Positions of ``k`` that share a scale, in matmuls of 4-bit codes.
GROUP = 32
#: Rounds of multiply-adds that take a few milliseconds.
_MULTIPLY_ADDS = 1 << 20
#: Short calls are timed in bunches of about this many seconds.
_BUNCH = 5e-4


@dataclass(frozen=True)
class Result:
    """One matmul on so many threads.

    Attributes:
        format: of the weight's elements.
        rows: of the left operand.
        weight: ``"cache"`` or ``"memory"``.
        gflops: reached; multiply-adds count twice.
        gbytes: of weights per second.
        without: the GFLOP/s that ``CompileOptions(prefetch=False)`` reaches.
        ceiling: the GFLOP/s that memory and float32 arithmetic allow together; for weights in a
            cache, arithmetic alone. Dot products of bytes may exceed it.
        paired: on one thread, the median over rounds of the share of what reads and multiply-adds
            around a call allow together; 0 for weights in a cache, and on more threads.
    """

    format: str
    rows: int
    weight: str
    threads: int
    gflops: float
    gbytes: float
    without: float
    ceiling: float
    paired: float

    @property
    def share(self) -> float:
        return self.gflops / self.ceiling


class _Reading(Workload):
    """Reading as many bytes as the greatest weight has."""

    flops, memory_read, memory_written = 0, 4 * DEPTH * COLUMNS["memory"], 0  # type: ignore


class _Around:
    """Reads of as many bytes as a weight has, and multiply-adds, on one thread."""

    def __init__(self, clock: Clock) -> None:
        self._kernels, self._clock = Kernels(), clock
        self._block = np.ones(_Reading.memory_read // 4 + 16, np.float32)
        self._start = self._block.ctypes.data + -self._block.ctypes.data % 64
        self._step = 4 * CHAINS * self._kernels.lanes

    def seconds_per_byte(self) -> float:
        """Of one pass."""
        steps = _Reading.memory_read // self._step
        start = self._clock()
        self._kernels.copy(self._start, self._start, 0, steps, 1)
        return (self._clock() - start) / (steps * self._step)

    def seconds_per_flop(self) -> float:
        """Of some milliseconds of multiply-adds in registers."""
        start = self._clock()
        self._kernels.fma(_MULTIPLY_ADDS)
        count = 2 * _MULTIPLY_ADDS * CHAINS * self._kernels.lanes
        return (self._clock() - start) / count


class _Side:
    """A compiled matmul and the least time of its calls."""

    def __init__(
        self, session: ost.Session, spec: tuple[str, int, str], clock: Clock, *, on: bool
    ) -> None:
        kind, rows, weight = spec
        self.flops = 2.0 * rows * DEPTH * COLUMNS[weight]
        self.nbytes = FORMATS[kind] * DEPTH * COLUMNS[weight]
        self.least = self.last = float("inf")
        self.ratios: list[float] = []
        self._call = _bound(session, kind, rows, COLUMNS[weight], on=on)
        self._call()
        self._clock = clock
        self._count = 1
        self._count = max(1, round(_BUNCH / self._seconds()))

    def turn(self) -> None:
        """Time a few calls, after one that is not counted: others had the caches."""
        self._call()
        self.last = self._seconds()
        self.least = min(self.least, self.last)

    def turn_between(self, around: _Around) -> None:
        """The same, next to the time that reads and multiply-adds around it take, the longer."""
        read, computed = around.seconds_per_byte(), around.seconds_per_flop()
        self.turn()
        computed, read = computed + around.seconds_per_flop(), read + around.seconds_per_byte()
        self.ratios.append(max(self.nbytes * read, self.flops * computed) / 2 / self.last)

    def _seconds(self) -> float:
        calls, call, clock = range(self._count), self._call, self._clock
        start = clock()
        for _ in calls:
            call()
        return (clock() - start) / self._count


def _bound(session: ost.Session, kind: str, rows: int, columns: int, *, on: bool) -> Call:
    g = ost.Graph("matmul")
    random = np.random.default_rng(0)
    if kind in PACKED:
        inputs, y = _packed(g, kind, rows, columns)
    elif kind in ("int8", "int4"):
        x = random.integers(-40, 40, (rows, DEPTH)).astype(np.int8)
        inputs = {"x": x}
        a = g.input("x", x.shape, x.dtype)
        if kind == "int8":
            weight = random.integers(-40, 40, (DEPTH, columns)).astype(np.int8)
            y = g.integer_matmul(a, g.param("w", weight.shape, weight.dtype, value=weight))
        else:
            blocks = DEPTH // GROUP
            codes = random.integers(0, 256, (DEPTH // 2, columns)).astype(np.uint8)
            scales = random.random((blocks, columns), np.float32)
            inputs["s"] = random.random((rows, blocks), np.float32)
            y = g.blockwise_matmul(
                a,
                g.input("s", inputs["s"].shape),
                g.param("w", codes.shape, codes.dtype, value=codes),
                g.param("ws", scales.shape, value=scales),
                group=GROUP,
            )
    else:
        x = random.random((rows, DEPTH), np.float32)
        inputs = {"x": x}
        weight = random.random((DEPTH, columns), np.float32)
        a = g.input("x", x.shape)
        if kind == "bf16":
            stored = weight.astype(ml_dtypes.bfloat16)
            w = g.cast(g.param("w", stored.shape, stored.dtype, value=stored), "float32")
        else:
            w = g.param("w", weight.shape, value=weight)
        y = g.matmul(a, w)
    g.set_outputs([y])
    compiled = session.compile(g, options=ost.CompileOptions(prefetch=on))
    return compiled.bind(inputs, [np.empty((rows, columns), y.dtype.numpy)])


def _packed(g: ost.Graph, kind: str, rows: int, columns: int) -> tuple[dict[str, Array], Any]:
    """The matmul of bytes with packed weights, and its inputs."""
    form, random = PACKED[kind], np.random.default_rng(0)
    blocks = random.integers(0, 256, (columns * DEPTH // form.size, form.nbytes), np.uint8)
    for scale in (form.scale, form.minimum):
        if scale is not None and scale.kind == "f16":
            blocks[:, scale.byte : scale.byte + 2] = np.array([0.01], "<f2").view(np.uint8)
    q = random.integers(-127, 128, (rows, DEPTH), np.int8)
    inputs = {
        "q": q,
        "scales": random.random((rows, DEPTH // form.size), np.float32),
        "sums": q.reshape(rows, -1, form.group).sum(-1, dtype=np.int32),
    }
    given, *left = [g.input(name, array.shape, array.dtype) for name, array in inputs.items()]
    # As rounding gives them: within bounds that products in pairs of bytes ask for.
    rounded = g.cast(g.clip(g.cast(given, "float32"), -127, 127), "int8")
    weight = blocks.reshape(columns, -1)
    w = g.param("w", weight.shape, weight.dtype, value=weight)
    return inputs, g.packed_block_matmul(rounded, *left, w, form.name)


def _measured(
    threads: int, rows: Sequence[int], formats: Sequence[str], seconds: float, clock: Clock
) -> list[Result]:
    session = ost.Session("cpu", threads=threads)
    probe = Probe(_Reading(), threads, clock)
    specs = [(kind, m, weight) for kind in formats for m in rows for weight in COLUMNS]
    sides = {spec: [_Side(session, spec, clock, on=on) for on in (True, False)] for spec in specs}
    gflops = gbytes = 0.0
    around = _Around(clock) if threads == 1 else None
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        floors = probe.measure()
        gflops, gbytes = max(gflops, floors.gflops), max(gbytes, floors.gbytes)
        for (_, _, weight), (on, off) in sides.items():
            off.turn()
            if around is not None and weight == "memory":
                on.turn_between(around)
            else:
                on.turn()
    print(f"{threads} threads: {gflops:.1f} GFLOP/s in registers, {gbytes:.1f} GB/s read")
    results = []
    for (kind, m, weight), (on, off) in sides.items():
        stream = on.flops * gbytes / on.nbytes if weight == "memory" else float("inf")
        results.append(
            Result(
                kind,
                m,
                weight,
                threads,
                on.flops / on.least / 1e9,
                on.nbytes / on.least / 1e9,
                off.flops / off.least / 1e9,
                min(gflops, stream),
                statistics.median(on.ratios) if on.ratios else 0.0,
            )
        )
    return results


def _processor() -> str:
    """The name, family and model that the processor gives itself."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    name = facts.get("model name", platform.processor())
    return f"{name} (family {facts.get('cpu family')}, model {facts.get('model')})"


def _say(results: Sequence[Result]) -> None:
    print("format rows weight   GFLOP/s  without  GB/s  ceiling  share  paired")
    for r in results:
        print(
            f"{r.format:6} {r.rows:4} {r.weight:8} {r.gflops:7.1f} {r.without:8.1f} "
            f"{r.gbytes:5.1f} {r.ceiling:8.1f} {100 * r.share:5.0f} % {100 * r.paired:5.0f} %"
        )


def main() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(allowed)}))
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["f32"])
    parser.add_argument("--seconds", type=float, default=8.0, help="for each number of threads")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="as in compare")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{_processor()}; {machine()}")
    found: list[Result] = []
    for threads in given.threads:
        os.sched_setaffinity(0, set(allowed[-threads:]))
        results = _measured(
            threads, given.rows, given.formats, given.seconds, clock_named(given.clock, threads)
        )
        _say(results)
        found += results
    if given.json is not None:
        rows = [{**asdict(r), "share": r.share} for r in found]
        page = {"processor": _processor(), "machine": machine(), "results": rows}
        given.json.write_text(json.dumps(page, indent=2) + "\n")


if __name__ == "__main__":
    main()
