"""NVIDIA's library of matrix products, cuBLASLt: the few calls that products need, checked.

The library is the one that is installed: that of the package ``nvidia-cublas``, which PyTorch
brings along as well, or the system's.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.agreed import agreed_property
from ostinato.backends.cuda.driver import DriverFailure
from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cuda.product import Matrix, Product

__all__ = ["CublasLt", "find_library"]

#: Bytes of the library's description of an algorithm, and of a size of memory.
_ALGORITHM_BYTES, _SIZE_BYTES = 64, 8

#: ``cudaDataType``.
_DATA_TYPES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "int8": 3,
    "int32": 10,
    "bfloat16": 14,
    "float8_e4m3fn": 28,
    "float8_e5m2": 29,
}

#: ``cublasComputeType_t``, by the dtype that sums are accumulated in.
_COMPUTE_TYPES = {"float32": 68, "float64": 70, "int32": 72}
_COMPUTE_TF32 = 77

#: The type of factors, by the same dtype.
_NUMBERS: dict[str, type[ctypes.c_float | ctypes.c_double | ctypes.c_int32]] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
}

#: ``cublasLtMatmulDescAttributes_t``.
_TRANSPOSED_A, _TRANSPOSED_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8

#: Attributes of the same for scales; there is a pointer and a mode for each of A and B.
_SCALE_POINTERS, _SCALE_MODES = (17, 18), (31, 32)

#: Whether sums of products of 8-bit floats may stay in the tensor cores' fewer bits throughout: if
#: not, parts of them are added up in float32.
_FAST_ACCUMULATION = 25

#: ``cublasLtMatmulMatrixScale_t``: a scale for each row of A, or each column of B.
_OUTER_VECTOR = 3

#: ``cublasLtEpilogue_t``: a bias is added.
_WITH_BIAS = 4

#: ``cublasOperation_t`` for a transposition.
_TRANSPOSE = 1

#: ``cublasLtMatrixLayoutAttribute_t``.
_BATCH_COUNT, _BATCH_STRIDE = 5, 6

#: ``cublasLtMatmulPreferenceAttributes_t``; there is an alignment for each of A, B, C and D.
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)

#: ``cublasLtReductionScheme_t``: parts of a sum are added in the dtype of sums, in a fixed order.
_IN_COMPUTE_TYPE = 2

#: The address of a bias while algorithms are looked for: aligned as buffers are, and never read.
_ANY_ADDRESS = 256

#: Results in words, of ``cublasStatus_t``.
_NOT_SUPPORTED = 15


class _Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", ctypes.c_uint8 * _ALGORITHM_BYTES),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def find_library() -> str | None:
    """The file of the library; ``None``: it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = sorted(Path(folder).glob("*/lib/libcublasLt.so.*"), reverse=True)
        if found:
            return str(found[0])
    return ctypes.util.find_library("cublasLt")


class CublasLt:
    """See :class:`~ostinato.backends.cuda.product.ProductLibrary`: the library in a file.

    Args:
        path: the file.

    Raises:
        DeviceUnavailableError: the file is no library of this kind.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
            self._library.cublasLtGetVersion.restype = ctypes.c_size_t
            self._library.cublasLtGetStatusName.restype = ctypes.c_char_p
            self._library.cublasLtGetStatusString.restype = ctypes.c_char_p
            self.identity = f"cuBLASLt {self._library.cublasLtGetVersion()}"
        except (AttributeError, OSError) as error:
            raise DeviceUnavailableError(
                f"cuBLASLt, {path}, cannot be loaded: {error}; install the package nvidia-cublas, "
                "or compile with CompileOptions(library_products=False)"
            ) from error

    @agreed_property
    def _handle(self) -> ctypes.c_void_p:
        """The library's state on the GPU, kept for as long as the process uses the GPU.

        Raises:
            DeviceUnavailableError: the library does not start, with an older driver for instance.
        """
        handle = ctypes.c_void_p()
        try:
            self.call("cublasLtCreate", ctypes.byref(handle))
        except DriverFailure as failure:
            raise DeviceUnavailableError(
                f"{self.identity} does not start: {failure}; it may need a newer driver: install "
                "an older nvidia-cublas, or compile with CompileOptions(library_products=False)"
            ) from failure
        return handle

    def call(self, name: str, *arguments: Any) -> None:
        """Call the library.

        Raises:
            DriverFailure: it refuses.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            text = self._library.cublasLtGetStatusString(status)
            result = self._library.cublasLtGetStatusName(status)
            raise DriverFailure(name, result.decode(), text.decode())

    def multiplication(self, product: Product) -> CublasLtMultiplication:
        return CublasLtMultiplication(self, product)

    # -- for multiplications ---------------------------------------------------------------------

    def owned(self, owner: object, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """A descriptor of the library, destroyed with its owner."""
        descriptor = self.create(kind, *arguments)
        destroy: Callable[[ctypes.c_void_p], int]
        destroy = getattr(self._library, f"cublasLt{kind}Destroy")
        weakref.finalize(owner, destroy, descriptor).atexit = False
        return descriptor

    def create(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        """A descriptor of the library."""
        descriptor = ctypes.c_void_p()
        self.call(f"cublasLt{kind}Create", ctypes.byref(descriptor), *arguments)
        return descriptor

    def set_attribute(
        self, kind: str, descriptor: ctypes.c_void_p, attribute: int, value: Any
    ) -> None:
        """Set an attribute of a descriptor to a number of a type of C."""
        name = f"cublasLt{kind}SetAttribute"
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.call(name, descriptor, ctypes.c_int(attribute), ctypes.byref(value), size)

    def heuristics(self, most: int, *descriptors: ctypes.c_void_p) -> list[_Heuristic]:
        """The algorithms for a multiplication by these descriptors; none if it has none."""
        found, count = (_Heuristic * most)(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *descriptors, ctypes.c_int(most), found, ctypes.byref(count)
        )
        if status == _NOT_SUPPORTED:
            return []
        if status:
            result = self._library.cublasLtGetStatusName(status).decode()
            text = self._library.cublasLtGetStatusString(status).decode()
            raise DriverFailure("cublasLtMatmulAlgoGetHeuristic", result, text)
        return [entry for entry in found[: count.value] if entry.state == 0]

    def matmul(self, *arguments: Any) -> None:
        """``cublasLtMatmul`` on the library's state."""
        self.call("cublasLtMatmul", self._handle, *arguments)


class CublasLtMultiplication:
    """See :class:`~ostinato.backends.cuda.product.Multiplication`.

    Args:
        library: the library.
        product: the product.

    Raises:
        DriverFailure: the library refuses.
    """

    def __init__(self, library: CublasLt, product: Product) -> None:
        self._library = library
        self._product = product
        acc = "float32" if product.result in ("float16", "bfloat16") else product.result
        compute = _COMPUTE_TF32 if product.tf32 and acc == "float32" else _COMPUTE_TYPES[acc]
        scale = _DATA_TYPES[acc]
        self._description = library.owned(
            self, "MatmulDesc", ctypes.c_int(compute), ctypes.c_int(scale)
        )
        number = _NUMBERS[acc]
        self._one, self._zero = number(1), number(0)
        for attribute, transposed in zip(
            (_TRANSPOSED_A, _TRANSPOSED_B), product.transposed, strict=True
        ):
            if transposed:
                value = ctypes.c_int32(_TRANSPOSE)
                library.set_attribute("MatmulDesc", self._description, attribute, value)
        if product.bias:
            value = ctypes.c_int32(_WITH_BIAS)
            library.set_attribute("MatmulDesc", self._description, _EPILOGUE, value)
            self._set_bias(_ANY_ADDRESS)
        if product.scales:
            precise = ctypes.c_int8(0)
            library.set_attribute("MatmulDesc", self._description, _FAST_ACCUMULATION, precise)
            self._set_scales((_ANY_ADDRESS, _ANY_ADDRESS))
        if product.scales == "rows":
            for attribute in _SCALE_MODES:
                value = ctypes.c_int32(_OUTER_VECTOR)
                library.set_attribute("MatmulDesc", self._description, attribute, value)
        left, right = product.dtypes
        self._a = self._layout(product.a, left)
        self._b = self._layout(product.b, right)
        self._d = self._layout(product.d, product.result)

    def _layout(self, matrix: Matrix, dtype: str) -> ctypes.c_void_p:
        library = self._library
        layout = library.owned(
            self,
            "MatrixLayout",
            ctypes.c_int(_DATA_TYPES[dtype]),
            ctypes.c_uint64(matrix.rows),
            ctypes.c_uint64(matrix.columns),
            ctypes.c_int64(matrix.pitch),
        )
        if self._product.batch > 1:
            count, stride = ctypes.c_int32(self._product.batch), ctypes.c_int64(matrix.stride)
            library.set_attribute("MatrixLayout", layout, _BATCH_COUNT, count)
            library.set_attribute("MatrixLayout", layout, _BATCH_STRIDE, stride)
        return layout

    def algorithms(self, most: int) -> list[bytes]:
        """See :class:`~ostinato.backends.cuda.product.Multiplication`.

        Each is the library's description, and behind it the bytes of workspace that it needs: the
        library clears what it is given beyond that, too. Algorithms without one are guessed apart.
        """
        workspaces = {self._product.workspace: None} | ({0: None} if most > 1 else {})
        found = [entry for workspace in workspaces for entry in self._guessed(most, workspace)]
        return list(dict.fromkeys(found))

    def _guessed(self, most: int, workspace: int) -> list[bytes]:
        """The algorithms that the library puts first, with so many bytes of workspace at most."""
        library, product = self._library, self._product
        matrices = (product.a, product.b, product.d, product.d)
        wanted: list[tuple[int, Any]] = [
            (_MOST_WORKSPACE, ctypes.c_uint64(workspace)),
            (_REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE)),
            *zip(_ALIGNMENTS, (ctypes.c_uint32(m.alignment) for m in matrices), strict=True),
        ]
        preference = library.create("MatmulPreference")
        try:
            for attribute, value in wanted:
                library.set_attribute("MatmulPreference", preference, attribute, value)
            layouts = (self._a, self._b, self._d, self._d)
            found = library.heuristics(most, self._description, *layouts, preference)
        finally:
            library.call("cublasLtMatmulPreferenceDestroy", preference)
        return [
            bytes(entry.algorithm) + int(entry.workspace).to_bytes(_SIZE_BYTES, "little")
            for entry in found
            if entry.workspace <= workspace
        ]

    def _set_bias(self, address: int) -> None:
        """Set the address of the bias, which is part of the description."""
        pointer = ctypes.c_void_p(address)
        self._library.set_attribute("MatmulDesc", self._description, _BIAS_POINTER, pointer)

    def _set_scales(self, addresses: Sequence[int]) -> None:
        """Set the addresses of the scales, which are part of the description as well."""
        for attribute, address in zip(_SCALE_POINTERS, addresses, strict=True):
            pointer = ctypes.c_void_p(address)
            self._library.set_attribute("MatmulDesc", self._description, attribute, pointer)

    def launch(self, algorithm: bytes, addresses: Sequence[int], stream: int) -> None:
        a, b, d, workspace = map(ctypes.c_void_p, addresses[:4])
        if self._product.bias:
            self._set_bias(addresses[4])
        if self._product.scales:
            self._set_scales(addresses[-2:])
        chosen = (ctypes.c_uint64 * (_ALGORITHM_BYTES // 8)).from_buffer_copy(algorithm)
        needed = int.from_bytes(algorithm[_ALGORITHM_BYTES:], "little")
        self._library.matmul(
            self._description,
            ctypes.byref(self._one),
            a,
            self._a,
            b,
            self._b,
            ctypes.byref(self._zero),
            d,
            self._d,
            d,
            self._d,
            chosen,
            workspace,
            ctypes.c_size_t(needed),
            ctypes.c_void_p(stream),
        )
