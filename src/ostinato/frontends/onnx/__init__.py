"""ONNX in: :func:`load_onnx`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.dims import DEFAULT_BOUNDS, DimResolver
from ostinato.frontends.onnx.importer import Importer
from ostinato.frontends.onnx.known import Known
from ostinato.frontends.onnx.source import ModelSource, open_model
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, element_name
from ostinato.ir.types import TensorType
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import ValueInfoProto

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.variables import Dim

__all__ = ["DEFAULT_BOUNDS", "input_types", "load_onnx"]


def load_onnx(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str | None = None,
    base_dir: Any = None,
) -> Graph:
    """Import an ONNX model (operator sets 7 to 28).

    Inputs and outputs keep their names. Weights become params that hold the model's values;
    scalars and small integer tensors become constants. What depends on stored tensors alone is
    computed while loading (up to a million elements): a weight that the model rearranges before
    use becomes a param of the rearranged tensor's name. Shape computations are followed too, so
    none of them is left in the graph. An ``If`` whose condition is known takes its branch; one
    that depends on data runs both branches, which must give the same types, and chooses.

    >>> g = ost.load_onnx("encoder.onnx", dims={"batch": 8, "sequence": (1, 128)})

    Args:
        source: a path, the bytes of a model, or an ``onnx.ModelProto``.
        dims: the sizes of dynamic dims, by the model's name of the dim (``{"batch": 8}``) or by
            input (``{"x": (8, 3, 224, 224)}``, ``{"x": {0: 8}}``). A size is an int, a pair of
            bounds ``(1, 128)``, or an ``ost.Variable``. A dynamic dim without a size becomes a
            Variable of its name, bounded by :data:`DEFAULT_BOUNDS` (1 to 512).
        constants: inputs to fix at a value, by name (``{"sampling_rate": 16000}``): they vanish
            from the graph, and whatever depends on them alone is computed while loading.
        name: the graph's name; by default the file's or the model's.
        base_dir: where the model's external data lies, when ``source`` is not a path.

    Raises:
        ModelFormatError: the file is damaged, hostile, or newer than this version.
        UnsupportedOpError: lists every node that has no equivalent, and why.
        GraphError: the sizes do not fit a node; it is named.
        VariableError: ``dims`` names what the model does not have, or contradicts it.
        InputError: ``constants`` names no input, or a value does not fit it.
    """
    with _blaming_the_model():
        model = open_model(source, base_dir)
        graph = Graph(name or model.name)
        Importer(model, graph).run(_inputs(model, graph, dims, dict(constants or {})))
        return graph


def input_types(source: Any, *, dims: Mapping[str, Any] | None = None) -> dict[str, TensorType]:
    """The type of each input that :func:`load_onnx` would declare, without converting the nodes.

    Inputs that are fixed with ``constants=`` are among them.

    Raises:
        ModelFormatError, UnsupportedOpError, VariableError: as :func:`load_onnx`.
    """
    with _blaming_the_model():
        return _types(open_model(source), dims)


@contextmanager
def _blaming_the_model() -> Iterator[None]:
    """Turns what no check foresaw, such as a name that is no valid text, into an error of ours."""
    try:
        yield
    except OstinatoError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"the model is malformed: {error!r}") from error


def _inputs(
    model: ModelSource, g: Graph, dims: Mapping[str, Any] | None, constants: dict[str, Any]
) -> dict[str, Tensor]:
    """What the model's inputs stand for: inputs of ``g``, or known tensors."""
    types = _types(model, dims)
    for given in constants:
        if given not in types:
            raise InputError(f"constants: the model has no input {given!r}; it has {list(types)}")
    return {
        name: _fixed(name, constants[name], type_.dtype, type_.shape)
        if name in constants
        else g.input(name, type_.shape, type_.dtype)
        for name, type_ in types.items()
    }


def _types(model: ModelSource, dims: Mapping[str, Any] | None) -> dict[str, TensorType]:
    """The type of each input that has no default value."""
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
