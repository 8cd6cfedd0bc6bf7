"""Inputs and outputs of a model that are sequences or optionals.

A graph has tensors alone: the tensors of a sequence ``x`` are its inputs or outputs ``x[0]``,
``x[1]``, …, and an optional that is empty has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ostinato.errors import InputError, UnsupportedOpError
from ostinato.frontends.onnx.dims import element_type
from ostinato.frontends.onnx.known import Known, Missing, OptionalOf, SequenceOf, Strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from onnx import TypeProto

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.dims import DimResolver
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "KINDS",
    "LiveInput",
    "Structure",
    "filled",
    "fixed_input",
    "flattened",
    "live_input",
    "tensors_of",
    "value_of",
]

#: The kinds of types that are no tensors, and what they are called.
KINDS = {"sequence_type": "a sequence", "optional_type": "an optional"}


#: A sequence or optional with names of inputs in place of the tensors.
Structure: TypeAlias = "SequenceOf | OptionalOf"


class LiveInput(NamedTuple):
    """An input that each run gives.

    Attributes:
        structure: its form, with names in place of tensors.
        shapes: by these names.
    """

    structure: Structure
    shapes: dict[str, tuple[Dim, ...]]


def live_input(name: str, type_: TypeProto, dtype: DType, resolver: DimResolver) -> LiveInput:
    """The tensors of an input that each run gives.

    Args:
        name, type_: of the input.
        dtype: the element type of its tensors.
        resolver: knows the shapes that the caller gives.

    Raises:
        UnsupportedOpError: the length of a sequence is not given.
    """
    inner = type_.optional_type.elem_type if type_.HasField("optional_type") else type_
    is_optional = inner is not type_
    if is_optional and resolver.is_absent(name):
        return LiveInput(OptionalOf(None), {})
    item: Any = name
    if inner.HasField("sequence_type"):
        listed = resolver.shapes(name, element_type(type_))
        if listed is None:
            error = UnsupportedOpError(
                f"input {name!r} is a sequence: give the shape of each of its tensors, "
                f"dims={{{name!r}: [(2, 3), ...]}}"
            )
            error.inputs = frozenset({name})
            raise error
        shapes = {f"{name}[{i}]": shape for i, shape in enumerate(listed)}
        names: Any = tuple(shapes)
        item = SequenceOf(names, dtype)
    else:
        shapes = {name: resolver.shape(name, element_type(type_))}
    return LiveInput(OptionalOf(item) if is_optional else item, shapes)


def filled(structure: Structure, tensors: Mapping[str, Value | Known]) -> SequenceOf | OptionalOf:
    """A sequence or optional with tensors in place of their names."""
    if isinstance(structure, SequenceOf):
        items: Any = structure.items
        return SequenceOf(tuple(tensors[name] for name in items), structure.dtype)
    item: Any = structure.item
    if isinstance(item, str):
        return OptionalOf(tensors[item])
    if item is None:
        return structure
    inside = filled(item, tensors)
    assert isinstance(inside, SequenceOf)
    return OptionalOf(inside)


def fixed_input(
    name: str, type_: TypeProto, given: Any, dtype: DType, known: Callable[[str, Any], Known]
) -> SequenceOf | OptionalOf:
    """An input that is fixed with ``constants=``: a list of arrays, or ``None`` for no element.

    Args:
        name, type_: of the input.
        given: the caller's.
        dtype: the element type of its tensors.
        known: makes an array a known tensor.

    Raises:
        InputError: the value is of another kind.
    """
    if type_.HasField("optional_type"):
        if given is None:
            return OptionalOf(None)
        inner = type_.optional_type.elem_type
        if inner.HasField("sequence_type"):
            item: Known | SequenceOf = _fixed_sequence(name, given, dtype, known)
        else:
            item = known(name, given)
        return OptionalOf(item)
    return _fixed_sequence(name, given, dtype, known)


def _fixed_sequence(
    name: str, given: Any, dtype: DType, known: Callable[[str, Any], Known]
) -> SequenceOf:
    if not isinstance(given, list | tuple):
        raise InputError(f"constants: {name!r} is a sequence, expected a list, got {given!r:.60}")
    return SequenceOf(tuple(known(f"{name}[{i}]", a) for i, a in enumerate(given)), dtype)


def flattened(name: str, tensor: Tensor) -> Iterator[tuple[str, Value | Known | Strings | Missing]]:
    """The tensors of an output, by name."""
    if isinstance(tensor, OptionalOf):
        if tensor.item is not None:
            yield from flattened(name, tensor.item)
    elif isinstance(tensor, SequenceOf):
        for position, item in enumerate(tensor.items):
            yield f"{name}[{position}]", item
    else:
        yield name, tensor


def tensors_of(name: str, given: Any) -> dict[str, Any]:
    """The arrays of an input of a run, by the names of the graph's inputs."""
    if given is None:
        return {}
    if isinstance(given, list):
        return {f"{name}[{i}]": array for i, array in enumerate(given)}
    return {name: given}


def value_of(name: str, type_: TypeProto, results: Mapping[str, Any]) -> Any:
    """An output of a run: an array, a list of them, or ``None`` for an empty optional.

    Args:
        name, type_: of the output.
        results: by the names of the graph's outputs.
    """
    inner = type_.optional_type.elem_type if type_.HasField("optional_type") else type_
    if inner.HasField("sequence_type"):
        found: list[Any] = []
        while (item := f"{name}[{len(found)}]") in results:
            found.append(results[item])
        return found
    return results.get(name) if inner is not type_ else results[name]
