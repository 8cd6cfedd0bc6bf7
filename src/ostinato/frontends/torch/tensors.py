"""Tensors as arrays and arrays as tensors, on memory in common. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ostinato.errors import InputError, UnsupportedOpError
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES
from ostinato.ir.stored import StoredTensor

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.stored import ParamSource

__all__ = ["array_of", "as_array", "tensor_of", "torch_dtype", "weight_source"]

Array = np.ndarray[Any, Any]


def weight_source(name: str, tensor: torch.Tensor) -> ParamSource:
    """The elements of a weight: its own memory where that is contiguous, else read when needed.

    Args:
        name: for messages.
        tensor: the weight; a complex one is read as its parts.

    Raises:
        InputError: it has no elements, as on the device ``meta``.
        UnsupportedOpError: it is no dense tensor, or of a type without an equivalent.
    """
    if tensor.is_meta or tensor.layout != torch.strided or type(tensor).__name__ == "FakeTensor":
        if tensor.layout != torch.strided:
            raise UnsupportedOpError(f"weight {name!r} is no dense tensor but {tensor.layout}")
        raise InputError(f"weight {name!r} is on the device 'meta': it has no elements; load it")
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized or kind not in {**ELEMENT_TYPES, **COMPLEX}:
        raise UnsupportedOpError(f"weight {name!r}: {tensor.dtype} has no equivalent")
    plain = tensor.detach()
    if type(plain) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedOpError(f"weight {name!r} is a {type(plain).__name__}, no plain tensor")
    dense = plain.device.type == "cpu" and plain.is_contiguous()
    if dense and not plain.is_conj() and not plain.is_neg():
        return as_array(plain)
    return _TorchWeight(plain)


class _TorchWeight(StoredTensor):
    """A weight whose elements are brought into order, or onto the host, at each use."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        kind = str(tensor.dtype).removeprefix("torch.")
        self.shape = (*tensor.shape, 2) if kind in COMPLEX else tuple(tensor.shape)
        self.dtype: DType = COMPLEX.get(kind) or ELEMENT_TYPES[kind]

    def read(self) -> Array:
        return array_of(self._tensor.cpu())


def as_array(tensor: torch.Tensor) -> Array:
    """The elements of a dense tensor on the host, in its own memory; complex ones as their parts.

    The tensor requires no gradient.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind in COMPLEX:
        return as_array(torch.view_as_real(tensor))
    if kind == "bfloat16":
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(ELEMENT_TYPES[kind].numpy)
    array: Array = tensor.numpy()
    return array


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a tensor on the host as a C-contiguous array, complex ones as their parts.

    It shares the tensor's memory where that is in order.
    """
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return as_array(plain.contiguous())


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the memory of an array; pairs become complex numbers.

    Args:
        array: C-contiguous.
        dtype: of the tensor.
    """
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    tensor = torch.from_numpy(array)
    return torch.view_as_complex(tensor) if dtype.is_complex else tensor


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's dtype of the same name."""
    return getattr(torch, dtype.name)
