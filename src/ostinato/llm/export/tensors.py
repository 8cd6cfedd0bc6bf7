"""Weights as the tensors of GGUF files: the way back of :mod:`ostinato.llm.weights`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.conversion import convert
from ostinato.dtypes import FLOAT32
from ostinato.ops.packed.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.llm.weights import Stored, Weight

__all__ = ["ArrayTensor", "ModelTensor", "file_tensors"]

Array = np.ndarray[Any, Any]


class ModelTensor:
    """A tensor of a file that is to be written, made of the weights that it has.

    Args:
        name: in the file.
        parts: the weights, and the position of each in the tensor.

    Attributes:
        name: in the file.
        sizes: of its elements.
        dtype: of its elements.
    """

    def __init__(self, name: str, parts: Sequence[tuple[Weight, Stored]]) -> None:
        self.name = name
        self._parts = tuple(parts)
        self.sizes = _sizes(*parts[0])
        packed = any(weight.format is not None for weight, _ in parts)
        self.dtype: DType = FLOAT32 if packed or len(self.sizes) == 1 else parts[0][0].source.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.sizes) * self.dtype.itemsize

    def read(self) -> Array:
        """Its elements."""
        whole = np.empty(self.sizes, self.dtype.numpy)
        for weight, place in self._parts:
            _fill(whole, place, convert(_elements(weight), self.dtype))
            weight.source.release()
        return whole


class ArrayTensor:
    """A tensor of a file that is to be written, in memory."""

    def __init__(self, name: str, elements: Array) -> None:
        self.name, self._elements = name, elements
        self.sizes, self.nbytes = elements.shape, elements.nbytes
        self.dtype: DType = FLOAT32

    def read(self) -> Array:
        """Its elements."""
        return self._elements


def file_tensors(
    weights: Mapping[str, Weight], places: Mapping[str, Stored]
) -> dict[str, ModelTensor]:
    """The tensors that have all weights, by name.

    Args:
        weights: by logical name.
        places: where a file has them, by logical name; each is in one tensor.
    """
    parts: dict[str, list[tuple[Weight, Stored]]] = {}
    for name, weight in weights.items():
        (tensor,) = places[name].names
        parts.setdefault(tensor, []).append((weight, places[name]))
    return {name: ModelTensor(name, found) for name, found in parts.items()}


def _elements(weight: Weight) -> Array:
    """The elements of a weight in its own shape."""
    found: Array = weight.source.read()
    if weight.format is not None:
        found = decode(found, weight.format)
        # Packed matrices of experts are [experts, outputs, inputs].
        found = found.swapaxes(1, 2) if found.ndim == 3 else found
    return found


def _sizes(weight: Weight, place: Stored) -> tuple[int, ...]:
    """The sizes of the tensor that has a weight."""
    shape = weight.shape
    shown = (prod(shape[:-1]), shape[-1]) if place.flat else shape
    found = shown if place.rows is None else (place.total, *shown[1:])
    if place.transposed:
        found = (*found[:-2], found[-1], found[-2])
    return found if place.columns is None else (*found[:-1], place.total)


def _fill(whole: Array, place: Stored, elements: Array) -> None:
    """Write the elements of a weight into its part of a tensor."""
    if place.logarithm:
        elements = -np.exp(convert(elements, FLOAT32))
    if place.offset:
        elements = elements - np.float32(place.offset)
    part = whole if place.columns is None else whole[..., place.columns]
    part = np.swapaxes(part, -1, -2) if place.transposed else part
    match place.rows:
        case None:
            part[...] = elements.reshape(part.shape)
        case slice() as rows:
            part[rows] = elements.reshape(part[rows].shape)
        case rows:
            part[rows.indices()] = elements.reshape(rows.count, *part.shape[1:])
