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

__all__ = [
    "CONSTANT",
    "INPUT",
    "LEAVES",
    "PARAM",
    "STATE",
    "Leaf",
    "as_array",
    "as_numpy",
    "check_shape",
    "is_inout",
]


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
    """A tensor that lives from run to run: with an initial value, or in memory of the caller's."""

    name = "state"


INPUT, PARAM, CONSTANT, STATE = Input(), Param(), Constant(), State()
LEAVES: dict[str, Leaf] = {leaf.name: leaf for leaf in (INPUT, PARAM, CONSTANT, STATE)}


def is_inout(node: Any) -> bool:
    """Whether a node is a state in the memory of an array that each run is given."""
    return node.op is STATE and node.attrs["init"] is None


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


def as_array(given: Any) -> np.ndarray[Any, Any]:
    """Anything with the buffer protocol, ``__array__`` or ``__dlpack__``, as an array.

    It shares the memory of ``given`` where that has any; numbers and lists of them are copied.

    Raises:
        GraphError: it is none of these, or holds objects that are no numbers.
    """
    if type(given) is np.ndarray and given.dtype != object:
        return given
    try:
        if isinstance(given, bytes):  # NumPy would take it for text
            return np.frombuffer(given, np.uint8)
        if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__"):
            from ostinato.ir.dlpack import from_dlpack

            given = from_dlpack(given)
        array = np.asarray(given)
    except Exception as error:  # what a foreign object raises is its own choice
        raise GraphError(f"expected an array, got {type(given).__name__}: {error}") from error
    if array.dtype == object:
        raise GraphError(f"expected an array of numbers, got {type(given).__name__}")
    return array


def as_numpy(given: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """Convert anything that :func:`as_array` takes to a C-ordered array in native byte order.

    Raises:
        GraphError: as :func:`as_array`, or the elements do not convert to ``dtype``.
    """
    array = as_array(given)
    wanted = array.dtype.newbyteorder("=") if dtype is None else dtype.numpy
    try:
        return np.ascontiguousarray(array, wanted).reshape(array.shape)
    except (TypeError, ValueError) as error:
        raise GraphError(f"expected {wanted} elements, got {array.dtype}: {error}") from None
