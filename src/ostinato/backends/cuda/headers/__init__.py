"""The headers that the sources of kernels include: device functions in CUDA C++.

They are host C++, too: what only a GPU has stands under ``#ifdef __CUDA_ARCH__``, beside a portable
alternative.
"""

from __future__ import annotations

import functools
from pathlib import Path

__all__ = ["DIRECTORY", "headers"]

DIRECTORY = Path(__file__).parent
"""The folder of the headers, for compilers that read files."""


@functools.cache
def headers() -> dict[str, str]:
    """The text of every header, by the name that sources include it by."""
    return {path.name: path.read_text("utf-8") for path in sorted(DIRECTORY.glob("*.cuh"))}
