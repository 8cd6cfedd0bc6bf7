"""The leaves of a graph, as ops without operands, and the checks on what users pass for them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError
from ostinato.ir.op import Attr, Op
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim

__all__ = ["CONSTANT", "INPUT", "LEAVES", "PARAM", "STATE", "Leaf", "as_numpy", "check_shape"]


class Leaf(Op):
    """A value that no op computes: the graph gives it its type."""

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        raise GraphError(f"{self.name} is a leaf: build it with Graph.{self.name}")

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        raise GraphError(f"{self.name} is a leaf: its value comes from outside the graph")


class Input(Leaf):
    """A tensor given at each run."""

    name = "input"


class Param(Leaf):
    """A weight, written once and used by many runs."""

    name = "param"


class Constant(Leaf):
    """A tensor known while compiling."""

    name = "constant"


class State(Leaf):
    """A tensor that lives from run to run."""

    name = "state"


INPUT, PARAM, CONSTANT, STATE = Input(), Param(), Constant(), State()
LEAVES: dict[str, Leaf] = {leaf.name: leaf for leaf in (INPUT, PARAM, CONSTANT, STATE)}


def check_shape(what: str, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """``shape`` as a tuple of non-negative dims.

    Raises:
        GraphError: it is no sequence of ints and Variables, or a dim is negative.
    """
    if isinstance(shape, int | Expr):
        raise GraphError(f"{what}: a shape is a sequence of dims, got {shape!r}")
    dims: list[Dim] = []
    for dim in shape:
        if isinstance(dim, Expr):
            dims.append(dim)
            continue
        if isinstance(dim, bool) or not hasattr(dim, "__index__"):
            raise GraphError(f"{what}: a dim is an int or a Variable, got {dim!r} in {shape!r}")
        size = operator.index(dim)
        if size < 0:
            raise GraphError(f"{what}: a dim is never negative, got {tuple(shape)}")
        dims.append(size)
    return tuple(dims)


def as_numpy(array: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """Anything with the buffer protocol, ``__array__`` or ``__dlpack__``, as a C-ordered array.

    Raises:
        GraphError: it is none of these, or holds objects that are no numbers.
    """
    try:
        if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
            array = np.from_dlpack(array)
        result = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise GraphError(f"expected an array, got {type(array).__name__}: {error}") from None
    if result.dtype == object:
        raise GraphError(f"expected an array of numbers, got {array!r}")
    if not result.dtype.isnative:
        result = result.astype(result.dtype.newbyteorder("="))
    return np.ascontiguousarray(result).reshape(result.shape)
