"""Reading of a model's messages into a graph."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.dims import DimResolver
from ostinato.frontends.onnx.importer import Importer
from ostinato.frontends.onnx.known import Known, Strings
from ostinato.frontends.onnx.source import ModelSource, open_model
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, STRING, element_name
from ostinato.ir.types import TensorType
from ostinato.ops.builder import Graph
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from onnx import ValueInfoProto

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.file_tensors import PartedFile
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.variables import Dim

__all__ = ["ReadModel", "input_types", "read_model"]


@dataclass(frozen=True)
class ReadModel:
    """A model that was read.

    Attributes:
        graph: its nodes.
        source: the messages that it was read from.
        strings: the outputs that are strings, by name.
    """

    graph: Graph
    source: ModelSource
    strings: dict[str, np.ndarray[Any, Any]]


def read_model(
    source: Any,
    *,
    dims: Mapping[str, Any] | None,
    constants: Mapping[str, Any],
    name: str | None,
    base_dir: Any,
    parted: PartedFile | None,
) -> ReadModel:
    """Read the graph of a model.

    Args:
        source, dims, constants, name, base_dir: see :func:`ostinato.load_onnx`.
        parted: the file, where it is open already.
    """
    with _blaming_the_model():
        model = open_model(source, base_dir, parted)
        graph = Graph(name or model.name)
        strings = Importer(model, graph).run(_inputs(model, graph, dims, dict(constants)))
        return ReadModel(graph, model, {name: texts.array for name, texts in strings.items()})


def input_types(source: Any, *, dims: Mapping[str, Any] | None = None) -> dict[str, TensorType]:
    """The type of each input that ``load_onnx`` would declare, without converting the nodes.

    Inputs that are fixed with ``constants=`` are among them.

    Raises:
        ModelFormatError, UnsupportedOpError, VariableError: as ``load_onnx``.
    """
    with _blaming_the_model():
        return _types(open_model(source), dims)


@contextmanager
def _blaming_the_model() -> Iterator[None]:
    """Turn errors that no check foresaw, such as of a name that is no valid text, into ours."""
    try:
        yield
    except OstinatoError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"the model is malformed: {error!r}") from error


def _inputs(
    model: ModelSource, g: Graph, dims: Mapping[str, Any] | None, constants: dict[str, Any]
) -> dict[str, Tensor]:
    """The model's inputs: inputs of ``g``, or known tensors."""
    strings = _string_inputs(model)
    if missing := strings - constants.keys():
        error = UnsupportedOpError(
            f"inputs {sorted(missing)} have string elements; give their values with constants="
        )
        error.inputs = frozenset(missing)
        raise error
    types = _types(model, dims, strings)
    for given in constants:
        if given not in types and given not in strings:
            names = [*types, *strings]
            raise InputError(f"constants: the model has no input {given!r}; it has {names}")
    texts: dict[str, Tensor] = {
        name: Strings(np.asarray(constants[name], object)) for name in strings
    }
    return texts | {
        name: _fixed(name, constants[name], type_.dtype, type_.shape)
        if name in constants
        else g.input(name, type_.shape, type_.dtype)
        for name, type_ in types.items()
    }


def _string_inputs(model: ModelSource) -> set[str]:
    return {
        value.name
        for value in model.proto.graph.input
        if value.type.tensor_type.elem_type == STRING
    }


def _types(
    model: ModelSource, dims: Mapping[str, Any] | None, left_out: Collection[str] = ()
) -> dict[str, TensorType]:
    """The type of each input that has no default value and is not left out."""
    proto = model.proto.graph
    defaults = {t.name for t in proto.initializer} | {
        t.values.name for t in proto.sparse_initializer
    }
    declared = [value for value in proto.input if value.name not in defaults]
    names = [value.name for value in declared]
    if len(set(names)) != len(names):
        raise ModelFormatError(f"the model lists an input twice: {names}")
    resolver = DimResolver(dims, declared)
    return {
        value.name: TensorType(_dtype(value), resolver.shape(value.name, value.type.tensor_type))
        for value in declared
        if value.name not in left_out
    }


def _dtype(value: ValueInfoProto) -> DType:
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise ModelFormatError(f"input {value.name!r} has no type")
    if kind != "tensor_type":
        raise UnsupportedOpError(
            f"input {value.name!r} is no tensor (a {kind}); only tensors are supported"
        )
    number = value.type.tensor_type.elem_type
    if number not in ELEMENT_TYPES:
        raise UnsupportedOpError(f"input {value.name!r} has {element_name(number)} elements")
    return ELEMENT_TYPES[number]


def _fixed(name: str, given: Any, dtype: DType, shape: tuple[Dim, ...]) -> Known:
    """A known tensor in place of an input."""
    array = np.asarray(given)
    if array.dtype == object or array.ndim not in (0, len(shape)):
        raise InputError(f"constants: {name!r} has shape {list(shape)}, got {given!r}")
    sizes = [
        dim if isinstance(dim, int) else (array.shape[i] if array.ndim else 1)
        for i, dim in enumerate(shape)
    ]
    try:
        return Known(np.broadcast_to(array.astype(dtype.numpy), sizes), dtype, name)
    except ValueError:
        raise InputError(
            f"constants: {name!r} has shape {list(shape)}, got {array.shape}"
        ) from None
