"""LLVM's description of this machine and of itself, cached on disk.

Asking LLVM means loading it, which takes longer than to load and run a small model whose kernels
are in the cache.
"""

from __future__ import annotations

import functools
import os
import platform
import threading
from pathlib import Path

from ostinato.cache.fingerprint import entry_key
from ostinato.cache.objects import process_cache

__all__ = ["load_ahead", "machine"]

_CPU_FACTS = Path("/proc/cpuinfo")
_NAMES = ("triple", "cpu", "features", "compiler")
_DECISIVE = ("vendor_id", "cpu family", "model", "stepping", "flags", "microcode")


@functools.cache
def machine() -> dict[str, str]:
    """``triple``, ``cpu`` and ``features`` of the host as LLVM names them, and the ``compiler``."""
    key = _key()
    if key is None:
        return _asked()
    stored = process_cache().get_or_build(key, lambda: "\n".join(_asked().values()).encode())
    return dict(zip(_NAMES, stored.decode().split("\n"), strict=True))


def load_ahead() -> None:
    """Begin to load LLVM, in a thread of its own, if this machine is not known yet.

    No kernel can be in the cache then, so it takes LLVM to compile anything: a little later, since
    there is a model to read before, and modules to import.
    """
    key = _key()
    if key is not None and process_cache().find(key) is None:
        _start_loading()


@functools.cache
def _start_loading() -> None:
    """Start the thread, of which a process needs one however many sessions it opens."""
    thread = threading.Thread(target=_load_library, name="ostinato-load")
    thread.start()
    if hasattr(os, "register_at_fork"):  # a library half loaded would be of no use to a child
        os.register_at_fork(before=thread.join)


def _load_library() -> None:
    """Load LLVM without holding the interpreter's lock, which ``ctypes.CDLL`` does."""
    import ctypes

    load = ctypes.CDLL(None).dlopen
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    load(os.fsencode(_library()), os.RTLD_NOW)


def _library() -> Path:
    import llvmlite

    return Path(llvmlite.__file__).parent / "binding" / "libllvmlite.so"


def _key() -> str | None:
    """The cache's key of what LLVM says; ``None`` where it has to be asked each time."""
    facts = _facts()
    return None if facts is None else entry_key("host", facts=facts)


def _facts() -> str | None:
    """All that LLVM's answers depend on; ``None`` where that is not known."""
    import llvmlite

    library = _library()
    try:
        status = library.stat()
        with _CPU_FACTS.open(encoding="utf-8", errors="replace") as file:
            first = list(iter(lambda: file.readline().strip(), ""))
    except OSError:
        return None
    decisive = [line for line in first if line.partition("\t")[0] in _DECISIVE]
    if not any(line.startswith("flags") for line in decisive):
        return None
    compiler = f"{llvmlite.__version__} {library} {status.st_size} {status.st_mtime_ns}"
    return "\n".join((platform.machine(), compiler, *decisive))


def _asked() -> dict[str, str]:
    import llvmlite
    import llvmlite.binding as llvm

    version = ".".join(str(part) for part in llvm.llvm_version_info)
    compiler = f"LLVM {version} llvmlite {llvmlite.__version__}"
    features = llvm.get_host_cpu_features().flatten()
    answers = (llvm.get_process_triple(), llvm.get_host_cpu_name(), features, compiler)
    return dict(zip(_NAMES, answers, strict=True))
