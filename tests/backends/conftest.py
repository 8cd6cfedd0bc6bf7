"""Fixtures for tests of the native core: a C compiler, and kernels made with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cc() -> str:
    """The C compiler, which building the extension needs, too."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.skip("needs a C compiler")
    return compiler


@pytest.fixture(scope="session")
def shared_library(cc: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles a C file of this folder into a shared library."""

    def build(source: str) -> Path:
        library = tmp_path_factory.mktemp("c") / f"{Path(source).stem}.so"
        subprocess.run([cc, "-O2", "-shared", "-fPIC", "-o", library, HERE / source], check=True)
        return library

    return build


class Kernels:
    """The addresses of the functions in core_kernels.c, as attributes."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self.path = library

    def __getattr__(self, name: str) -> int:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address


@pytest.fixture(scope="session")
def kernels(shared_library: Callable[[str], Path]) -> Kernels:
    return Kernels(shared_library("core_kernels.c"))
