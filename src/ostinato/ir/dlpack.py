"""Arrays of other libraries through DLPack, bfloat16 included."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["from_dlpack"]

#: DLPack's codes for kinds of elements.
_UNSIGNED, _BFLOAT = 1, 4

#: By a capsule's name, where in it the description of the tensor begins. A capsule with a version
#: also says whether the memory may be written; NumPy takes the other kind for read-only.
_DESCRIPTION = {b"dltensor_versioned": 32, b"dltensor": 0}


class _Tensor(ctypes.Structure):
    """``DLTensor`` of the DLPack standard, as far as it matters here."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Export:
    """A capsule that is not consumed yet, in the form that ``numpy.from_dlpack`` takes."""

    def __init__(self, capsule: Any, device: Any) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **wishes: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._device


def from_dlpack(given: Any) -> np.ndarray[Any, Any]:
    """The elements of ``given``, which has ``__dlpack__``, in its own memory.

    Raises:
        BufferError, or whatever ``given`` raises: they are not in memory that the processor reads,
            or of a kind that NumPy does not have.
    """
    if not _is_bfloat16(given):
        return np.from_dlpack(given)
    import ml_dtypes

    # NumPy has no bfloat16 of its own, so the capsule is changed to say 16-bit words. A capsule
    # that is not consumed yet, and the description in it, belong to its consumer.
    try:
        capsule = given.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than the first version
        capsule = given.__dlpack__()
    tensor = _Tensor.from_address(_description_in(capsule))
    if (tensor.code, tensor.bits, tensor.lanes) != (_BFLOAT, 16, 1):
        raise BufferError(f"{type(given).__name__} exports something else than its dtype says")
    tensor.code = _UNSIGNED
    words = np.from_dlpack(_Export(capsule, given.__dlpack_device__()))
    return words.view(ml_dtypes.bfloat16)


def _is_bfloat16(given: Any) -> bool:
    """By its name: the capsule says so, too, but can be exported only once."""
    return str(getattr(given, "dtype", "")).endswith("bfloat16")


def _description_in(capsule: Any) -> int:
    """The address of the ``DLTensor`` in a capsule."""
    api = ctypes.pythonapi
    arguments = (ctypes.py_object, ctypes.c_char_p)
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)(("PyCapsule_IsValid", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, *arguments)(("PyCapsule_GetPointer", api))
    for name, offset in _DESCRIPTION.items():
        if is_valid(capsule, name):
            return int(pointer(capsule, name)) + offset
    raise BufferError(f"a {type(capsule).__name__} is no DLPack capsule")
