"""A workload: sizes, seeded weights and inputs, the work that it takes.

Every runtime builds the same function of the same arrays; matrices are ``[in, out]``, convolution
kernels ``[out, in, h, w]``, everything is float32.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Array", "Shape", "Weight", "Workload", "bias", "gain", "kernel", "matrix", "uniform"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def uniform(name: str, shape: Shape) -> Array:
    """Numbers from -1 to 1 that depend on the name alone: every process draws the same."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.random(shape, np.float32)
    values *= 2
    values -= 1
    return values


@dataclass(frozen=True)
class Weight:
    """The distribution of a weight: uniform, ``center ± spread``."""

    shape: Shape
    spread: float
    center: float = 0.0

    def draw(self, name: str) -> Array:
        values = uniform(name, self.shape)
        values *= self.spread
        values += self.center
        return values


def matrix(*shape: int, gain: float = 1.0) -> Weight:
    """``[..., in, out]`` that keeps the size of what it multiplies, up to ``gain``."""
    return Weight(shape, gain * math.sqrt(3 / shape[-2]))


def kernel(out: int, into: int, size: int) -> Weight:
    """A convolution's weights, for values that have been through a relu."""
    return Weight((out, into, size, size), math.sqrt(6 / (into * size * size)))


def bias(size: int) -> Weight:
    return Weight((size,), 0.1)


def gain(size: int, center: float = 1.0) -> Weight:
    return Weight((size,), 0.1 * center, center)


class Workload:
    """A model of fixed sizes.

    Attributes:
        output_shapes: of its results, in order.
        flops: of its matrix products and convolutions; what else there is hardly counts.
        memory_written: bytes that a run must write.
        tolerance: how far a result may be off, relative to the largest element.
    """

    output_shapes: tuple[Shape, ...]
    flops: int
    tolerance = 1e-3

    def weight_specs(self) -> dict[str, Weight]:
        raise NotImplementedError

    def input_shapes(self) -> dict[str, Shape]:
        raise NotImplementedError

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Weights by name. Drawn once; a caller that rearranges them makes copies."""
        return {name: spec.draw(name) for name, spec in self.weight_specs().items()}

    def forget(self) -> None:
        """Drop the weights: a runtime that is prepared has its own."""
        self.__dict__.pop("weights", None)

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """Inputs by name."""
        return {name: uniform(name, shape) for name, shape in self.input_shapes().items()}

    @property
    def memory_read(self) -> int:
        """Bytes that a run must read: weights and inputs, each once."""
        shapes = [spec.shape for spec in self.weight_specs().values()]
        return sum(4 * math.prod(s) for s in (*shapes, *self.input_shapes().values()))

    @property
    def memory_written(self) -> int:
        """Bytes that a run must write: the outputs, once."""
        return sum(4 * math.prod(s) for s in self.output_shapes)
