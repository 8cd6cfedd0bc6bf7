"""Random operands for one graph: what recipes draw from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.ir.graph import Value

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS
ANY = (*NUMBERS, "bool")

#: Sizes that sit on the edges of vectors and blocks, and those in between.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 33, 48, 49)


class Draw:
    """Random operands for one graph; ``arrays`` holds the value of every input.

    Instead of a graph it may be whatever else has the methods of the vocabulary.
    """

    def __init__(self, graph: Any, rng: np.random.Generator, *, reuse: float = 0.0) -> None:
        self.g = graph
        self.rng = rng
        self.reuse = reuse
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.pool: list[Value] = []

    # -- choices ---------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        """Within ``low..high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self) -> int:
        return 0 if self.chance(0.02) else int(self.choice(SIZES))

    def shape(self, low: int, high: int) -> tuple[int, ...]:
        """A shape of ``low`` to ``high`` dims, of a few thousand elements at most."""
        sizes = [self.size() for _ in range(self.integer(low, high))]
        while np.prod(sizes, dtype=float) > 4000:
            sizes[int(np.argmax(sizes))] //= 2
        return tuple(max(s, 0) for s in sizes)

    def axis(self, x: Value) -> int:
        return self.integer(-x.ndim, x.ndim - 1)

    # -- operands --------------------------------------------------------------------------------

    def tensor(self, dtype: str, low: int = 0, high: int = 4, *, nonempty: bool = False) -> Value:
        """A value of any shape of ``low`` to ``high`` dims."""
        known = [
            v
            for v in self.pool
            if v.dtype.name == dtype and low <= v.ndim <= high and not (nonempty and 0 in v.shape)
        ]
        if known and self.chance(self.reuse):
            return self.choice(known)
        shape = self.shape(low, high)
        return self.of(tuple(max(s, 1) for s in shape) if nonempty else shape, dtype)

    def of(self, shape: Sequence[Any], dtype: str, low: float = -3, high: float = 3) -> Value:
        """A fresh input of a given shape, with elements within ``low..high``."""
        parsed = DType.parse(dtype)
        sizes = tuple(int(s) for s in shape)
        if parsed.is_bool:
            array = self.rng.random(sizes) < 0.5
        elif parsed.is_integer:
            least = 0 if not parsed.is_signed else int(low)
            array = self.rng.integers(least, int(high) + 1, sizes)
        else:
            array = self.rng.uniform(low, high, sizes)
        return self.holding(np.asarray(array).astype(parsed.numpy))

    def holding(self, array: np.ndarray[Any, Any]) -> Value:
        """A fresh input with exactly these elements."""
        name = f"x{len(self.arrays)}"
        self.arrays[name] = array
        return self.g.input(name, array.shape, array.dtype)

    def ids(self, shape: Sequence[Any], size: Any, *, beyond: bool = True) -> Value:
        """Indices into an axis of ``size``, some counted from the end, a few out of range."""
        reach = int(size) + (2 if beyond else 0)
        dtype = self.choice(("int64", "int32"))
        array = self.rng.integers(-reach, max(reach, 1), tuple(int(s) for s in shape))
        return self.holding(array.astype(dtype))

    def like(self, x: Value) -> Value:
        """An operand that broadcasts with ``x``: of its shape, or with some dims left out or 1."""
        shape = list(x.shape)
        if self.chance():
            shape = shape[self.integer(0, len(shape)) :]
            shape = [1 if self.chance(0.3) else s for s in shape]
        return self.of(shape, x.dtype.name)


Recipe = Callable[[Draw, str], "Value | Sequence[Value]"]
