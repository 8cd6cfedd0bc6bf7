"""Reading of the exported program within an archive: JSON, by the schema of version 8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ostinato.errors import ModelFormatError, UnsupportedOpError
from ostinato.frontends.torch.leaf_names import argument_names, result_names
from ostinato.frontends.torch.program import (
    BUFFER,
    BUFFER_MUTATION,
    CONSTANT,
    INPUT_MUTATION,
    PARAMETER,
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    Named,
    OutputSpec,
    Program,
    ProgramNode,
    Ref,
    ScalarMeta,
    TensorMeta,
    source_line,
)
from ostinato.frontends.torch.pt2.archive import SCALAR_TYPES, Archive
from ostinato.frontends.torch.pt2.record import Record
from ostinato.frontends.torch.pt2.sizes import readable
from ostinato.frontends.torch.pt2.trees import leaf_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ostinato.frontends.torch.program import Argument, Size
    from ostinato.ir.stored import Array

__all__ = ["read_program"]

#: The major version of the schema that is read here, and the first that is known to be the same.
_MAJOR = 8

_DATA = (
    ("data/weights", "model_weights_config.json"),
    ("data/constants", "model_constants_config.json"),
)

_MEMORY_FORMATS = {
    1: "contiguous_format",
    2: "channels_last",
    3: "channels_last_3d",
    4: "preserve_format",
}

#: Programs within programs within programs: a file beyond this is made to exhaust the stack.
_DEEPEST = 40

#: An op of PyTorch's own Python operators, such as ``_operator.add`` or ``torch.sym_max``.
_PREFIXES = ("torch.ops.", "torch._ops.")


def read_program(source: Any) -> Program:
    """The program in a ``.pt2`` file.

    Args:
        source: a path, or the bytes of the file.

    Raises:
        ModelFormatError: the file is damaged, hostile, or newer than this version.
        UnsupportedOpError: an input or output is no tensor or number.
        OSError: it cannot be read.
    """
    archive = Archive(source)
    try:
        order = archive.text("byteorder") if "byteorder" in archive else "little"
        if order != "little":
            raise ModelFormatError(f"{archive.name}: its byte order is {order!r:.20}")
        document = archive.record(_model_entry(archive))
        weights: dict[str, Array] = {}
        for folder, config in _DATA:
            weights.update(archive.tensors(folder, config))
        return _read_exported(document, archive.name, weights)
    finally:
        archive.close()


def _model_entry(archive: Archive) -> str:
    if "models/model.json" in archive:
        return "models/model.json"
    models = [name for name in archive.listed("models") if name.endswith(".json")]
    if len(models) != 1:
        raise ModelFormatError(f"{archive.name} holds {len(models)} exported programs, expected 1")
    return f"models/{models[0]}"


def _read_exported(document: Record, name: str, weights: Mapping[str, Array]) -> Program:
    version = document.record("schema_version")
    major, minor = version.integer("major"), version.integer("minor")
    if major != _MAJOR:
        newer = "newer" if major > _MAJOR else "older"
        raise ModelFormatError(
            f"{name}: its schema has version {major}.{minor}, {newer} than the version {_MAJOR} "
            "that is read"
        )
    module = document.record("graph_module")
    graph, signature = module.record("graph"), module.record("signature")
    reader = _GraphReader(graph, 0)
    arguments, results = _leaf_names(module)
    given = _matched(signature.each("input_specs"), reader.inputs, "input")
    inputs = tuple(_input_spec(spec, argument, reader, arguments) for spec, argument in given)
    targets = {spec.name: spec.target for spec in inputs}
    found = _matched(signature.each("output_specs"), reader.outputs, "output")
    outputs = tuple(
        _output_spec(spec, argument, next(results, f"output_{position}"), targets)
        if "user_output" in spec
        else _output_spec(spec, argument, "", targets)
        for position, (spec, argument) in enumerate(found)
    )
    for spec in inputs:
        if spec.kind in (PARAMETER, BUFFER, CONSTANT) and spec.target not in weights:
            document.malformed(f"the {spec.kind} {spec.target!r} has no elements in the archive")
    guards = tuple(document.items("guards_code", str)) if "guards_code" in document else ()
    symbols = dict(_symbols(document))
    return Program(name, inputs, reader.nodes(), outputs, symbols, weights, guards=guards)


def _leaf_names(module: Record) -> tuple[Iterator[str], Iterator[str]]:
    """The names of the user's inputs, and of the results, in order."""
    for entry in module.each("module_call_graph"):
        if entry.text("fqn") == "" and "signature" in entry:
            known = entry.record("signature")
            words = "forward_arg_names"
            arguments = known.items(words, str) if words in known else []
            given, results = (
                leaf_paths(known.text(spec), f"{known.path}.{spec}")
                for spec in ("in_spec", "out_spec")
            )
            return iter(argument_names(given, arguments)), iter(result_names(results))
    return iter(()), iter(())


def _matched(specs: list[Record], arguments: list[Any], what: str) -> Iterator[tuple[Record, Any]]:
    if len(specs) != len(arguments):
        raise ModelFormatError(
            f"the graph has {len(arguments)} {what}s, its signature lists {len(specs)}"
        )
    return zip(specs, arguments, strict=True)


def _symbols(document: Record) -> Iterator[tuple[str, tuple[int, int | None]]]:
    for symbol, bounds in document.record("range_constraints").records():
        least = bounds.integer("min_val") if "min_val" in bounds else 0
        yield symbol, (least, bounds.integer("max_val") if "max_val" in bounds else None)


def _input_spec(
    spec: Record, argument: Any, reader: _GraphReader, arguments: Iterator[str]
) -> InputSpec:
    kind, found = spec.choice()
    record = Record(found, f"{spec.path}.{kind}") if isinstance(found, dict) else spec
    if kind == "constant_input":
        name = record.text("name")
        fixed = _constant(record.record("value"))
        return InputSpec(name, USER_INPUT, None, next(arguments, name), fixed)
    if not isinstance(argument, Ref):
        name = next(arguments, spec.path)
        return InputSpec(spec.path, USER_INPUT, None, name, argument)
    meta = reader.meta(argument.name)
    match kind:
        case "user_input":
            return InputSpec(argument.name, USER_INPUT, meta, next(arguments, argument.name))
        case "parameter":
            return InputSpec(argument.name, PARAMETER, meta, record.text("parameter_name"))
        case "buffer":
            return InputSpec(argument.name, BUFFER, meta, record.text("buffer_name"))
        case "tensor_constant":
            return InputSpec(argument.name, CONSTANT, meta, record.text("tensor_constant_name"))
    raise UnsupportedOpError(f"{reader.path}: an input is a {kind}, no tensor and no number")


def _constant(value: Record) -> Any:
    kind, found = value.choice()
    return None if kind == "as_none" else found


def _output_spec(spec: Record, argument: Any, name: str, targets: Mapping[str, str]) -> OutputSpec:
    """An output.

    Args:
        spec: its object.
        argument: the result.
        name: of one that the user gets.
        targets: by name of an input, its ``target``.
    """
    kind, found = spec.choice()
    record = Record(found, f"{spec.path}.{kind}") if isinstance(found, dict) else spec
    match kind:
        case "user_output":
            return OutputSpec(argument, USER_OUTPUT, name)
        case "buffer_mutation":
            return OutputSpec(argument, BUFFER_MUTATION, record.text("buffer_name"))
        case "parameter_mutation":
            return OutputSpec(argument, BUFFER_MUTATION, record.text("parameter_name"))
        case "user_input_mutation":
            given = record.text("user_input_name")
            return OutputSpec(argument, INPUT_MUTATION, targets.get(given, given))
    raise UnsupportedOpError(f"{spec.path}: a {kind} has no place in a graph")


class _GraphReader:
    """A graph of the document.

    Args:
        graph: its object.
        depth: how many graphs lie around it.
    """

    def __init__(self, graph: Record, depth: int) -> None:
        if depth > _DEEPEST:
            graph.malformed("graphs nest too deep")
        self.path = graph.path
        self._graph = graph
        self._depth = depth
        self._tensors = graph.record("tensor_values")
        self._scalars = [
            (kind, graph.record(field))
            for kind, field in (
                ("int", "sym_int_values"),
                ("bool", "sym_bool_values"),
                ("float", "sym_float_values"),
            )
            if field in graph
        ]
        self._metas: dict[str, TensorMeta | ScalarMeta | None] = {}
        self.inputs = [self._argument(item) for item in graph.each("inputs")]
        self.outputs = [self._argument(item) for item in graph.each("outputs")]

    def nodes(self) -> tuple[ProgramNode, ...]:
        """The nodes, in order."""
        return tuple(self._node(node, i) for i, node in enumerate(self._graph.each("nodes")))

    def _node(self, node: Record, position: int) -> ProgramNode:
        target = node.text("target")
        for prefix in _PREFIXES:
            target = target.removeprefix(prefix)
        args: list[Argument] = []
        kwargs: dict[str, Argument] = {}
        for given in node.each("inputs"):
            argument, name = self._argument(given.record("arg")), given.text("name")
            by_name = given.integer("kind") == 2 if "kind" in given else bool(name)
            if by_name:
                kwargs[name] = argument
            else:
                args.append(argument)
        results: list[str] = []
        for output in node.each("outputs"):
            found = self._argument(output)
            listed = (found,) if isinstance(found, Ref) or not isinstance(found, tuple) else found
            results += [item.name if isinstance(item, Ref) else "" for item in listed]
        first = next(iter(results), "") or f"node_{position}"
        name = node.text("name") if "name" in node else first
        metas = tuple(self.meta(result) if result else None for result in results)
        return ProgramNode(
            name, target, tuple(args), kwargs, tuple(results), metas, True, _where(node)
        )

    def meta(self, name: str) -> TensorMeta | ScalarMeta | None:
        """The type of a result."""
        if name not in self._metas:
            self._metas[name] = self._read_meta(name)
        return self._metas[name]

    def _read_meta(self, name: str) -> TensorMeta | ScalarMeta | None:
        if name in self._tensors:
            meta = self._tensors.record(name)
            number = meta.integer("dtype")
            return TensorMeta(
                SCALAR_TYPES.get(number, f"type {number}"),
                tuple(_size(size) for size in meta.each("sizes")),
                tuple(_size(stride) for stride in meta.each("strides")),
                _device(meta.record("device")),
            )
        for kind, values in self._scalars:
            if name in values:
                choice, found = values.record(name).choice()
                if choice == "as_expr":
                    found = readable(values.record(name).record("as_expr").text("expr_str"))
                return ScalarMeta(kind, found)
        return None

    def _argument(self, argument: Record) -> Argument:
        kind, found = argument.choice()
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return Ref(argument.record(kind).text("name"))
            case "as_tensors":
                return tuple(Ref(item.text("name")) for item in argument.each(kind))
            case "as_nested_tensors":
                return tuple(
                    tuple(Ref(Record(item, argument.path).text("name")) for item in items)
                    for items in argument.items(kind, list)
                )
            case "as_int" | "as_bool" | "as_string":
                types = {"as_int": int, "as_bool": bool, "as_string": str}
                if type(found) is not types[kind]:
                    argument.malformed(f"{kind} holds {type(found).__name__}")
                return cast("int | bool | str", found)
            case "as_float":
                return argument.number(kind)
            case "as_ints":
                return tuple(argument.items(kind, int))
            case "as_bools":
                return tuple(argument.items(kind, bool))
            case "as_strings":
                return tuple(argument.items(kind, str))
            case "as_floats":
                return tuple(float(item) for item in argument.items(kind, float, int, str))
            case "as_int_lists" | "as_float_lists":
                return tuple(tuple(items) for items in argument.items(kind, list))
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return _symbolic(argument.record(kind))
            case "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return tuple(_symbolic(item) for item in argument.each(kind))
            case "as_optional_tensor":
                return _optional(argument.record(kind))
            case "as_optional_tensors":
                return tuple(_optional(item) for item in argument.each(kind))
            case "as_complex":
                value = argument.record(kind)
                return complex(value.number("real"), value.number("imag"))
            case "as_scalar_type":
                number = argument.integer(kind)
                return Named("dtype", SCALAR_TYPES.get(number, f"type {number}"))
            case "as_memory_format":
                found = _MEMORY_FORMATS.get(argument.integer(kind), "unknown")
                return Named("memory_format", found)
            case "as_layout":
                return Named("layout", "strided" if argument.integer(kind) == 7 else "sparse")
            case "as_device":
                return Named("device", _device(argument.record(kind)))
            case "as_graph":
                return self._nested(argument.record(kind))
            case "as_operator":
                return argument.text(kind)
        raise UnsupportedOpError(f"{argument.path}: arguments of kind {kind!r} have no equivalent")

    def _nested(self, argument: Record) -> Program:
        reader = _GraphReader(argument.record("graph"), self._depth + 1)
        inputs, outputs = [], []
        for item in reader.inputs:
            if not isinstance(item, Ref):
                argument.malformed("an input of a nested graph has no name")
            inputs.append(InputSpec(item.name, USER_INPUT, reader.meta(item.name), item.name))
        for position, item in enumerate(reader.outputs):
            outputs.append(OutputSpec(item, USER_OUTPUT, f"output_{position}"))
        return Program(argument.text("name"), tuple(inputs), reader.nodes(), tuple(outputs))


def _size(size: Record) -> Size:
    kind, _ = size.choice()
    return (
        size.integer(kind)
        if kind == "as_int"
        else readable(size.record("as_expr").text("expr_str"))
    )


def _symbolic(argument: Record) -> Argument:
    kind, found = argument.choice()
    if kind == "as_name":
        return Ref(argument.text(kind))
    if not isinstance(found, int | float):
        argument.malformed(f"{kind} holds {type(found).__name__}")
    return found


def _optional(argument: Record) -> Argument:
    kind, _ = argument.choice()
    return Ref(argument.record("as_tensor").text("name")) if kind == "as_tensor" else None


def _device(device: Record) -> str:
    index = f":{device.integer('index')}" if "index" in device else ""
    return device.text("type") + index


def _where(node: Record) -> str:
    """The last line of the user's source behind a node."""
    if "metadata" not in node:
        return ""
    trace = node.record("metadata").fields.get("stack_trace")
    if not isinstance(trace, str):
        return ""
    return source_line(trace)
