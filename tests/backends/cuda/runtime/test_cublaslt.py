"""The binding of cuBLASLt: descriptors of the installed library, and the words of its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.backends.cuda.cublaslt import CublasLt, find_library
from ostinato.backends.cuda.driver import DriverFailure
from ostinato.backends.cuda.product import Matrix, Product
from ostinato.errors import DeviceUnavailableError

PRODUCT = Product(
    "bfloat16",
    "bfloat16",
    Matrix(64, 32, 64, 64 * 32, 16),
    Matrix(64, 48, 64, 64 * 48, 16),
    Matrix(32, 48, 32, 32 * 48, 16),
    (True, False),
    3,
    1 << 20,
)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libcublasLt.so.13"
    path.write_bytes(b"nothing")
    with pytest.raises(DeviceUnavailableError, match="install the package nvidia-cublas"):
        CublasLt(str(path))


@pytest.fixture
def library() -> CublasLt:
    path = find_library()
    if path is None:
        pytest.skip("cuBLASLt is not installed: pip install nvidia-cublas")
    return CublasLt(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_descriptors(library: CublasLt, dtype: str) -> None:
    assert library.identity.startswith("cuBLASLt ")
    result = "int32" if dtype == "int8" else dtype
    library.multiplication(PRODUCT._replace(dtype=dtype, result=result))
    library.multiplication(PRODUCT._replace(dtype=dtype, result=result, tf32=True, batch=1))


def test_refusals_have_the_librarys_words(library: CublasLt) -> None:
    with pytest.raises(DriverFailure, match="CUBLAS_STATUS_INVALID_VALUE"):
        library.call("cublasLtMatrixLayoutSetAttribute", None, 99, None, 0)


def test_a_library_that_does_not_start(library: CublasLt, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *_: object) -> None:
        raise DriverFailure(name, "CUBLAS_STATUS_NOT_INITIALIZED", "not initialised")

    multiplication = library.multiplication(PRODUCT)
    with monkeypatch.context() as patch:
        patch.setattr(library, "call", lambda name, *a: refuse(name) if "Create" in name else None)
        with pytest.raises(DeviceUnavailableError, match=r"newer driver.*library_products=False"):
            _ = library._handle
    del multiplication
