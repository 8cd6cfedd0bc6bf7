"""Conversion of a model's nodes to a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.errors import GraphError, ModelFormatError, OstinatoError, UnsupportedOpError
from ostinato.frontends.onnx.call import Call, NotSupported
from ostinato.frontends.onnx.converters import FOLDED_BY_CONVERTER, find_converter
from ostinato.frontends.onnx.file_tensors import LARGE, FileTensor
from ostinato.frontends.onnx.folding import fold
from ostinato.frontends.onnx.functions import FunctionLibrary
from ostinato.frontends.onnx.known import (
    Known,
    Leaves,
    Missing,
    Strings,
)
from ostinato.frontends.onnx.messages import AttributeProto, NodeProto
from ostinato.frontends.onnx.obstacles import Obstacle, dependencies, inputs_behind
from ostinato.frontends.onnx.order import label_of, ordered
from ostinato.frontends.onnx.scope import Scope
from ostinato.frontends.onnx.structured import flattened
from ostinato.frontends.onnx.tensors import (
    ELEMENT_TYPES,
    EXTERNAL,
    STRING,
    element_name,
    expect,
    read_strings,
    read_tensor,
    stored_bytes,
    tensor_shape,
)
from ostinato.frontends.onnx.upgrades import upgraded
from ostinato.ir.graph import Value
from ostinato.records import replace
from ostinato.variables import Expr, symbols

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, TensorProto

    from ostinato.frontends.onnx.known import Tensor
    from ostinato.frontends.onnx.source import ModelSource
    from ostinato.ir.types import TensorType
    from ostinato.ops.builder import Graph, NestedGraph
    from ostinato.variables import Dim, Requirement

__all__ = ["Importer"]

#: Arithmetic of more characters is not shown.
_READABLE = 40

T = TypeVar("T")

#: The greatest depth of subgraphs and functions; a file beyond it is made to exhaust the stack.
_DEEPEST = 60

#: The most nodes that the bodies of functions may have; calls that double at every level have more.
_MOST_NODES_IN_FUNCTIONS = 50_000

#: The most nodes of subgraphs that are converted again: for each iteration of a loop that is
#: unrolled. Loops within such loops may have more.
_MOST_REPEATED = 16_384


class _TooManyNodes(ModelFormatError):
    """The model is given up: it grows while it is read."""


class Importer:
    """Builds ``g`` from a model's graph, collecting every node that cannot be expressed.

    Args:
        source: the model.
        g: an empty graph.
        words: by Variable, the model's name for it, where that differs.

    Attributes:
        obstacles: those nodes, and others with operands that do not fit.
    """

    def __init__(
        self, source: ModelSource, g: Graph, words: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._source = source
        self._words = words
        self._g = g
        self._leaves = Leaves(g)
        self._functions = FunctionLibrary(source.proto)
        self._unsupported: dict[str, None] = {}  # a set that keeps the order
        self._needed: set[str] = set()  # inputs whose values would have to be known
        self._failure: OstinatoError | None = None
        self._nodes_in_functions = 0
        self._converted: dict[int, GraphProto] = {}  # keeps the keys' objects alive
        self._repeated = 0
        self._initializers: dict[tuple[int, str], tuple[GraphProto, Tensor]] = {}
        self.obstacles: list[Obstacle] = []

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Strings]:
        """Convert the whole model, given the tensors of its inputs, and set the outputs.

        Returns:
            The outputs that are strings, by name: these have no place in a graph.

        Raises:
            UnsupportedOpError: lists every node without an equivalent.
            GraphError: a node's operands do not fit each other.
            ModelFormatError: the model breaks the rules of the format.
        """
        proto = self._source.proto.graph
        scope = Scope(self._g, self._leaves, dict(inputs), None, self._source.opsets, None)
        outputs = self._body(proto, scope)
        self._raise_collected()
        named: dict[str, Value] = {}
        texts: dict[str, Strings] = {}
        for value, tensor in zip(proto.output, outputs, strict=True):
            if value.name in named or value.name in texts:
                raise ModelFormatError(f"the model lists its output {value.name!r} twice")
            for name, part in flattened(value.name, tensor):
                if isinstance(part, Missing):
                    raise UnsupportedOpError(f"output {name!r}: {part.reason}")
                if isinstance(part, Strings):
                    texts[name] = part
                    continue
                named[name] = self._leaves.value(part) if isinstance(part, Known) else part
        if not proto.output:
            raise ModelFormatError("the model has no outputs")
        self._g.set_outputs(named)
        return texts

    # -- graphs -----------------------------------------------------------------------------

    def _body(self, proto: GraphProto, scope: Scope) -> list[Tensor]:
        """Convert a graph's nodes in ``scope`` and give its outputs."""
        what = f"graph {proto.name!r}" if proto.name else "the model"
        if scope.depth > _DEEPEST:
            raise ModelFormatError(f"{what}: subgraphs and functions nest too deep")
        for tensor in proto.initializer:
            self._define(scope, tensor.name, self._initializer_of(proto, tensor, scope), what)
        for sparse in proto.sparse_initializer:
            missing = Missing(f"{sparse.values.name!r} is a sparse tensor")
            self._define(scope, sparse.values.name, missing, what)
        self._nodes(proto.node, scope, what)
        return [self._output(value.name, scope, what) for value in proto.output]

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope, what: str) -> None:
        for node in ordered(nodes, scope, what):
            for name, tensor in zip(node.output, self._node(node, scope), strict=False):
                if name:
                    self._define(scope, name, tensor, what)

    def _output(self, name: str, scope: Scope, what: str) -> Tensor:
        if name not in scope:
            raise ModelFormatError(f"{what} has the output {name!r}, which nothing defines")
        return scope.find(name)

    def _define(self, scope: Scope, name: str, tensor: Tensor, what: str) -> None:
        if name in scope.names:
            # A default value for an input: older files list every initializer as an input too.
            raise ModelFormatError(f"{what} defines {name!r} twice")
        scope.names[name] = tensor

    def _initializer_of(self, proto: GraphProto, tensor: TensorProto, scope: Scope) -> Tensor:
        """The tensor of an initializer: one, however often its graph is converted.

        The model's own are read once for all graphs that are built from it.
        """
        if scope.outer is None and not scope.depth:
            known = self._source.tensors
            if tensor.name not in known:
                known[tensor.name] = self._initializer(tensor, own=True)
            return known[tensor.name]
        key = id(proto), tensor.name
        if key not in self._initializers:
            self._initializers[key] = proto, self._initializer(tensor, own=False)
        return self._initializers[key][1]

    def _initializer(self, tensor: TensorProto, *, own: bool) -> Tensor:
        """An initializer of the model's own graph, or of another."""
        if not tensor.name:
            raise ModelFormatError("an initializer has no name")
        if tensor.data_type == STRING:
            return Strings(read_strings(tensor))
        if tensor.data_type not in ELEMENT_TYPES:
            return Missing(f"{tensor.name!r} holds {element_name(tensor.data_type)} elements")
        dtype = ELEMENT_TYPES[tensor.data_type]
        shape = tensor_shape(tensor)
        nbytes = stored_bytes(dtype, shape)
        if tensor.data_location == EXTERNAL and nbytes >= LARGE:
            place = self._source.external.range(tensor, nbytes)
        elif own and tensor.name in self._source.in_file:
            place = self._source.in_file[tensor.name]
            expect(tensor.name, place.nbytes, nbytes, "bytes")
        else:
            array = read_tensor(tensor, self._source.external)
            return Known(array, dtype, tensor.name, weight=True)
        stored = FileTensor(tensor.name, dtype, shape, place)
        return Known(stored, dtype, tensor.name, weight=True)

    # -- nodes ------------------------------------------------------------------------------

    def _node(self, node: NodeProto, scope: Scope) -> list[Tensor]:
        """The outputs of one node. Errors are collected, so that the rest is checked too."""
        label = scope.prefix + label_of(node)
        obstacles = len(self.obstacles)
        try:
            with scope.g.labelled(label):
                results = self._convert(node, label, scope)
            self._blame_condition(node, label, scope, obstacles)
            return results
        except _TooManyNodes:
            raise
        except NotSupported as reason:
            unknown = () if reason.unknown is None else (reason.unknown,)
            self._obstruct(node, label, scope, reason, reason.dims, unknown)
            self._note(node, scope, str(reason))
            if reason.unknown is not None:
                self._needed |= inputs_behind(reason.unknown)
        except GraphError as error:
            sizes = [requirement.size for requirement in error.requirements]
            self._obstruct(node, label, scope, error, sizes, requirements=error.requirements)
            problem = self._problem(error, label)
            hint = "; sizes can be fixed or bounded with dims=" if self._g.variables else ""
            self._fail(GraphError(f"{node.op_type} {label!r}: {problem}{hint}"))
        except ModelFormatError as error:
            self._obstruct(node, label, scope, error)
            self._fail(ModelFormatError(f"{node.op_type} {label!r}: {error}"))
        except OstinatoError as error:
            self._fail(error)
        except Exception as error:  # whatever a converter did not foresee, the file is to blame
            self._fail(ModelFormatError(f"{node.op_type} {label!r} is malformed: {error!r}"), error)
        return [Missing() for _ in node.output]

    def _convert(self, node: NodeProto, label: str, scope: Scope) -> list[Tensor]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        operands = tuple(scope.find(name) if name else None for name in node.input)
        call = Call(
            g=scope.g,
            leaves=scope.leaves,
            op_type=node.op_type,
            domain=domain,
            opset=scope.opsets.get(domain, 1),
            label=label,
            operands=_without_trailing_gaps(operands),
            outputs=tuple(node.output),
            attributes=scope.attributes_of(node),
            inline=partial(self._inline, scope),
            nested=partial(self._nested, scope),
            attempt=self._attempt,
            external=self._source.external,
        )
        converter = find_converter(domain, node.op_type)
        function = None
        if converter is None:
            function = self._functions.find(
                _with_attributes(node, call.attributes), domain, call.opset, _types(operands)
            )
            if function is None:
                call.unsupported(_no_converter(domain, scope))
        if any(isinstance(operand, Missing) for operand in operands):
            self._skip(node, operands, scope)
            return [Missing() for _ in node.output]
        if function is not None:
            return self._call_function(function, call, scope)
        assert converter is not None
        call = upgraded(call)
        if node.op_type not in FOLDED_BY_CONVERTER:
            folded = fold(call, converter)
            if folded is not None:
                return list(folded)
        result = converter(call)
        results = list(result) if isinstance(result, Sequence) else [result]
        for index in range(len(results), len(node.output)):
            if call.wants(index):
                call.unsupported(f"its output {index} ({node.output[index]!r}) has no equivalent")
        return results

    def _skip(self, node: NodeProto, operands: Sequence[Tensor | None], scope: Scope) -> None:
        """Check the parts of a node that cannot be converted for lack of an operand."""
        for operand in operands:
            if isinstance(operand, Missing) and operand.reason:
                self._note(node, scope, operand.reason)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                self._scan(attribute.g, scope)

    def _scan(self, proto: GraphProto, scope: Scope) -> None:
        """Collect the nodes of a subgraph that have no converter."""
        for node in proto.node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            opset = scope.opsets.get(domain, 1)
            known = find_converter(domain, node.op_type) is not None
            if not known and self._functions.find(node, domain, opset) is None:
                self._note(node, scope, _no_converter(domain, scope))
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    self._scan(attribute.g, scope)

    def _inline(
        self, scope: Scope, proto: GraphProto, inputs: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """The outputs of a subgraph, which sees the names around it."""
        self._count_subgraph(proto)
        return self._body(proto, scope.inner(_named_inputs(proto, inputs)))

    def _nested(
        self, scope: Scope, proto: GraphProto, g: NestedGraph, inputs: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """The outputs of a subgraph, converted within the nested graph ``g``."""
        self._count_subgraph(proto)
        return self._body(proto, scope.nested(g, _named_inputs(proto, inputs)))

    def _attempt(self, convert: Callable[[], T]) -> T | None:
        """The result of ``convert``; ``None``, and its errors forgotten, if it fails."""
        unsupported, failure = dict(self._unsupported), self._failure
        needed, obstacles = set(self._needed), len(self.obstacles)
        try:
            result = convert()
        except _TooManyNodes:
            raise
        except (NotSupported, OstinatoError):
            result = None
        if self._unsupported != unsupported or self._failure is not failure:
            self._unsupported, self._failure = unsupported, failure
            self._needed = needed
            del self.obstacles[obstacles:]
            return None
        return result

    def _call_function(self, function: FunctionProto, call: Call, scope: Scope) -> list[Tensor]:
        """The outputs of a function's body with the call's operands for its inputs."""
        what = f"function {function.name!r}"
        if scope.depth > _DEEPEST:
            raise ModelFormatError(f"{what}: subgraphs and functions nest too deep")
        names: dict[str, Tensor] = {}
        for index, name in enumerate(function.input):
            operand = call.operands[index] if index < len(call.operands) else None
            if operand is not None:
                names[name] = operand
        defaults = FunctionLibrary.defaults(function, call.domain, call.opset)
        inner = Scope(
            scope.g,
            scope.leaves,
            names,
            None,
            FunctionLibrary.opsets(function) or scope.opsets,
            {**defaults, **call.attributes},
            f"{call.label}/",
            scope.depth + 1,
        )
        body = FunctionLibrary.body(function, names)
        self._nodes_in_functions += len(body)
        if self._nodes_in_functions > _MOST_NODES_IN_FUNCTIONS:
            raise ModelFormatError(f"{what}: calls of functions multiply without end")
        self._nodes(body, inner, what)
        return [self._output(name, inner, what) for name in function.output]

    def _count_subgraph(self, proto: GraphProto) -> None:
        """Count the nodes of a subgraph that was converted before: for an iteration, say."""
        if id(proto) in self._converted:
            self._repeated += len(proto.node)
        self._converted[id(proto)] = proto
        if self._repeated > _MOST_REPEATED:
            raise _TooManyNodes("iterations of loops multiply without end")

    # -- what went wrong --------------------------------------------------------------------

    def _problem(self, error: Exception, label: str) -> str:
        """The text of an error; where that is long arithmetic, what sizes it depends on."""
        conditions = error.requirements if isinstance(error, GraphError) else ()
        if any(len(str(condition.size)) > _READABLE for condition in conditions):
            condition = conditions[0]
            names = {symbol.name.partition("_by_")[0] for symbol in symbols(condition.size)}
            words = ", ".join(sorted(self._words.get(name, name) for name in names))
            rule = "have to be equal" if condition.equal else "must not be negative"
            return f"sizes that depend on {words} {rule}, and are not for all of them"
        return str(error).removesuffix(f" (node {label!r})")

    def _blame_condition(self, node: NodeProto, label: str, scope: Scope, first: int) -> None:
        """Add what a node with subgraphs reads to the obstacles found in these: a branch may fail
        that is never taken.
        """
        if first < len(self.obstacles):
            behind = [b for name in node.input if name for b in dependencies(scope.find(name))]
            inputs = frozenset(item for item in behind if isinstance(item, str))
            self.obstacles[first:] = [
                replace(
                    obstacle,
                    inputs=obstacle.inputs | inputs,
                    hopeless=obstacle.hopeless and not inputs,
                    label=label,
                )
                for obstacle in self.obstacles[first:]
            ]

    def _obstruct(
        self,
        node: NodeProto,
        label: str,
        scope: Scope,
        error: Exception,
        dims: Sequence[Dim] = (),
        unknown: Sequence[Tensor] = (),
        requirements: tuple[Requirement, ...] = (),
    ) -> None:
        """Note that a node could not be converted, and because of which sizes and contents."""
        operands = [scope.find(name) for name in node.input if name and name in scope]
        behind = [item for operand in operands for item in dependencies(operand)]
        if any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
            unknown = operands  # which decide what its subgraphs do
        inputs = {b for o in unknown for b in dependencies(o, floats=True) if isinstance(b, str)}
        sizes = dims or [item for item in behind if isinstance(item, Expr)]
        found = {s.name for dim in sizes for s in symbols(dim)}
        hopeless = isinstance(error, NotSupported) and not (dims or inputs)
        reason = f"{node.op_type} {label!r}: {self._problem(error, label)}"
        self.obstacles.append(
            Obstacle(reason, frozenset(found), frozenset(inputs), hopeless, label, requirements)
        )

    def _note(self, node: NodeProto, scope: Scope, reason: str) -> None:
        domain = f"{node.domain}." if node.domain and node.domain != "ai.onnx" else ""
        label = scope.prefix + label_of(node)
        self._unsupported[f"{label!r} ({domain}{node.op_type}): {reason}"] = None

    def _fail(self, error: OstinatoError, cause: Exception | None = None) -> None:
        if self._failure is None:
            error.__cause__ = cause
            self._failure = error

    def _raise_collected(self) -> None:
        if self._unsupported:
            count = len(self._unsupported)
            nodes = "1 node" if count == 1 else f"{count} nodes"
            lines = "".join(f"\n  - {line}" for line in self._unsupported)
            message = f"model {self._source.name!r}: {nodes} not supported:{lines}"
            raise _needing(UnsupportedOpError(message), self._needed)
        if self._failure is not None:
            raise self._failure


def _named_inputs(proto: GraphProto, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of a subgraph's inputs."""
    names = [value.name for value in proto.input]
    if len(names) != len(inputs):
        what = f"subgraph {proto.name!r}"
        raise ModelFormatError(f"{what} takes {len(names)} inputs, got {len(inputs)}")
    return dict(zip(names, inputs, strict=True))


def _needing(error: UnsupportedOpError, inputs: Iterable[str]) -> UnsupportedOpError:
    """``error`` with the names of ``inputs``, which the caller may fix with ``constants=``."""
    error.inputs = frozenset(inputs)
    if error.inputs:
        error.args = (f"{error}\nfixed with constants=, {sorted(error.inputs)} may make up for it",)
    return error


def _without_trailing_gaps(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    end = len(operands)
    while end and operands[end - 1] is None:
        end -= 1
    return operands[:end]


def _with_attributes(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """``node`` with its attributes in place of references to those of a call."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    copy: Any = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for name, attribute in attributes.items():
        copy.attribute.add().CopyFrom(attribute)
        copy.attribute[-1].name = name
    return copy


def _types(operands: Sequence[Tensor | None]) -> list[TensorType | None] | None:
    """The types of a call's operands; ``None`` where one is no tensor of numbers."""
    types: list[TensorType | None] = []
    for operand in operands:
        if not isinstance(operand, Value | Known | None):
            return None
        types.append(None if operand is None else operand.type)
    return types


def _no_converter(domain: str, scope: Scope) -> str:
    if domain and domain not in scope.opsets:
        return f"unknown operator domain {domain!r}"
    return "no converter for this op"
