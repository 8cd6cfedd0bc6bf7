"""Lower bounds of what the machine can do, measured alternately with the runtimes.

Three floors, from kernels that do nothing else:

- arithmetic: ``flops`` at the rate of independent fused multiply-adds in registers;
- memory: reading as many bytes as the workload must read and writing those that it must write. The
  block read is as large as the workload's data: what fits in caches is read from there;
- the call: an empty function called from Python.

The greatest of the three is the floor. Clocks and shared memory come and go within milliseconds:
the floor is that of the best moments, and beside it stands that of the usual ones. The kernels are
written in LLVM IR: vectors of the machine's width, no library behind them.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench.compare.workloads import Array, Workload
from llvmlite import binding as llvm

#: Independent chains: enough to fill the pipelines of two multiply-add units, few enough for 16
#: registers.
CHAINS = 12
#: Short attempts, so that some fit between what else a machine does.
_SECONDS = 0.002
_ATTEMPTS = 12
#: More than caches hold; larger blocks are read no slower.
_LARGEST_BLOCK = 1 << 27
#: Blocks of this size are written past the caches.
_NON_TEMPORAL = 1 << 24


Work = Callable[[int, int], int]


@dataclass(frozen=True)
class Floors:
    """The least milliseconds of a run, and the rates behind them.

    Attributes:
        gflops: multiply-adds count twice.
        gbytes: per second, of the reads and writes that the workload needs.
        usual_ms: the floor by the median rates of a measurement, not by the greatest ones.
    """

    arithmetic_ms: float
    memory_ms: float
    call_ms: float
    gflops: float
    gbytes: float
    usual_ms: float

    @property
    def floor_ms(self) -> float:
        return max(self.arithmetic_ms, self.memory_ms, self.call_ms)

    @staticmethod
    def best(measured: Sequence[Floors]) -> Floors:
        """The least times and greatest rates of several measurements."""
        return Floors(
            **{name: min(getattr(f, name) for f in measured) for name in _TIMES},
            **{name: max(getattr(f, name) for f in measured) for name in _RATES},
        )


_TIMES, _RATES = ("arithmetic_ms", "memory_ms", "call_ms", "usual_ms"), ("gflops", "gbytes")


class Probe:
    """Measures the floors of one workload on ``threads`` threads."""

    def __init__(
        self, workload: Workload, threads: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._workload, self._threads, self._clock = workload, threads, clock
        self._pool = ThreadPoolExecutor(threads)
        self._kernels = Kernels()
        self._reads = [_block(workload.memory_read, threads) for _ in range(threads)]
        self._writes = [_block(workload.memory_written, threads) for _ in range(threads)]

    def measure(self) -> Floors:
        """One quick measurement; the best of many is what counts."""
        workload = self._workload
        nbytes = workload.memory_read + workload.memory_written
        flop_rate, usual_flop_rate = self._rates(self._fma, 1 << 14)
        byte_rate, usual_byte_rate = self._rates(self._stream, 1)
        call_ms = _empty_call_ms()
        return Floors(
            arithmetic_ms=workload.flops / flop_rate * 1e3,
            memory_ms=nbytes / byte_rate * 1e3,
            call_ms=call_ms,
            gflops=flop_rate / 1e9,
            gbytes=byte_rate / 1e9,
            usual_ms=max(
                workload.flops / usual_flop_rate * 1e3, nbytes / usual_byte_rate * 1e3, call_ms
            ),
        )

    def _rates(self, work: Work, repeats: int) -> tuple[float, float]:
        """The count of ``work(thread, repeats)`` per second in all threads: greatest and median."""
        elapsed, done = self._attempt(work, repeats)
        while elapsed < _SECONDS:
            repeats *= 16 if elapsed < _SECONDS / 16 else 2
            elapsed, done = self._attempt(work, repeats)
        times = [self._attempt(work, repeats)[0] for _ in range(_ATTEMPTS)]
        return done / min(times), done / statistics.median(times)

    def _attempt(self, work: Work, repeats: int) -> tuple[float, int]:
        """The time that all threads take at once, and their count."""

        def timed(thread: int) -> tuple[float, int, float]:
            return self._clock(), work(thread, repeats), self._clock()

        starts, counts, ends = zip(*self._pool.map(timed, range(self._threads)), strict=True)
        return max(ends) - min(starts), sum(counts)

    def _fma(self, thread: int, repeats: int) -> int:
        self._kernels.fma(repeats)
        return repeats * CHAINS * self._kernels.lanes * 2

    def _stream(self, thread: int, repeats: int) -> int:
        read, written = self._reads[thread], self._writes[thread]
        step = 4 * CHAINS * self._kernels.lanes
        copies = min(read.nbytes, written.nbytes) // step
        past_caches = written.nbytes * self._threads >= _NON_TEMPORAL
        stream = self._kernels.copy_past_caches if past_caches else self._kernels.copy
        stream(read.ctypes.data, written.ctypes.data, copies, read.nbytes // step, repeats)
        return repeats * (read.nbytes + copies * step)


def _block(nbytes: int, threads: int) -> Array:
    """One thread's share, in whole steps of the widest kernel, aligned; its pages are there."""
    step = 64 * CHAINS
    size = max(1, min(nbytes, _LARGEST_BLOCK) // threads // step) * step
    room = np.ones(size // 4 + 16, np.float32)
    skipped = -room.ctypes.data % 64 // 4
    return room[skipped : skipped + size // 4]


def _empty_call_ms() -> float:
    call, calls = b"".islower, range(1000)
    start = time.perf_counter()
    for _ in calls:
        call()
    return time.perf_counter() - start  # seconds per thousand calls: milliseconds per call


class Kernels:
    """The kernels, compiled for this machine.

    Attributes:
        lanes: float32 numbers in a vector.
        fma: ``fma(repeats)``: one multiply-add in each chain, that often.
        copy: ``copy(src, dst, copies, reads, repeats)``, counted in steps of a vector for each
            chain: copies some and reads the rest, that often.
        copy_past_caches: the same with non-temporal stores.
    """

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2, jit=True
        )
        module = llvm.parse_assembly(_source(self.lanes))
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        count, pointer = ctypes.c_int64, ctypes.c_void_p
        self.fma = self._function("fma", count)
        self.copy = self._function("copy", pointer, pointer, count, count, count)
        self.copy_past_caches = self._function("copy_nt", pointer, pointer, count, count, count)

    def _function(self, name: str, *types: Any) -> Callable[..., None]:
        address = self._engine.get_function_address(name)
        return ctypes.CFUNCTYPE(None, *types)(address)


def _source(lanes: int) -> str:
    """The module in LLVM IR. Accesses are volatile so that they are not optimised away."""
    vector = f"<{lanes} x float>"
    half = f"<{', '.join(['float 0.5'] * lanes)}>"
    chains = range(CHAINS)
    phis = _lines(f"%a{i} = phi {vector} [ {half}, %entry ], [ %b{i}, %loop ]" for i in chains)
    fmas = _lines(
        f"%b{i} = call {vector} @llvm.fma.v{lanes}f32"
        f"({vector} %a{i}, {vector} {half}, {vector} {half})"
        for i in chains
    )
    kept = _lines(f"store volatile {vector} %b{i}, ptr %room" for i in chains)
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})

define void @fma(i64 %repeats) {{
entry:
  %room = alloca {vector}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  {phis}
  {fmas}
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, %repeats
  br i1 %more, label %loop, label %done
done:
  {kept}
  ret void
}}
{_copy("copy", lanes, "")}
{_copy("copy_nt", lanes, ", !nontemporal !0")}
!0 = !{{i32 1}}
"""


def _copy(name: str, lanes: int, hint: str) -> str:
    vector, align = f"<{lanes} x float>", f"align {4 * lanes}"
    loads = _lines(
        line
        for i in range(CHAINS)
        for line in (
            f"%p{{0}}{i} = getelementptr {vector}, ptr %from{{0}}, i64 {i}",
            f"%v{{0}}{i} = load volatile {vector}, ptr %p{{0}}{i}, {align}",
        )
    )
    stores = _lines(
        line
        for i in range(CHAINS)
        for line in (
            f"%q{i} = getelementptr {vector}, ptr %to, i64 {i}",
            f"store {vector} %vc{i}, ptr %q{i}, {align}{hint}",
        )
    )
    block = f"[{CHAINS} x {vector}]"
    return f"""
define void @{name}(ptr %src, ptr %dst, i64 %copies, i64 %reads, i64 %repeats) {{
entry:
  br label %again
again:
  %n = phi i64 [ 0, %entry ], [ %next, %finished ]
  br label %copying
copying:
  %c = phi i64 [ 0, %again ], [ %c1, %copy ]
  %copied = icmp uge i64 %c, %copies
  br i1 %copied, label %reading, label %copy
copy:
  %fromc = getelementptr {block}, ptr %src, i64 %c
  %to = getelementptr {block}, ptr %dst, i64 %c
  {loads.format("c")}
  {stores}
  %c1 = add i64 %c, 1
  br label %copying
reading:
  %r = phi i64 [ %c, %copying ], [ %r1, %read ]
  %all = icmp uge i64 %r, %reads
  br i1 %all, label %finished, label %read
read:
  %fromr = getelementptr {block}, ptr %src, i64 %r
  {loads.format("r")}
  %r1 = add i64 %r, 1
  br label %reading
finished:
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, %repeats
  br i1 %more, label %again, label %done
done:
  ret void
}}
"""


def _lines(lines: Iterable[str]) -> str:
    return "\n  ".join(lines)
