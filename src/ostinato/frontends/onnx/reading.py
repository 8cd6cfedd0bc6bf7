"""Reading of a model's messages into a graph."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.dims import DimResolver, element_type
from ostinato.frontends.onnx.importer import Importer
from ostinato.frontends.onnx.known import Known, Strings
from ostinato.frontends.onnx.source import ModelSource, open_model
from ostinato.frontends.onnx.structured import KINDS, fixed_input, live_input
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, STRING, element_name
from ostinato.ir.types import TensorType
from ostinato.ops.builder import Graph
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    declared, resolver = _declared(model, dims)
    names = [value.name for value in declared]
    for given in constants:
        if given not in names:
            raise InputError(f"constants: the model has no input {given!r}; it has {names}")
    strings = {value.name for value in declared if _has_strings(value)}
    if missing := strings - constants.keys():
        error = UnsupportedOpError(
            f"inputs {sorted(missing)} have string elements; give their values with constants="
        )
        error.inputs = frozenset(missing)
        raise error
    return {value.name: _input(value, g, resolver, constants) for value in declared}


def _has_strings(value: ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == STRING)


def _input(
    value: ValueInfoProto, g: Graph, resolver: DimResolver, constants: Mapping[str, Any]
) -> Tensor:
    name = value.name
    if _has_strings(value):
        return Strings(np.asarray(constants[name], object))
    dtype, tensor_type = _dtype(value), element_type(value.type)
    if value.type.WhichOneof("value") not in KINDS:
        shape = resolver.shape(name, tensor_type)
        if name in constants:
            return _fixed(name, constants[name], dtype, shape)
        return g.input(name, shape, dtype)
    if name not in constants:
        return live_input(
            name, value.type, dtype, resolver, lambda leaf, shape: g.input(leaf, shape, dtype)
        )

    def known(leaf: str, given: Any) -> Known:
        return _fixed(leaf, given, dtype, np.asarray(given).shape)

    return fixed_input(name, value.type, constants[name], dtype, known)


def _types(model: ModelSource, dims: Mapping[str, Any] | None) -> dict[str, TensorType]:
    """The type of each tensor that is an input and has no default value."""
    declared, resolver = _declared(model, dims)
    types: dict[str, TensorType] = {}
    for value in declared:
        dtype = _dtype(value)

        def declare(name: str, shape: tuple[Dim, ...], dtype: DType = dtype) -> Any:
            types[name] = TensorType(dtype, shape)

        if value.type.WhichOneof("value") in KINDS:
            live_input(value.name, value.type, dtype, resolver, declare)
        else:
            declare(value.name, resolver.shape(value.name, value.type.tensor_type))
    return types


def _declared(
    model: ModelSource, dims: Mapping[str, Any] | None
) -> tuple[list[ValueInfoProto], DimResolver]:
    """The inputs that have no default value, and their sizes."""
    proto = model.proto.graph
    defaults = {t.name for t in proto.initializer} | {
        t.values.name for t in proto.sparse_initializer
    }
    declared = [value for value in proto.input if value.name not in defaults]
    names = [value.name for value in declared]
    if len(set(names)) != len(names):
        raise ModelFormatError(f"the model lists an input twice: {names}")
    return declared, DimResolver(dims, declared)


def _dtype(value: ValueInfoProto) -> DType:
    """The element type of an input, or of the tensors of an input."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise ModelFormatError(f"input {value.name!r} has no type")
    if kind != "tensor_type" and kind not in KINDS:
        raise UnsupportedOpError(
            f"input {value.name!r} is no tensor (a {kind}); only tensors, sequences and optionals "
            "of them are supported"
        )
    number = element_type(value.type).elem_type
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
