"""The sizes of a model's inputs: fixed, or Variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ostinato.errors import ModelFormatError, VariableError
from ostinato.frontends.onnx.tensors import MAX_RANK
from ostinato.variables import Variable

if TYPE_CHECKING:
    from onnx import TypeProto, ValueInfoProto

    from ostinato.variables import Dim

__all__ = ["DEFAULT_BOUNDS", "DimResolver", "element_type"]

#: The first bounds of a dynamic dim that the caller says nothing about: a run may exceed them.
DEFAULT_BOUNDS = (1, 512)

#: No tensor of a real model has more elements; a file that declares more is damaged.
_MOST_ELEMENTS = 2**47


class DimResolver:
    """Gives each dim of the model's inputs its size.

    Args:
        dims: by the model's name of a dim, or by input name; see :func:`load_onnx`.
        inputs: the model's inputs.

    Raises:
        VariableError: ``dims`` names no dim and no input, or a size makes no sense.

    Attributes:
        open: the Variables that the caller says nothing about, whose bounds are the default.
        words: by the text of a dim, what the model calls it, where that differs.
    """

    def __init__(self, dims: Mapping[str, Any] | None, inputs: Sequence[ValueInfoProto]) -> None:
        given = dict(dims or {})
        params = {
            dim.dim_param
            for value in inputs
            for dim in element_type(value.type).shape.dim
            if dim.dim_param
        }
        names = {value.name for value in inputs}
        unknown = sorted(str(key) for key in given if key not in params | names)
        if unknown:
            raise VariableError(
                f"dims: the model has no dim and no input called {', '.join(unknown)}; "
                f"its dims are {sorted(params)}, its inputs {sorted(names)}"
            )
        self._by_param = {
            key: value
            for key, value in given.items()
            if key in params and not isinstance(value, Mapping)
        }
        self._by_input = {key: v for key, v in given.items() if key not in self._by_param}
        self._taken = _variable_names(given.values())
        self._sizes: dict[str, Dim] = {}
        self.open: set[str] = set()
        self.words: dict[str, str] = {}

    def shape(self, name: str, type_: TypeProto.Tensor) -> tuple[Dim, ...]:
        """The shape of input ``name``.

        Raises:
            ModelFormatError: the model declares no rank, an impossible one, or an impossible dim.
            VariableError: the caller's size contradicts the model's.
        """
        return self._shape(name, type_, self._by_input.get(name))

    def is_absent(self, name: str) -> bool:
        """Whether the caller says of an optional input that it is empty, by ``None``."""
        return name in self._by_input and self._by_input[name] is None

    def shapes(self, name: str, type_: TypeProto.Tensor) -> list[tuple[Dim, ...]] | None:
        """The shape of each tensor of the sequence ``name``; ``None`` if the caller gives none.

        Raises:
            VariableError: the caller gives no list of shapes, or a size contradicts the model's.
        """
        chosen = self._by_input.get(name)
        if chosen is None:
            return None
        if not isinstance(chosen, Sequence) or isinstance(chosen, str):
            raise VariableError(
                f"dims: {name!r} is a sequence; give a list with the shape of each tensor, got "
                f"{chosen!r}"
            )
        return [self._shape(f"{name}[{i}]", type_, one) for i, one in enumerate(chosen)]

    def _shape(self, name: str, type_: TypeProto.Tensor, chosen: Any) -> tuple[Dim, ...]:
        if not type_.HasField("shape"):
            if not isinstance(chosen, Sequence) or isinstance(chosen, str):
                raise ModelFormatError(
                    f"input {name!r} has no declared rank; pass dims={{{name!r}: (...)}}"
                )
            return tuple(self._unnamed(name, axis, size) for axis, size in enumerate(chosen))
        rank = len(type_.shape.dim)
        if rank > MAX_RANK:
            raise ModelFormatError(
                f"input {name!r} has {rank} dims; at most {MAX_RANK} are supported"
            )
        overrides = _per_axis(name, chosen, rank)
        shape = tuple(
            self._dim(name, axis, dim, overrides.get(axis))
            for axis, dim in enumerate(type_.shape.dim)
        )
        known = 1
        for size in shape:
            known *= size if isinstance(size, int) else 1
        if known > _MOST_ELEMENTS:
            raise ModelFormatError(f"input {name!r} is impossibly large: {list(shape)}")
        return shape

    def _dim(self, name: str, axis: int, dim: Any, override: Any) -> Dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            size = int(dim.dim_value)
            if override is not None and override != size:
                raise VariableError(f"input {name!r}, dim {axis} is {size}, not {override!r}")
            return size
        if override is not None:
            return self._unnamed(name, axis, override)
        if dim.dim_param.strip("?*- ") in ("", "None", "1"):  # placeholders of exporters, not names
            return self._unnamed(name, axis, self._by_param.get(dim.dim_param))
        if dim.dim_param not in self._sizes:
            given = self._by_param.get(dim.dim_param)
            self._sizes[dim.dim_param] = self._size(dim.dim_param, given)
        return self._sizes[dim.dim_param]

    def _unnamed(self, name: str, axis: int, given: Any) -> Dim:
        return self._size(f"{name}_dim{axis}", given, f"dim {axis} of {name!r}")

    def _size(self, name: str, given: Any, words: str = "") -> Dim:
        """A dim from what the caller gave: an int, a Variable, bounds, or ``None``."""
        if isinstance(given, Variable):
            return given
        bounds_ = DEFAULT_BOUNDS if given is None else given
        if isinstance(bounds_, Sequence) and not isinstance(bounds_, str) and len(bounds_) == 2:
            variable = Variable(self._unique(name), *(_integer(name, b) for b in bounds_))
            if given is None:
                self.open.add(variable.name)
            if (words or name) != variable.name:
                self.words[variable.name] = words or name
            return variable
        size = _integer(name, given)
        if size < 0:
            raise VariableError(f"dims: {name!r} cannot be {size}")
        return size

    def _unique(self, name: str) -> str:
        identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = identifier if identifier.isidentifier() else f"_{identifier}"
        unique, count = base, 2
        while unique in self._taken:
            unique, count = f"{base}_{count}", count + 1
        self._taken.add(unique)
        return unique


def element_type(type_: TypeProto) -> TypeProto.Tensor:
    """The type of a tensor, or of the tensors in a sequence or optional."""
    while (kind := type_.WhichOneof("value")) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    return type_.tensor_type


def _per_axis(name: str, chosen: Any, rank: int) -> dict[int, Any]:
    """The caller's choices for one input, by axis counted from the front."""
    if chosen is None:
        return {}
    if isinstance(chosen, Mapping):
        axes = {_integer(name, axis): size for axis, size in chosen.items()}
        if any(not -rank <= axis < rank for axis in axes):
            raise VariableError(f"dims: input {name!r} has {rank} dims, got axes {list(axes)}")
        return {axis % rank: size for axis, size in axes.items()}
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        if len(chosen) != rank:
            raise VariableError(f"dims: input {name!r} has {rank} dims, got {chosen!r}")
        return dict(enumerate(chosen))
    raise VariableError(
        f"dims: for input {name!r} give a shape or a mapping from axis to size, got {chosen!r}"
    )


def _variable_names(values: Any) -> set[str]:
    """The names of every Variable inside the caller's ``dims``."""
    names: set[str] = set()
    for value in values:
        if isinstance(value, Variable):
            names.add(value.name)
        elif isinstance(value, Mapping):
            names |= _variable_names(value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            names |= _variable_names(value)
    return names


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise VariableError(
            f"dims: the size of {name!r} is an int, a Variable or a pair of bounds, got {value!r}"
        )
    return int(value.__index__())
