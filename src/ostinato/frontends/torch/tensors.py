"""Tensors as arrays and arrays as tensors, on memory in common. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ostinato.dtypes import DType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["array_of", "note_write", "tensor_of"]

#: Types that NumPy lacks, with integers of their size.
_CARRIERS = {
    torch.bfloat16: torch.int16,
    **{
        getattr(torch, name): torch.uint8
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
        if hasattr(torch, name)
    },
}

#: Complex types, which are pairs to the compiler.
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor as a C-contiguous array, on its memory where that is in order.

    Complex numbers become pairs along a last axis.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype in _COMPLEX:
        tensor = torch.view_as_real(tensor)
    tensor = tensor.contiguous()
    carrier = _CARRIERS.get(tensor.dtype)
    array: np.ndarray[Any, Any] = tensor.view(carrier or tensor.dtype).numpy()
    if carrier is None:
        return array
    name = str(tensor.dtype).removeprefix("torch.")
    return array.view(DType.parse(name).numpy)


def tensor_of(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the memory of an array; pairs become complex numbers.

    Args:
        array: C-contiguous.
        dtype: of the tensor.
    """
    if not array.size:  # PyTorch's strides of empty tensors are others than NumPy's
        is_complex = dtype in _COMPLEX
        return torch.empty(array.shape[:-1] if is_complex else array.shape, dtype=dtype)
    carrier = _CARRIERS.get(dtype)
    if carrier is not None:
        size = "int16" if carrier is torch.int16 else "uint8"
        return torch.from_numpy(array.view(size)).view(dtype)
    tensor = torch.from_numpy(array)
    return torch.view_as_complex(tensor) if dtype in _COMPLEX else tensor


def note_write(tensor: torch.Tensor) -> None:
    """Let PyTorch know that the elements of a tensor have changed."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
