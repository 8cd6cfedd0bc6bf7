"""Arrays from users: what is accepted, and what is checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError, InputError
from ostinato.ir.binding import check_values, solve_dims
from ostinato.ir.leaves import as_numpy
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim, Symbol

__all__ = ["TensorSpec", "bind_variables", "checked", "checked_mapping", "live_shape"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """An input, output or param of a compiled graph: its name, shape and dtype."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def checked_mapping(kind: str, given: object, specs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
    """``given`` as a mapping whose names are known.

    Raises:
        InputError: it is no mapping, or a name is unknown.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{kind}s are given as a mapping of names to arrays, got {given!r:.80}")
    for name in given:
        if name not in specs:
            known = ", ".join(map(repr, specs)) or "none"
            raise InputError(f"unknown {kind} {name!r}; the graph has {known}")
    return given


def checked(kind: str, spec: TensorSpec, given: object, *, cast: bool) -> Array:
    """``given`` as a C-contiguous array of the declared dtype and rank and fixed sizes.

    Raises:
        InputError: it is no array, or its dtype or shape differs.
    """
    try:
        array = as_numpy(given)
    except GraphError as error:
        raise InputError(f"{kind} {spec.name!r}: {error}") from None
    wanted = spec.dtype.numpy
    if array.dtype != wanted:
        if not cast:
            raise InputError(
                f"{kind} {spec.name!r} is {spec.dtype}, got {array.dtype}; cast the array, or "
                "compile with CompileOptions(cast_inputs=True)"
            )
        array = array.astype(wanted)
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(dim, int) or dim == size
        for dim, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{kind} {spec.name!r} has shape {_shown(spec)}, got {array.shape}")
    return array


def bind_variables(
    variables: Mapping[str, Symbol], specs: Sequence[TensorSpec], arrays: Sequence[Array]
) -> tuple[int, ...]:
    """The Variables' values that the shapes of the inputs give, in order.

    Raises:
        InputError: a size is no possible value of its expression.
        VariableError: a value is out of bounds, two inputs disagree, or nothing gives it.
    """
    if not variables:
        return ()
    shapes = {s.name: (s.shape, a.shape) for s, a in zip(specs, arrays, strict=True)}
    values = solve_dims(shapes, {})
    check_values(variables, values)
    return tuple(values[name] for name in variables)


def live_shape(shape: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    """``shape`` with the Variables' values put in."""
    return tuple(dim if isinstance(dim, int) else evaluate(dim, values) for dim in shape)


def _shown(spec: TensorSpec) -> str:
    return f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
