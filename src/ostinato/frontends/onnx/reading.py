"""Reading of a model's messages into a graph."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.dims import DimResolver, element_type
from ostinato.frontends.onnx.importer import Importer
from ostinato.frontends.onnx.known import Known, Strings
from ostinato.frontends.onnx.source import ModelSource, open_model
from ostinato.frontends.onnx.structured import KINDS, filled, fixed_input, live_input
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES, STRING, element_name
from ostinato.ir.types import TensorType
from ostinato.ops.builder import Graph
from ostinato.records import dataclass
from ostinato.variables import bounds, coefficient, symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from onnx import ValueInfoProto

    from ostinato.dtypes import DType
    from ostinato.frontends.onnx.file_tensors import PartedFile
    from ostinato.frontends.onnx.known import Tensor
    from ostinato.frontends.onnx.obstacles import Obstacle
    from ostinato.frontends.onnx.structured import Structure
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["ModelReader", "ReadModel", "input_types", "read_model"]


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
    """Read the graph of a model for the sizes that are given, whatever they are.

    Args:
        source, dims, constants, name, base_dir: see :func:`ostinato.load_onnx`.
        parted: the file, where it is open already.

    Raises:
        ModelFormatError, UnsupportedOpError, GraphError, InputError: see
            :func:`ostinato.load_onnx`.
    """
    reader = ModelReader(
        source, dims=dims, constants=constants, name=name, base_dir=base_dir, parted=parted
    )
    graph = reader.graph({})
    return ReadModel(graph, reader.model, reader.strings)


class ModelReader:
    """A model that graphs are read from, for one shape of its inputs or another.

    Args:
        source, dims, constants, name, base_dir: see :func:`ostinato.load_onnx`.
        parted: the file, where it is open already.

    Attributes:
        strings: the outputs of the last graph that are strings, by name.
        attempt: the last graph, as far as it could be built.
        conditions: by the model's name of a size, what :meth:`assume` has assumed of it.
    """

    def __init__(
        self,
        source: Any,
        *,
        dims: Mapping[str, Any] | None,
        constants: Mapping[str, Any],
        name: str | None,
        base_dir: Any,
        parted: PartedFile | None,
    ) -> None:
        self._source = source
        self._dims = dims
        self._constants = dict(constants)
        self._name = name
        self._base_dir = base_dir
        self._parted = parted
        self._obstacles: dict[int, Sequence[Obstacle]] = {}
        self.strings: dict[str, np.ndarray[Any, Any]] = {}
        self.attempt = Graph()
        self.conditions: dict[str, str] = {}

    @cached_property
    def model(self) -> ModelSource:
        """The model, parsed at the first use.

        Raises:
            ModelFormatError, UnsupportedOpError: see :func:`ostinato.load_onnx`.
        """
        with _blaming_the_model():
            return open_model(self._source, self._base_dir, self._parted)

    @property
    def self_contained(self) -> bool:
        """Whether graphs depend on nothing but the model's file."""
        return not self.model.external.used

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of each input of the model, with Variables for open sizes.

        Raises:
            ModelFormatError, UnsupportedOpError, VariableError, InputError: see
                :func:`ostinato.load_onnx`.
        """
        with _blaming_the_model():
            types, strings = self._resolved[0], self._string_inputs
            structured = self._structured
            for given in self._constants:
                if given not in types and given not in strings and given not in structured:
                    names = [*types, *strings, *structured]
                    raise InputError(f"constants: the model has no input {given!r}; it has {names}")
            return types

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The inputs of its graphs: those that are not fixed."""
        return {n: type_ for n, type_ in self.types.items() if n not in self._constants}

    @property
    def name(self) -> str:
        """The name of its graphs."""
        return self._name or self.model.name

    @property
    def outputs(self) -> dict[str, TensorType] | None:
        """The outputs' types as the model declares them; ``None`` if it leaves some out."""
        types: dict[str, TensorType] = {}
        for value in self.model.proto.graph.output:
            type_ = value.type.tensor_type
            known = value.type.WhichOneof("value") == "tensor_type" and type_.HasField("shape")
            if not known or type_.elem_type not in ELEMENT_TYPES:
                return None
            dims = tuple(max(int(dim.dim_value), 0) for dim in type_.shape.dim)
            types[value.name] = TensorType(ELEMENT_TYPES[type_.elem_type], dims)
        return types

    @property
    def open(self) -> frozenset[str]:
        """The Variables whose bounds are defaults."""
        return frozenset(self._resolved[1].open)

    def assume(self, shapes: Mapping[str, tuple[Dim, ...]]) -> None:
        """From now on, take these shapes of open sizes for those of inputs."""
        types, resolver, _ = self._resolved
        named = {str(dim) for type_ in types.values() for dim in type_.shape}
        for name, shape in shapes.items():
            for before, dim in zip(types[name].shape, shape, strict=True):
                if before == dim:
                    continue
                word = resolver.words.get(str(before), str(before))
                self.conditions[word] = _condition(before, dim, resolver.words)
                if str(dim) not in named:
                    resolver.open.update(s.name for s in symbols(dim))
                    resolver.words[str(dim)] = word
            types[name] = TensorType(types[name].dtype, shape)

    @property
    def words(self) -> Mapping[str, str]:
        """By the text of an input's dim, the model's own name for it, where that differs."""
        return self._resolved[1].words

    @cached_property
    def _resolved(self) -> tuple[dict[str, TensorType], DimResolver, dict[str, Structure]]:
        with _blaming_the_model():
            strings = self._string_inputs
            if missing := strings - self._constants.keys():
                error = UnsupportedOpError(
                    f"inputs {sorted(missing)} have string elements; give their values with "
                    "constants="
                )
                error.inputs = frozenset(missing)
                raise error
            fixed = self._structured.keys() & self._constants.keys()
            return _types(self.model, self._dims, strings | fixed)

    @cached_property
    def _structured(self) -> dict[str, ValueInfoProto]:
        """The inputs that are sequences or optionals."""
        declared = self.model.proto.graph.input
        return {v.name: v for v in declared if v.type.WhichOneof("value") in KINDS}

    @cached_property
    def _string_inputs(self) -> set[str]:
        return {
            value.name
            for value in self.model.proto.graph.input
            if value.type.tensor_type.elem_type == STRING
        }

    def graph(
        self,
        shapes: Mapping[str, tuple[Dim, ...]],
        contents: Mapping[str, np.ndarray[Any, Any]] = MappingProxyType({}),
    ) -> Graph:
        """The graph for inputs of these shapes; fixed inputs may be left out.

        Args:
            shapes: by input.
            contents: further inputs to fix, and at which values.

        Raises:
            ModelFormatError, UnsupportedOpError, GraphError, InputError: see
                :func:`ostinato.load_onnx`.
        """
        with _blaming_the_model():
            graph = self.attempt = Graph(self.name)
            importer = Importer(self.model, graph, self.words)
            try:
                fixed = {**self._constants, **contents}
                strings = importer.run(self._leaves(graph, shapes, fixed))
            except OstinatoError as error:
                self._obstacles = {id(error): tuple(importer.obstacles)}
                raise
            self.strings = {name: texts.array for name, texts in strings.items()}
            return graph

    def obstacles_of(self, error: OstinatoError) -> Sequence[Obstacle]:
        """The nodes behind the last error of :meth:`graph`, where they are known."""
        return self._obstacles.get(id(error), ())

    def _leaves(
        self, g: Graph, shapes: Mapping[str, tuple[Dim, ...]], fixed: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The model's inputs: inputs of ``g``, or known tensors."""
        types = {
            name: TensorType(type_.dtype, shapes.get(name, type_.shape))
            for name, type_ in self.types.items()
        }
        texts: dict[str, Tensor] = {
            name: Strings(np.asarray(fixed[name], object)) for name in self._string_inputs
        }
        tensors: dict[str, Value | Known] = {
            name: _fixed(name, fixed[name], type_.dtype, type_.shape)
            if name in fixed
            else g.input(name, type_.shape, type_.dtype)
            for name, type_ in types.items()
        }
        structures: dict[str, Tensor] = {
            name: _fixed_structure(value, fixed[name])
            if name in fixed
            else filled(self._resolved[2][name], tensors)
            for name, value in self._structured.items()
        }
        return {**texts, **tensors, **structures}


def _fixed_structure(value: ValueInfoProto, given: Any) -> Tensor:
    dtype = _dtype(value)

    def known(leaf: str, array: Any) -> Known:
        return _fixed(leaf, array, dtype, np.asarray(array).shape)

    return fixed_input(value.name, value.type, given, dtype, known)


def input_types(source: Any, *, dims: Mapping[str, Any] | None = None) -> dict[str, TensorType]:
    """The type of each input that ``load_onnx`` would declare, without converting the nodes.

    Inputs that are fixed with ``constants=`` are among them.

    Raises:
        ModelFormatError, UnsupportedOpError, VariableError: as ``load_onnx``.
    """
    with _blaming_the_model():
        return _types(open_model(source), dims)[0]


def _condition(before: Dim, dim: Dim, words: Mapping[str, str]) -> str:
    """The condition on a size that takes it from one dim to another, in words."""
    if isinstance(dim, int):
        return f"{dim}"
    (least, most), (low, high) = bounds(before), bounds(dim)
    used = symbols(dim)
    if len(used) != 1 or (factor := coefficient(dim, next(iter(used)))) is None:
        return f"equal to {dim}"
    scale, rest = factor
    if scale != 1 or rest != 0:
        return f"a multiple of {scale}" if rest == 0 else f"equal to {dim}"
    if {s.name for s in used} != {s.name for s in symbols(before)}:
        return f"equal to {words.get(str(dim), str(dim))}"
    ends = [f"at least {low}"] if low > least else []
    return " and ".join([*ends, *([f"at most {high}"] if high < most else [])])


@contextmanager
def _blaming_the_model() -> Iterator[None]:
    """Turn errors that no check foresaw, such as of a name that is no valid text, into ours."""
    try:
        yield
    except OstinatoError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"the model is malformed: {error!r}") from error


def _types(
    model: ModelSource, dims: Mapping[str, Any] | None, left_out: Collection[str] = ()
) -> tuple[dict[str, TensorType], DimResolver, dict[str, Structure]]:
    """The type of each tensor that is an input, has no default value and is not left out.

    Returns:
        The types by name, the sizes, and the tensors that sequences and optionals are made of.
    """
    proto = model.proto.graph
    defaults = {t.name for t in proto.initializer} | {
        t.values.name for t in proto.sparse_initializer
    }
    declared = [value for value in proto.input if value.name not in defaults]
    names = [value.name for value in declared]
    if len(set(names)) != len(names):
        raise ModelFormatError(f"the model lists an input twice: {names}")
    resolver = DimResolver(dims, declared)
    types: dict[str, TensorType] = {}
    structures: dict[str, Structure] = {}
    for value in declared:
        if value.name in left_out:
            continue
        dtype = _dtype(value)
        if value.type.WhichOneof("value") in KINDS:
            found = live_input(value.name, value.type, dtype, resolver)
            structures[value.name] = found.structure
            types.update((name, TensorType(dtype, shape)) for name, shape in found.shapes.items())
        else:
            shape = resolver.shape(value.name, value.type.tensor_type)
            types[value.name] = TensorType(dtype, shape)
    return types, resolver, structures


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
