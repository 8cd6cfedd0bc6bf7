"""Tensors whose elements are known while a model is imported, and how they become values.

Most of the integer arithmetic in a model computes shapes. It is followed here, at import, so that
none of it is left to run: a :class:`Known` holds either numbers or, where a size is a Variable,
dims.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ostinato.dtypes import INT64, DType
from ostinato.ir.stored import StoredTensor, elements
from ostinato.ir.types import TensorType
from ostinato.records import dataclass
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.ir.graph import Value
    from ostinato.ir.stored import ParamSource
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim

__all__ = [
    "Known",
    "Leaves",
    "Missing",
    "NestedLeaves",
    "OptionalOf",
    "Ratio",
    "SequenceOf",
    "Strings",
    "Tensor",
    "as_known",
    "boxed",
    "known_dims",
]

#: Constants with more elements than this become params: they are weights, whatever wrote them.
_LARGEST_CONSTANT = 4096

#: Fills of more bytes than this, all together, stay broadcast scalars and are not written out.
_MOST_FILLED = 2**31


class Ratio(NamedTuple):
    """A size over a number, among the elements of a float tensor: exporters round it up or down.

    Attributes:
        size: an expression of Variables.
        divisor: a positive number.
    """

    size: Dim
    divisor: int


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor known at import.

    Attributes:
        source: its elements; of dtype ``object`` when some are expressions of Variables, or such
            a :class:`Ratio`.
        dtype: its element type.
        name: the model's name for it.
        weight: whether the model stores it as an initializer.
    """

    source: ParamSource
    dtype: DType
    name: str = ""
    weight: bool = False

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Its elements, read if they are in a file."""
        return elements(self.source)

    @property
    def symbolic(self) -> bool:
        return bool(self.source.dtype == object)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(self.source.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.source.shape)

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.source.shape)

    def dims(self) -> tuple[Dim, ...]:
        """The elements of an integer tensor in order, as dims."""
        return tuple(self.array.reshape(-1).tolist())

    def sizes(self) -> tuple[Dim, ...]:
        """Its elements that are integers or sizes, and the sizes of those that are ratios."""
        items = (item.size if isinstance(item, Ratio) else item for item in self.dims())
        return tuple(item for item in items if isinstance(item, int | Expr))


@dataclass(frozen=True, eq=False)
class Strings:
    """A tensor of strings, known at import; none reaches the graph.

    Attributes:
        array: its elements, as objects.
    """

    array: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(self.array.shape)


@dataclass(frozen=True)
class Missing:
    """A tensor that could not be imported; nodes that read it are skipped.

    Attributes:
        reason: why a reader of it is unsupported by itself; empty when its producer is at fault.
    """

    reason: str = ""


@dataclass(frozen=True, eq=False)
class SequenceOf:
    """A sequence of tensors, whose length is known at import.

    Attributes:
        items: the tensors.
        dtype: the element type of each.
    """

    items: tuple[Value | Known, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class OptionalOf:
    """A tensor or sequence, or nothing; which, is known at import."""

    item: Value | Known | Strings | SequenceOf | None


#: The tensor behind a name in the model: known, or a value of the graph; or several of these.
Tensor: TypeAlias = "Value | Known | Strings | Missing | SequenceOf | OptionalOf"


def as_known(array: Any, name: str = "", dtype: DType | None = None) -> Known:
    """``array`` as a known tensor: plain numbers as soon as no element is symbolic."""
    result = np.asarray(array)
    if result.dtype == object:
        dtype = dtype or INT64
        if not any(isinstance(item, Expr | Ratio) for item in result.reshape(-1)):
            result = result.astype(dtype.numpy)
    return Known(result, dtype or DType.parse(result.dtype), name)


def boxed(items: Iterable[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of dims, built element by element so that NumPy looks into none of them."""
    result = np.empty(shape, dtype=object)
    flat = result.reshape(-1)
    for i, item in enumerate(items):
        flat[i] = item
    return result


def known_dims(dims: Sequence[Dim], dtype: DType = INT64) -> Known:
    """A one-dimensional tensor of dims."""
    return as_known(boxed(dims, (len(dims),)), dtype=dtype)


def _is_weight(known: Known) -> bool:
    """Whether a known tensor becomes a param rather than a constant."""
    stored = known.weight and known.dtype.is_float and known.size > 1
    return stored or known.size > _LARGEST_CONSTANT


class Leaves:
    """Turns known tensors into leaves of a graph, each once.

    Args:
        g: the graph.
        params: whether weights become params; without it everything is a constant.
    """

    def __init__(self, g: Graph, *, params: bool = True) -> None:
        self._g = g
        self._params = params
        self._filled = 0
        self._made: dict[int, tuple[Known, Value]] = {}  # keeps the key's object alive

    def value(self, known: Known) -> Value:
        """The value in the graph that holds ``known``."""
        if id(known) not in self._made:
            self._made[id(known)] = (known, self._make(known))
        return self._made[id(known)][1]

    def _make(self, known: Known) -> Value:
        if known.symbolic:
            return self._symbolic(known)
        large, source = known.size > _LARGEST_CONSTANT, known.source
        if not isinstance(source, StoredTensor) and not any(source.strides):
            if large:
                self._filled += source.size * source.itemsize
            if self._filled > _MOST_FILLED:
                fill = self._g.constant(source.reshape(-1)[:1].reshape(()).copy())
                return self._g.broadcast_to(fill, source.shape)
        if self._params and _is_weight(known):
            name = self._unused(known.name or "weight")
            with self._g.labelled(name):
                return self._g.param(name, known.shape, known.dtype, value=source)
        return self._g.constant(known.array)

    def _symbolic(self, known: Known) -> Value:
        g, items = self._g, known.array.reshape(-1).tolist()
        if all(isinstance(item, int | Expr) for item in items):
            scalars = [g.reshape(g.dim_value(item), (1,)) for item in items]
            return g.cast(g.reshape(g.concat(scalars, axis=0), known.shape), known.dtype)
        scalars = [g.reshape(self._element(item, known.dtype), (1,)) for item in items]
        return g.reshape(g.concat(scalars, axis=0), known.shape)

    def _element(self, item: Any, dtype: DType) -> Value:
        """A size, a ratio or a number, as a scalar of a float tensor."""
        if isinstance(item, Ratio):
            return self._g.divide(self._element(item.size, dtype), item.divisor)
        if isinstance(item, Expr):
            return self._g.cast(self._g.dim_value(item), dtype)
        return self._g.constant(item, dtype)

    def _unused(self, name: str) -> str:
        taken = self._g.inputs.keys() | self._g.params.keys()
        unique, count = name, 2
        while unique in taken:
            unique, count = f"{name}_{count}", count + 1
        return unique


class NestedLeaves(Leaves):
    """Turns known tensors into constants of a nested graph, or into params of the one around.

    Args:
        g: the nested graph.
        outer: the leaves of the graph around.
    """

    def __init__(self, g: NestedGraph, outer: Leaves) -> None:
        super().__init__(g, params=False)
        self._nested = g
        self._outer = outer

    def _make(self, known: Known) -> Value:
        if not known.symbolic and _is_weight(known):
            return self._nested.local(self._outer.value(known))
        return super()._make(known)
