"""Shapes of inputs, from sizes as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, VariableError
from ostinato.runtime.arrays import checked_array, shape_text
from ostinato.variables import symbols

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Signature
    from ostinato.variables import Dim

__all__ = ["given_sizes"]


def given_sizes(
    signature: Signature, sizes: Mapping[str, Any]
) -> tuple[list[tuple[int, ...]], list[Array] | None]:
    """The shapes of all inputs; where contents matter, arrays of these shapes as well.

    Args:
        signature: of the graph.
        sizes: see :meth:`CompiledGraph.warm`.

    Raises:
        InputError: a name is unknown, or a shape does not fit.
        VariableError: a size is missing, or no int.
    """
    dims = {
        alias: dim
        for spec in signature.inputs.values()
        for dim in spec.shape
        for alias in _names(dim, signature.words)
    }
    values: dict[Dim, int] = {}
    by_input: dict[str, Any] = {}
    for key, given in sizes.items():
        if key in signature.inputs and not (key in dims and isinstance(given, int)):
            by_input[key] = given
        elif key not in dims:
            words = {signature.words.get(str(dim), str(dim)) for dim in dims.values()}
            known = ", ".join([*sorted(words), *signature.inputs]) or "none"
            raise InputError(f"there is no size and no input {key!r:.80}; there are {known}")
        elif isinstance(given, bool) or not hasattr(given, "__index__"):
            raise VariableError(f"{key!r} takes an int, got {given!r:.80}")
        else:
            values[dims[key]] = int(given.__index__())
    contents = {
        name: checked_array("input", signature.inputs[name], _array(signature.inputs[name], given))
        for name, given in by_input.items()
        if name in signature.read
    }
    shapes = [
        contents[name].shape
        if name in contents
        else _shape(spec, by_input.get(name), values, signature.words)
        for name, spec in signature.inputs.items()
    ]
    if not signature.read:
        return shapes, None
    if missing := [name for name in signature.read if name not in contents]:
        raise InputError(f"the graph depends on the contents of {', '.join(missing)}: give them")
    pairs = zip(signature.inputs.items(), shapes, strict=True)
    empty = (
        contents.get(name, np.broadcast_to(np.zeros((), spec.dtype.numpy), shape))
        for (name, spec), shape in pairs
    )
    return shapes, list(empty)


def _array(spec: TensorSpec, given: Any) -> Array:
    return np.asarray(given, spec.dtype.numpy)


def _shape(
    spec: TensorSpec, given: Any, values: Mapping[Dim, int], words: Mapping[str, str]
) -> tuple[int, ...]:
    if given is not None:
        fits = isinstance(given, Sequence) and len(given) == len(spec.shape)
        if not fits or any(
            d != g for d, g in zip(spec.shape, given, strict=True) if type(d) is int
        ):
            raise InputError(
                f"input {spec.name!r} has shape {shape_text(spec.shape)}, got {given!r:.80}"
            )
        return tuple(int(size) for size in given)
    missing = [d for d in spec.shape if not isinstance(d, int) and d not in values]
    if missing:
        listed = ", ".join(words.get(str(dim), str(dim)) for dim in dict.fromkeys(missing))
        raise VariableError(f"input {spec.name!r} {shape_text(spec.shape)}: give {listed}")
    return tuple(values.get(dim, 0) if not isinstance(dim, int) else dim for dim in spec.shape)


def _names(dim: Dim, words: Mapping[str, str]) -> set[str]:
    """Names of a dim: the model's name for it, its text, and of a Variable its name."""
    if isinstance(dim, int):
        return set()
    variables = {symbol.name.partition("_by_")[0] for symbol in symbols(dim)}
    return {str(dim), words.get(str(dim), str(dim)), *(variables if len(variables) == 1 else ())}
