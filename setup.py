"""Builds the native extensions for the stable ABI; all else is in pyproject.toml.

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

ORDER = Path("src/ostinato/plan/csrc")
CORE = Path("src/ostinato/backends/cpu/csrc")
ARRAYS = Path("src/ostinato/backends/array_api/csrc")
CUDA = Path("src/ostinato/backends/cuda/csrc")
TORCH = Path("src/ostinato/frontends/torch/csrc")
STABLE_ABI = 0x030B0000  # Python 3.11, the first whose stable ABI has the buffer protocol


def native(name: str, folder: Path) -> Extension:
    """The extension of the C files of a folder."""
    return Extension(
        name,
        sources=[str(path) for path in sorted(folder.glob("*.c"))],
        depends=[str(path) for source in {folder, ORDER} for path in sorted(source.glob("*.h"))],
        include_dirs=[str(ORDER)],
        define_macros=[("Py_LIMITED_API", f"0x{STABLE_ABI:08X}")],
        py_limited_api=True,
        extra_compile_args=[
            *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"),
            "-fvisibility=hidden",  # calls within the library are direct
        ],
        extra_link_args=["-pthread"],
    )


setup(
    ext_modules=[
        native("ostinato.plan._order", ORDER),
        native("ostinato.backends.cpu._core", CORE),
        native("ostinato.backends.array_api._fresh_runs", ARRAYS),
        native("ostinato.backends.cuda._graph_calls", CUDA),
        native("ostinato.frontends.torch._runtime", TORCH),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
