"""ONNX's own backend interface: :func:`prepare` a model, then :meth:`OstinatoBackendRep.run` it.

>>> from ostinato.frontends.onnx import backend
>>> outputs = backend.prepare(model).run([x])
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ostinato.errors import InputError, UnsupportedOpError
from ostinato.frontends.onnx import load_onnx
from ostinato.frontends.onnx.reading import read_model
from ostinato.frontends.onnx.source import NEWEST_IR, NEWEST_OPSET
from ostinato.frontends.onnx.structured import KINDS, tensors_of, value_of
from ostinato.frontends.onnx.tensors import STRING
from ostinato.records import dataclass
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

    from ostinato.backends.options import CompileOptions
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = [
    "OstinatoBackend",
    "OstinatoBackendRep",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

#: Programs that one model keeps, for different values of the inputs that it depends on.
_MOST_PROGRAMS = 8


@dataclass(frozen=True)
class _Program:
    """A model compiled for some values of its inputs.

    Attributes:
        compiled: the graph; ``None`` where all outputs are strings.
        strings: the outputs that are strings, by name.
    """

    compiled: CompiledGraph | None
    strings: dict[str, np.ndarray[Any, Any]]


class OstinatoBackendRep(BackendRep):  # type: ignore[misc]
    """A prepared model.

    Some models compute shapes from the values of inputs, such as the ``shape`` of a ``Reshape``, or
    take strings. Such a model is compiled for the values of those inputs at its first run with
    them, and one that takes sequences or optionals for the lengths of these; the last few compiled
    graphs are kept.

    Attributes:
        fixed: the names of those inputs.
    """

    def __init__(
        self,
        model: ModelProto,
        session: Session,
        options: CompileOptions | None,
        dims: Mapping[str, Any] | None,
    ) -> None:
        self._model = model
        self._session = session
        self._options = options
        self._dims = dims
        stored = {tensor.name for tensor in model.graph.initializer}
        given = [value for value in model.graph.input if value.name not in stored]
        self._inputs = [value.name for value in given]
        self._structured = {v.name for v in given if v.type.WhichOneof("value") in KINDS}
        self._has_strings = any(map(_may_be_strings, (*model.graph.input, *model.graph.output)))
        self._programs: OrderedDict[tuple[Any, ...], _Program] = OrderedDict()
        self.fixed: frozenset[str] = frozenset()
        if self._structured:
            return  # compiled when the lengths of sequences are known
        try:
            self._compile({})
        except UnsupportedOpError as error:
            if not error.inputs:
                raise
            self.fixed = error.inputs

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of one run, as a tuple that is indexed by name too.

        Args:
            inputs: a sequence of arrays in the order of the model's inputs, a mapping by name, or
                one array for a model with one input.
            kwargs: accepted for the interface's sake, and ignored.

        Raises:
            InputError: arrays do not fit the model's inputs.
            UnsupportedOpError: the model has ops without an equivalent.
        """
        arrays = self._named(inputs)
        program = self._program_for(arrays)
        results = dict(program.strings)
        if (compiled := program.compiled) is not None:
            tensors = {k: v for n, given in arrays.items() for k, v in tensors_of(n, given).items()}
            live = {name: array for name, array in tensors.items() if name in compiled.inputs}
            results |= zip(compiled.outputs, compiled.run(live), strict=True)
        outputs = self._model.graph.output
        named = namedtupledict("Outputs", [value.name for value in outputs])
        found = (value_of(value.name, value.type, results) for value in outputs)
        return named(*found)  # type: ignore[no-any-return]

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        given = inputs if isinstance(inputs, Sequence) else [inputs]
        if len(given) > len(self._inputs):
            raise InputError(f"the model has the inputs {self._inputs}, got {len(given)} arrays")
        return dict(zip(self._inputs, given, strict=False))

    def _program_for(self, arrays: Mapping[str, Any]) -> _Program:
        """The program for the values of the fixed inputs."""
        while True:
            fixed = [name for name in self._inputs if name in self.fixed & {*arrays}]
            constants = {name: _constant(arrays[name]) for name in fixed}
            dims = {n: _shapes(a) for n, a in arrays.items() if n not in self.fixed}
            dims = dims if self._structured else {}
            key = (*((n, _key(a)) for n, a in constants.items()), *_dims_key(dims))
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
            try:
                return self._compile(constants, dims, key)
            except UnsupportedOpError as error:
                needed = {self._input_of(name) for name in error.inputs}
                if needed <= self.fixed:
                    raise
                self.fixed |= needed

    def _input_of(self, name: str) -> str:
        """The model's input that an input of the graph is a tensor of."""
        whole = name.partition("[")[0]
        return whole if whole in self._structured else name

    def _compile(
        self,
        constants: Mapping[str, Any],
        dims: Mapping[str, Any] = MappingProxyType({}),
        key: tuple[Any, ...] = (),
    ) -> _Program:
        given = {**(self._dims or {}), **dims}
        strings = {}
        if self._has_strings:
            read = read_model(
                self._model, dims=given, constants=constants, name=None, base_dir=None, parted=None
            )
            graph, strings = read.graph, read.strings
        else:
            graph = load_onnx(self._model, dims=given, constants=constants)
        compiled = None
        if graph.outputs:
            compiled = self._session.compile(graph, options=self._options)
        program = self._programs[key] = _Program(compiled, strings)
        if len(self._programs) > _MOST_PROGRAMS:
            self._programs.popitem(last=False)
        return program


def _constant(given: Any) -> Any:
    """The value of an input as ``constants=`` takes it."""
    return given if given is None or isinstance(given, list) else np.asarray(given)


def _key(given: Any) -> Any:
    """A key that is equal for equal values of an input alone."""
    if isinstance(given, np.ndarray):
        return given.dtype.name, given.shape, _contents(given)
    return None if given is None else tuple([_key(np.asarray(item)) for item in given])


def _shapes(given: Any) -> Any:
    """The value of an input as ``dims=`` takes it."""
    if isinstance(given, list):
        return [np.shape(item) for item in given]
    return None if given is None else np.shape(given)


def _dims_key(dims: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same of shapes."""
    listed = ((name, tuple(dim) if isinstance(dim, list) else dim) for name, dim in dims.items())
    return tuple(listed)


def _may_be_strings(value: ValueInfoProto) -> bool:
    """Whether an input or output is declared to hold strings, or not declared at all."""
    kind = value.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and value.type.tensor_type.elem_type == STRING)


def _contents(array: np.ndarray[Any, Any]) -> Any:
    """The elements of an array, in a form that tells any two apart."""
    return tuple(array.reshape(-1)) if array.dtype == object else array.tobytes()


class OstinatoBackend(Backend):  # type: ignore[misc]
    """ONNX's ``Backend``: what its tools, and its test suite, run models with."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of ``model`` has an equivalent here."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedOpError:
            return False
        return True

    @classmethod
    def prepare(
        cls,
        model: ModelProto,
        device: str = "CPU",
        *,
        dims: Mapping[str, Any] | None = None,
        options: CompileOptions | None = None,
        **kwargs: Any,
    ) -> OstinatoBackendRep:
        """Compile ``model``.

        Args:
            model: an ``onnx.ModelProto``.
            device: ``"CPU"``.
            dims: the sizes of dynamic dims, as :func:`ostinato.load_onnx` takes them.
            options: the switches of the compiler.
            kwargs: accepted for the interface's sake, and ignored.

        Raises:
            OstinatoError: as :func:`ostinato.load_onnx` and :meth:`ostinato.Session.compile`.
        """
        return OstinatoBackendRep(model, Session(_device(device)), options, dims)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile ``model`` and run it once; arguments as of :meth:`prepare`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on ``inputs``: arrays in order, without those that the node leaves out.

        Args:
            node: the node.
            inputs: its operands.
            device: ``"CPU"``.
            outputs_info: ignored: the types of outputs follow from those of the operands.
            kwargs: ``opset_version``, and what :meth:`prepare` takes.
        """
        names = [name for name in dict.fromkeys(node.input) if name]
        arrays = [np.asarray(array) for array in inputs]
        declared = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], node.op_type, declared, results)
        version = kwargs.pop("opset_version", NEWEST_OPSET)
        opsets = [helper.make_opsetid("", version)]
        if node.domain not in ("", "ai.onnx"):
            opsets.append(helper.make_opsetid(node.domain, 1))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=NEWEST_IR)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``device`` (``"CPU"``, ``"CUDA:1"``) is here; :meth:`prepare` would take it."""
        return device.partition(":")[0].upper() == "CPU"


def _device(device: str) -> str:
    """The session's name of an ONNX device.

    Raises:
        InputError: it is not the CPU.
    """
    if not OstinatoBackend.supports_device(device):
        raise InputError(f"device should be 'CPU', got {device!r}")
    return "cpu"


prepare = OstinatoBackend.prepare
run_model = OstinatoBackend.run_model
run_node = OstinatoBackend.run_node
supports_device = OstinatoBackend.supports_device
