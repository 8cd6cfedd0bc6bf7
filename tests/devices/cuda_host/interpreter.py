"""Kernels in NumPy by their description: loop nests, steps about sizes, and decisions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.backends.cuda.abi import FAILED, FOUND, GOES_ON, HEADER_WORDS, Launch
from ostinato.backends.cuda.control import CudaControl
from ostinato.backends.cuda.kernel import CudaKernel, CudaLoopNest, CudaSizeStep
from ostinato.lower.control import ControlKind
from ostinato.lower.loopir.nodes import Arg
from ostinato.variables import evaluate
from tests.devices.loops.interpreter import run_nest

from .driver import Span

__all__ = ["INTERPRETED", "interpret", "memory_at"]

Array = np.ndarray[Any, Any]

#: The kinds of kernels that are interpreted.
INTERPRETED = (CudaLoopNest, CudaSizeStep, CudaControl)


def memory_at(address: int, dtype: Any, count: int) -> Array:
    """An array on memory at an address."""
    size = np.dtype(dtype).itemsize
    block = (ctypes.c_uint8 * max(size * count, 1)).from_address(address)
    return np.frombuffer(block, dtype, count)


def interpret(
    kernel: CudaKernel, launch: Launch, addresses: Sequence[int], memory: Callable[[int], Span]
) -> None:
    """Run a kernel by its description."""
    *places, variables = addresses
    memory(variables)
    words = kernel.variables
    counter = kernel.counter + 1 if isinstance(kernel, CudaControl) else 0
    count = HEADER_WORDS + max(len(words), counter)
    block = memory_at(variables - 8 * HEADER_WORDS, np.int64, count)
    header, values = block[:HEADER_WORDS], block[HEADER_WORDS:]
    sizes = dict(zip(words, map(int, values), strict=False))
    buffers = [
        memory_at(place, arg.dtype.numpy, (memory(place).end - place) // arg.dtype.itemsize)
        for arg, place in zip(kernel.args, places, strict=True)
    ]
    if isinstance(kernel, CudaControl):
        header[GOES_ON] = header[FAILED] == 0 and _decide(kernel, buffers, values)
    elif header[FAILED] and kernel.guarded:
        return
    elif isinstance(kernel, CudaSizeStep):
        _size_step(kernel, buffers, header, values)
    else:
        assert isinstance(kernel, CudaLoopNest)
        with np.errstate(all="ignore"):
            run_nest(kernel, [*map(_canonical, kernel.args, buffers)], sizes)


def _canonical(arg: Arg, buffer: Array) -> Array:
    """The buffer; of bools that are only read, any byte that is not 0 is a true one."""
    return buffer if arg.writes or buffer.dtype != bool else buffer.view(np.uint8) != 0


def _named(kernel: CudaKernel, values: Array) -> dict[str, int]:
    return {s.name: int(v) for s, v in zip(kernel.variables, values, strict=False)}


def _decide(kernel: CudaControl, buffers: Sequence[Array], values: Array) -> bool:
    goes_on = not kernel.conditional or bool(buffers[0].view(np.uint8)[0])
    if kernel.kind is ControlKind.IF:
        return goes_on
    first = kernel.kind is ControlKind.LOOP
    iteration = 0 if first else int(values[kernel.counter]) + 1
    values[kernel.counter] = iteration
    if kernel.trips is not None:
        goes_on &= iteration < evaluate(kernel.trips, _named(kernel, values))
    if kernel.counted:
        goes_on &= iteration < int(buffers[-1][0])
    return goes_on


def _size_step(
    kernel: CudaSizeStep, buffers: Sequence[Array], header: Array, values: Array
) -> None:
    limit = evaluate(kernel.limit, _named(kernel, values))
    if kernel.symbol is None:
        found, fits = limit, limit >= 0
    else:
        found = int(buffers[0][0])
        fits = 0 <= found <= limit
    if not fits:
        if not header[FAILED]:
            header[FOUND], header[FAILED] = found, kernel.code
    elif kernel.symbol is not None:
        buffers[1][0] = found
        values[kernel.variables.index(kernel.symbol)] = found
