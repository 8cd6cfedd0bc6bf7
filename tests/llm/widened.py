"""Checkpoints whose packed weights are widened to float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.dtypes import FLOAT32
from ostinato.ir.stored import StoredTensor
from ostinato.llm.checkpoints import Checkpoint
from ostinato.llm.weights import Weight
from ostinato.ops.packed.decoding import decode
from ostinato.records import replace

__all__ = ["elements_of", "widened"]

Array = np.ndarray[Any, Any]


def elements_of(weight: Weight) -> Array:
    """The elements of a weight, in float32."""
    found = weight.source.read()
    if weight.format is None:
        return found.astype(np.float32)
    elements = decode(found, weight.format)
    return np.ascontiguousarray(elements.swapaxes(1, 2)) if weight.summed == -2 else elements


class _Widened(StoredTensor):
    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self.shape, self.dtype = weight.shape, FLOAT32

    def read(self) -> Array:
        return elements_of(self._weight)


def widened(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with float32 weights."""
    weights = {
        name: replace(weight, source=_Widened(weight), format=None)
        for name, weight in checkpoint.weights.items()
    }
    return replace(checkpoint, weights=weights)
