"""The cost of the native core: a call, a step, a hand-over to other threads. Needs a C compiler.

Run with ``python bench/core_dispatch.py``, on a machine that does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ostinato.backends.cpu import _core

KERNELS = """
#include <stdint.h>
#define KERNEL(name) void name(char *const *buffers, const int64_t *vars, int64_t begin, \
                               int64_t end, char *scratch)
KERNEL(nothing) { }
KERNEL(scale) { /* rows of 1 KiB, in place: as fast as the cache gives them */
    float *x = (float *)buffers[0];
    for (int64_t i = begin * 256; i < end * 256; i++) x[i] = x[i] * 0.5f + 1.0f;
}
KERNEL(chain) { /* the same rows, bound by arithmetic */
    float *x = (float *)buffers[0];
    for (int64_t row = begin; row < end; row++)
        for (int k = 0; k < 100; k++) x[row * 256] = x[row * 256] * 0.5f + 1.0f;
}
"""


def compile_kernels() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        source.write_text(KERNELS)
        command = [os.environ.get("CC", "cc"), "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*command, source, "-o", library], check=True)
        return ctypes.CDLL(str(library))


def microseconds(call: Callable[[], object], *, divisor: int = 1) -> float:
    """The median time of a call, over batches long enough for the clock."""
    batches = []
    for _ in range(15):
        count = 0
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < 0.01:
            for _ in range(20):
                call()
            count += 20
        batches.append(elapsed / count / divisor * 1e6)
    return statistics.median(batches)


def after_sleep(call: Callable[[], object]) -> float:
    """The median time of a call that finds the other threads asleep."""
    times = []
    for _ in range(200):
        time.sleep(0.001)
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def main() -> None:
    kernels = compile_kernels()

    def step(name: str, args: tuple[tuple[int, int], ...], extent: int, grain: int = 1):
        address = ctypes.cast(getattr(kernels, name), ctypes.c_void_p).value
        return (address, args, extent, 0, grain, 0)

    def show(what: str, time_us: float) -> None:
        print(f"{what:<58}{time_us:10.3f} us")

    pool = _core.ThreadPool(2)
    arrays = [np.zeros(1024, np.float32) for _ in range(4)]
    four = tuple((i, 0) for i in range(4))
    slots = [(4096, True), *[(4096, False)] * 3]
    program = _core.Program(pool, slots, [step("nothing", four, 1)], 0)
    show("BoundCall(), one step that does nothing", microseconds(program.bind(arrays)))
    show("run() with four arrays, the same step", microseconds(lambda: program.run(arrays)))
    for name, extent in [("alone", 1), ("in 2 chunks", 2), ("in 32 chunks", 1000)]:
        call = _core.Program(pool, [], [step("nothing", (), extent)] * 1000, 0).bind()
        show(f"a step that does nothing, {name}", microseconds(call, divisor=1000))
    call = _core.Program(pool, [], [step("nothing", (), 2)], 0).bind()
    show("BoundCall() that wakes a sleeping thread", after_sleep(call))

    for kib in (256, 512, 1024, 4096):
        array = np.zeros(kib * 256, np.float32)
        for name in ("scale", "chain"):
            for threads in (1, 2):
                work = step(name, ((0, 0),), kib, 8)
                call = _core.Program(_core.ThreadPool(threads), [array], [work], 0).bind()
                show(f"{name} {kib} KiB, {threads} thread(s)", microseconds(call))


if __name__ == "__main__":
    main()
