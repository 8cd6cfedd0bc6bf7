"""``parse_graph``: the text form of a graph, read back.

The parser lives above the op table because it looks names up in it. It runs nothing from the
text: every node is built, and type-checked, by the graph itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.errors import GraphError, OstinatoError
from ostinato.ir.leaves import LEAVES, as_numpy
from ostinato.ir.syntax import Cursor, Digest
from ostinato.ir.text import constant_digest
from ostinato.ops import OPS
from ostinato.ops.builder import Graph
from ostinato.variables import DataVariable, Expr, Variable

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.ir.op import Attr
    from ostinato.ir.types import TensorType

__all__ = ["Constants", "parse_graph"]

#: Arrays by digest (all of it, or as many digits as the text shows), or arrays alone.
Constants: TypeAlias = Mapping[str, Any] | Iterable[Any]

#: The greatest depth of nested graphs.
_MAX_NESTING = 48

#: Exceptions of an op's rules when they meet attributes that no front end would pass.
_RULE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OstinatoError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse_graph(text: str, constants: Constants | None = None) -> Graph:
    """The graph that ``text``, as ``str(graph)`` gives it, describes.

    Args:
        text: the text form; blank lines and comments (``# ...``) are ignored.
        constants: the arrays behind ``sha256:...``, by digest, or in any order without names.
            ``ostinato.ir.text.graph_constants`` collects them from a graph.

    Raises:
        GraphError: a line is no line of the text form, a node does not fit, or a constant is
            missing; the message gives the line's number.
    """
    if not isinstance(text, str):
        raise GraphError(f"parse_graph: expected the text of a graph, got {type(text).__name__}")
    parser = _Parser(_Arrays(constants))
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        try:
            parser.line(line)
        except _RULE_ERRORS as error:
            raise GraphError(f"line {number}: {error or type(error).__name__}") from None
    return parser.finish()


class _Arrays:
    """The arrays that the caller supplies, by the digest of their contents."""

    def __init__(self, constants: Constants | None) -> None:
        if isinstance(constants, Mapping):
            self._named = {
                str(k).removeprefix("sha256:"): as_numpy(v) for k, v in constants.items()
            }
        else:
            arrays = [as_numpy(array) for array in constants or ()]
            self._named = {constant_digest(array): array for array in arrays}

    def get(self, digest: str, type_: TensorType) -> np.ndarray[Any, Any]:
        """The array whose digest starts with ``digest``, as a tensor of ``type_``.

        Raises:
            GraphError: there is none, or it holds something else.
        """
        found = [
            array
            for name, array in self._named.items()
            if name.startswith(digest) or (name and digest.startswith(name))
        ]
        if not found:
            raise GraphError(
                f"no array was supplied for constant sha256:{digest} ({type_}); pass it in "
                "constants="
            )
        array = found[0]
        if not constant_digest(array).startswith(digest):
            raise GraphError(f"the array supplied for sha256:{digest} has other contents")
        if array.nbytes != type_.max_bytes:
            raise GraphError(f"the array supplied for sha256:{digest} is no {type_}")
        # Equal bytes have equal digests, whatever their dtype and shape: the text decides those.
        return np.frombuffer(array.tobytes(), type_.dtype.numpy).reshape(_sizes(type_))


class _Parser:
    """The state between lines: the graph so far and the values by the names the text gives them."""

    def __init__(self, arrays: _Arrays, depth: int = 0) -> None:
        self._arrays = arrays
        self._depth = depth
        self._graph: Graph | None = None
        self._closed = False
        self._values: dict[str, Value] = {}
        self._variables: dict[str, Expr] = {}
        self._outputs: dict[str, Value] = {}
        self._nested: dict[str, Graph] = {}
        self._inner: tuple[str, _Parser] | None = None  # the nested graph in progress

    def line(self, line: str) -> None:
        if self._inner is not None:
            self._nested_line(*self._inner, line)
            return
        cursor = Cursor(line, self._variables)
        if cursor.at_kind("end"):
            return
        if self._closed:
            raise cursor.error("nothing after the closing brace")
        if self._graph is None:
            self._header(cursor)
        elif cursor.accept("}"):
            self._closed = True
        elif cursor.at_kind("value"):
            self._node(cursor, self._graph)
        elif cursor.accept("graph"):
            self._begin_nested(cursor)
        elif cursor.accept("variable"):
            self._variable(cursor)
        elif cursor.accept("output"):
            self._output(cursor)
        elif cursor.accept("assign"):
            self._assignment(cursor, self._graph)
        else:
            raise cursor.error("a node, graph, variable, assign, output or '}'")
        cursor.end()

    def finish(self) -> Graph:
        if self._graph is None or not self._closed:
            raise GraphError("the text ends before the graph's closing brace")
        if self._outputs:
            self._graph.set_outputs(self._outputs)
        return self._graph

    def _header(self, cursor: Cursor) -> None:
        cursor.expect("graph")
        self._open(cursor)

    def _open(self, cursor: Cursor) -> None:
        self._graph = Graph(cursor.string())
        cursor.expect("{")

    def _begin_nested(self, cursor: Cursor) -> None:
        name = cursor.take("digest").partition(":")[2]
        if self._depth == _MAX_NESTING:
            raise GraphError(f"graphs are nested more than {_MAX_NESTING} deep")
        inner = _Parser(self._arrays, self._depth + 1)
        inner._open(cursor)
        self._inner = (name, inner)

    def _nested_line(self, name: str, inner: _Parser, line: str) -> None:
        inner.line(line)
        if inner._closed:
            self._nested[name] = inner.finish()
            self._inner = None

    def _variable(self, cursor: Cursor) -> None:
        name = cursor.take("word")
        if name in self._variables:
            raise GraphError(f"Variable {name!r} is declared twice")
        if cursor.accept("<"):
            cursor.expect("=")
            self._variables[name] = DataVariable(name, cursor.dim())
            return
        cursor.expect("in")
        low = cursor.integer()
        cursor.expect("..")
        self._variables[name] = Variable(name, low, cursor.integer())

    def _output(self, cursor: Cursor) -> None:
        name = cursor.string()
        cursor.expect("=")
        if name in self._outputs:
            raise GraphError(f"output {name!r} is listed twice")
        self._outputs[name] = self._operand(cursor)

    def _assignment(self, cursor: Cursor, graph: Graph) -> None:
        name = cursor.string()
        cursor.expect("=")
        if name not in graph.states:
            raise GraphError(f"assign: the graph has no state {name!r}")
        graph.assign(graph.states[name], self._operand(cursor))

    def _node(self, cursor: Cursor, graph: Graph) -> None:
        names = [cursor.take("value")]
        while cursor.accept(","):
            names.append(cursor.take("value"))
        cursor.expect("=")
        op = cursor.take("word")
        if op == "constant":
            cursor.expect("<")
            type_ = cursor.tensor_type()
            digest = cursor.take("digest").partition(":")[2]
            cursor.expect(">")
            array = self._arrays.get(digest, type_)
            with graph.labelled(_label(cursor)):
                results: tuple[Value, ...] = (graph.constant(array),)
        else:
            operands, attrs = self._arguments(cursor)
            types = _types(cursor)
            with graph.labelled(_label(cursor)):
                results = self._apply(graph, op, operands, attrs, types)
        self._define(names, results)

    def _apply(
        self,
        graph: Graph,
        name: str,
        operands: list[Value],
        attrs: dict[str, Attr],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...]:
        if name in LEAVES:
            return (self._leaf(graph, name, operands, attrs, types),)
        if name not in OPS:
            raise GraphError(f"unknown op {name!r}")
        attrs = {key: self._attribute(name, attr) for key, attr in attrs.items()}
        results = graph.apply(OPS[name], operands, attrs)
        inferred = tuple(value.type for value in results)
        if inferred != types:
            raise GraphError(f"{name} gives {_listed(inferred)}, the text says {_listed(types)}")
        return results

    def _attribute(self, op: str, attr: Attr) -> Attr:
        if not isinstance(attr, Digest):
            return attr
        if attr not in self._nested:
            raise GraphError(
                f"{op}: an attribute cannot be an array, and no graph sha256:{attr} stands above"
            )
        return self._nested[attr]

    def _leaf(
        self,
        graph: Graph,
        kind: str,
        operands: list[Value],
        attrs: dict[str, Attr],
        types: tuple[TensorType, ...],
    ) -> Value:
        name = attrs.pop("name", None)
        known = {"init", "inout"} if kind == "state" else set()
        if operands or len(types) != 1 or set(attrs) - known or len(attrs) > 1:
            raise GraphError(f'{kind}: expected {kind}("name") : type')
        (type_,) = types
        if attrs.get("inout") is True:
            return graph.inout(name, type_.shape, type_.dtype)
        if kind == "state":
            init = attrs.get("init", 0)
            if isinstance(init, Digest):
                init = self._arrays.get(init, type_)
            elif not isinstance(init, int | float):
                raise GraphError(f"state {name!r}: init is a number, got {init!r}")
            return graph.state(name, type_.shape, type_.dtype, init)
        build = graph.input if kind == "input" else graph.param
        return build(name, type_.shape, type_.dtype)

    def _arguments(self, cursor: Cursor) -> tuple[list[Value], dict[str, Attr]]:
        """Operands first, then attributes; a leaf's name stands where operands would."""
        operands: list[Value] = []
        attrs: dict[str, Attr] = {}
        cursor.expect("(")
        first = True
        while not cursor.accept(")"):
            if not first:
                cursor.expect(",")
            if cursor.next_is_assignment():
                key = cursor.take("word")
                cursor.expect("=")
                if key in attrs:
                    raise GraphError(f"attribute {key!r} is given twice")
                attrs[key] = cursor.attribute()
            elif first and cursor.at_kind("string"):
                attrs["name"] = cursor.string()
            else:
                operands.append(self._operand(cursor))
            first = False
        return operands, attrs

    def _operand(self, cursor: Cursor) -> Value:
        name = cursor.take("value")
        if name not in self._values:
            raise GraphError(f"{name} is not defined above")
        return self._values[name]

    def _define(self, names: list[str], results: tuple[Value, ...]) -> None:
        if len(names) != len(results):
            raise GraphError(f"{len(names)} names are given for {len(results)} results")
        for name, value in zip(names, results, strict=True):
            if name in self._values:
                raise GraphError(f"{name} is defined twice")
            self._values[name] = value


def _label(cursor: Cursor) -> str:
    return cursor.string() if cursor.accept("@") else ""


def _types(cursor: Cursor) -> tuple[TensorType, ...]:
    cursor.expect(":")
    types = [cursor.tensor_type()]
    while cursor.accept(","):
        types.append(cursor.tensor_type())
    return tuple(types)


def _listed(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))


def _sizes(type_: TensorType) -> tuple[int, ...]:
    for dim in type_.shape:
        if not isinstance(dim, int):
            raise GraphError(f"the shape of a constant is fixed, got {type_}")
    return type_.shape  # type: ignore[return-value]
