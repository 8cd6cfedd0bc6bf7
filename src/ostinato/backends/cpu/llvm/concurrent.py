"""LLVM's two long calls, made so that threads can be in them at the same time.

llvmlite lets one thread at a time into LLVM, whichever call it makes. LLVM asks for less: modules
of different contexts, and target machines, are independent of each other. Nearly all time goes
into optimising a module and into writing its code; these two calls go past llvmlite's lock.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

__all__ = ["emit_object", "run_passes"]


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """``passes.run(module, builder)``. No other thread may be using the module's context."""
    _function("LLVMPY_RunNewModulePassManager")(passes, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """``machine.emit_object(module)``. No other thread may be using them, or their context."""
    from llvmlite.binding import ffi

    with ffi.OutputString() as message:
        buffer = _function("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, message)
        if not buffer:
            raise RuntimeError(str(message))
    start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
    try:
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@functools.cache
def _function(name: str) -> Any:
    """A function of LLVM's library as llvmlite declares it, without the lock around it."""
    from llvmlite.binding import ffi

    declared = getattr(ffi.lib, name)
    function = getattr(ctypes.CDLL(ffi.lib._name, handle=ffi.lib._handle), name)
    function.argtypes, function.restype = declared.argtypes, declared.restype
    return function
