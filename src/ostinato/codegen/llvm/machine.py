"""What LLVM says of this machine and of itself, remembered on disk.

Asking LLVM means loading it, which takes longer than to load and run a small model whose kernels
are in the cache.
"""

from __future__ import annotations

import functools
import json
import platform
from pathlib import Path

from ostinato.codegen.object_cache import ObjectCache, object_key

__all__ = ["machine"]

_CPU_FACTS = Path("/proc/cpuinfo")
_DECISIVE = ("vendor_id", "cpu family", "model", "stepping", "flags", "microcode")


@functools.cache
def machine() -> dict[str, str]:
    """``triple``, ``cpu`` and ``features`` of the host as LLVM names them, and the ``compiler``."""
    facts = _facts()
    if facts is None:
        return _asked()
    key = object_key("the host as LLVM describes it", facts)
    stored: dict[str, str] = json.loads(
        ObjectCache().get_or_build(key, lambda: json.dumps(_asked()).encode())
    )
    return stored


def _facts() -> str | None:
    """All that LLVM's answers depend on; ``None`` where that is not known."""
    import llvmlite

    library = Path(llvmlite.__file__).parent / "binding" / "libllvmlite.so"
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
    return {
        "triple": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "features": llvm.get_host_cpu_features().flatten(),
        "compiler": f"LLVM {version} llvmlite {llvmlite.__version__}",
    }
