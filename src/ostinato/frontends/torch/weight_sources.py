"""PyTorch's tensors as the elements of params, by reference. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ostinato.errors import InputError, UnsupportedOpError
from ostinato.frontends.torch.element_types import COMPLEX, ELEMENT_TYPES
from ostinato.frontends.torch.tensors import array_of
from ostinato.ir.stored import StoredTensor

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.stored import ParamSource

__all__ = ["weight_source"]

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
        return array_of(plain)
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
