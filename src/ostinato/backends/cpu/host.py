"""Calls of the operating system that not every one has, each with a portable fallback.

Linux has all of them, and is the only system that is tested.
"""

from __future__ import annotations

import ctypes
import os

from ostinato.backends.cpu import _core

__all__ = ["amx_features", "function_address", "usable_processors"]


def usable_processors() -> int:
    """The number of processors that this process may run on; of all, where that is not known."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def function_address(name: str) -> int | None:
    """The address of a function of the C library or the mathematical one; ``None``: unknown."""
    try:
        process = ctypes.CDLL(None)  # of Windows, this raises: it has no such collection
        return ctypes.cast(getattr(process, name), ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        return None


def amx_features() -> tuple[str, ...]:
    """The parts of AMX that this process may use, as LLVM names them; asks for permission."""
    bfloat16, int8 = _core.permit_amx()
    found = [name for name, there in (("amx-bf16", bfloat16), ("amx-int8", int8)) if there]
    return ("amx-tile", *found) if found else ()
