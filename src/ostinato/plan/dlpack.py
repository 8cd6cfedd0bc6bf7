"""DLPack capsules of tensors in device memory, in both directions."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ostinato.dtypes import DType
from ostinato.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["LEGACY_STREAM", "ForeignTensor", "export_tensor", "import_tensor"]

#: The legacy default stream, which a producer makes wait for its work.
LEGACY_STREAM = 1

#: Kinds of elements by DLPack's code and their bits.
_DTYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (6, 8): "bool",
}
_CODES = {name: key for key, name in _DTYPES.items()}

_NAME, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class ForeignTensor(NamedTuple):
    """A tensor of another library.

    Attributes:
        device: the number of its device.
        address: of the first element.
        shape: its shape.
        dtype: NumPy's element type.
        contiguous: whether its elements lie in C order, without gaps.
        owner: keeps the memory alive.
    """

    device: int
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool
    owner: object


class _Owner:
    """A consumed capsule: its memory is given back with the last reference to this."""

    def __init__(self, managed: Any) -> None:
        if managed.deleter:
            weakref.finalize(self, managed.deleter, ctypes.addressof(managed)).atexit = False


def import_tensor(given: Any) -> ForeignTensor:
    """A tensor in CUDA memory, whose producer's work the legacy default stream waits for.

    Raises:
        InputError: it cannot be exported, or has elements of another kind.
    """
    name = type(given).__name__
    try:
        capsule = given.__dlpack__(stream=LEGACY_STREAM)
    except Exception as error:  # as above
        raise InputError(f"a {name} on a GPU could not be exported by DLPack: {error}") from error
    managed = _Managed.from_address(_pointer(capsule, _NAME))
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), _USED)
    owner, tensor = _Owner(managed), managed.tensor
    found = _DTYPES.get((tensor.code, tensor.bits))
    if found is None or tensor.lanes != 1:
        kind = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise InputError(f"a {name} has elements that there is no dtype for: {kind}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return ForeignTensor(
        tensor.device_id,
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        DType.parse(found).numpy,
        strides is None or _is_contiguous(shape, strides),
        owner,
    )


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _pointer(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name))


class _Export:
    """The memory that an exported tensor refers to, as long as its consumer does."""

    def __init__(self, owner: object, shape: tuple[int, ...]) -> None:
        self.owner = owner
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.managed = _Managed()


def _release(address: int) -> None:
    """Drop what an exported tensor refers to."""
    context = _Managed.from_address(address).context
    ctypes.pythonapi.Py_DecRef(ctypes.cast(context, ctypes.py_object))


def _destroy(capsule: int) -> None:
    """Release the tensor of a capsule that was never consumed."""
    api = ctypes.pythonapi
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    if valid(("PyCapsule_IsValid", api))(capsule, _NAME):
        _release(get(("PyCapsule_GetPointer", api))(capsule, _NAME))


#: The same for C, which lasts as long as the process: a capsule may be the last thing to go.
_RELEASE, _DESTROY = _DELETER(_release), _DELETER(_destroy)


def export_tensor(
    owner: object,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
) -> Any:
    """A capsule of a tensor in the memory of a device, which keeps ``owner`` alive.

    Raises:
        BufferError: DLPack has no such elements.
    """
    name = DType.parse(dtype).name
    if name not in _CODES:
        raise BufferError(f"DLPack has no elements of the dtype {name}")
    export = _Export(owner, shape)
    managed, (code, bits) = export.managed, _CODES[name]
    managed.tensor = _Tensor(address, *device, len(shape), code, bits, 1, export.shape, None, 0)
    managed.context, managed.deleter = id(export), _RELEASE
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(export))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(managed), _NAME, ctypes.cast(_DESTROY, ctypes.c_void_p))
