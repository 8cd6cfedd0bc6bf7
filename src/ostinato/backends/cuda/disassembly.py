"""Machine code as text, where NVIDIA's disassembler is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["disassembled"]

_TOOL = "nvdisasm"

#: The folder of the CUDA toolkit that has it, besides the search path.
_TOOLKIT = "/usr/local/cuda/bin"


def disassembled(cubin: bytes) -> str | None:
    """The instructions (SASS) of a cubin; ``None`` where ``nvdisasm`` is not installed."""
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), _TOOLKIT))
    tool = shutil.which(_TOOL, path=places)
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        ran = subprocess.run(
            [tool, "--print-code", path], capture_output=True, text=True, check=False
        )
    return ran.stdout if ran.returncode == 0 else None
