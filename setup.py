"""Builds the native core as one extension for the stable ABI; all else is in pyproject.toml.

``CFLAGS`` and ``LDFLAGS`` are honoured as usual, so a build with sanitizers is::

    CFLAGS="-g -fsanitize=address,undefined" python setup.py build_ext --force --build-lib asan

to be run with ``LD_PRELOAD=$(gcc -print-file-name=libasan.so)``.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

CORE = Path("src/ostinato/backends/cpu/csrc")
STABLE_ABI = 0x030B0000  # Python 3.11, the first whose stable ABI has the buffer protocol

setup(
    ext_modules=[
        Extension(
            "ostinato.backends.cpu._core",
            sources=[str(path) for path in sorted(CORE.glob("*.c"))],
            depends=[str(path) for path in sorted(CORE.glob("*.h"))],
            define_macros=[("Py_LIMITED_API", f"0x{STABLE_ABI:08X}")],
            py_limited_api=True,
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"],
            extra_link_args=["-pthread"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
