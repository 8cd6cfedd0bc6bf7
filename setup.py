"""Builds the native core as one extension for the stable ABI; all else is in pyproject.toml.

``CFLAGS`` and ``LDFLAGS`` are honoured as usual. To run tests of the core under the sanitizers::

    CFLAGS="-fsanitize=address,undefined" python setup.py build --force --build-base build/asan
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \\
        ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$(echo build/asan/lib.*) \\
        python -m pytest -s tests/backends/test_core.py tests/backends/test_core_threads.py

(Python itself leaks at exit; the tests watch for leaks of ours.)
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
