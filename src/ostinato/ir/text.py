"""The text form of graphs: one line a node, complete but for the values of constants.

::

    graph "matmul_bias_gelu" {
      variable n in 1..512
      variable k <= 4*n
      %0 = input("x") : f32[n,4]
      %1 = param("w") : f32[4,3]
      %2 = constant<f32[] sha256:3f1b0ac2c9bcb4a1>  # 0.5
      %3 = matmul(%0, %1) : f32[n,3]  @"encoder/fc1"
      %4 = multiply(%3, %2) : f32[n,3]
      output "y" = %4
    }

A Variable has its bounds, or, where its value depends on data, its greatest value.

A nested graph stands before the first node that holds it, as a graph under the digest of its own
text, and the node's attribute is that digest::

      graph sha256:9b3c66f1a04ee1d7 "body" {
        ...
      }
      %7 = loop(%1, %2, body=sha256:9b3c66f1a04ee1d7, ...) : f32[4]

A label (``@"..."``) shows where a front end gave one. A constant shows the first digits of the
SHA-256 of its bytes; :func:`graph_constants` collects the arrays that
:func:`ostinato.ops.parser.parse_graph` then needs. The text is canonical: two graphs are the same
graph exactly when their texts are equal, which is how :func:`graphs_equal` decides.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.dtypes import DType
from ostinato.errors import GraphError
from ostinato.ir.graph import BaseGraph
from ostinato.ir.leaves import CONSTANT, STATE, Leaf, is_inout
from ostinato.lazy import LazyModule
from ostinato.variables import Expr

if TYPE_CHECKING:
    import json
    from collections.abc import Container, Iterator, Mapping

    from ostinato.ir.graph import Node
    from ostinato.ir.op import Attr
else:
    json = LazyModule("json")

__all__ = [
    "DIGEST_DIGITS",
    "constant_digest",
    "format_attr",
    "format_attrs",
    "format_graph",
    "format_node",
    "graph_constants",
    "graphs_equal",
    "has_given_label",
]

#: The number of hexadecimal digits of a constant's SHA-256 in the text.
DIGEST_DIGITS = 16

#: The names of nested graphs, by the identity of the graph.
_Digests: TypeAlias = "dict[int, str]"

_UNKNOWN: _Digests = {}

_AUTOMATIC_LABEL = re.compile(r"_\d+\Z")


def format_graph(graph: BaseGraph) -> str:
    """The whole graph, as ``str(graph)`` shows it."""
    return _format_graph(graph, {})


def _format_graph(graph: BaseGraph, digests: _Digests) -> str:
    names = frozenset(graph.variables)
    lines = [f"graph {json.dumps(graph.name)} {{"]
    variables = list(graph.variables.values())
    given = sorted((v for v in variables if v.bound is None), key=lambda symbol: symbol.name)
    lines += [f"  variable {v.name} in {v.min}..{v.max}" for v in given]
    lines += [f"  variable {v.name} <= {v.bound}" for v in variables if v.bound is not None]
    shown: set[str] = set()
    for node in graph.nodes:
        lines += [f"  {line}" for line in _nested_lines(node, shown, digests)]
        lines.append(f"  {format_node(node, names, digests)}")
    for name, value in graph.assignments.items():
        lines.append(f"  assign {json.dumps(name)} = %{value.id}")
    for name, value in graph.outputs.items():
        lines.append(f"  output {json.dumps(name)} = %{value.id}")
    return "\n".join([*lines, "}"])


def _nested_lines(node: Node, shown: set[str], digests: _Digests) -> Iterator[str]:
    """The nested graphs of a node that are not yet among those ``shown``."""
    for attr in node.attrs.values():
        if isinstance(attr, BaseGraph):
            text = _format_graph(attr, digests)
            name = digests[id(attr)] = _nested_name(text)
            if name not in shown:
                shown.add(name)
                yield from text.replace("graph ", f"graph {name} ", 1).split("\n")


def format_node(node: Node, variables: Container[str] = (), digests: _Digests = _UNKNOWN) -> str:
    """One node's line.

    Args:
        variables: the names that the graph's Variables have taken.
        digests: of nested graphs, as far as they are known, by identity.
    """
    results = ", ".join(f"%{value.id}" for value in node.outputs)
    label = f"  @{json.dumps(node.label)}" if has_given_label(node) else ""
    if node.op is CONSTANT:
        array = node.attrs["array"]
        comment = f"  # {_scalar(array.reshape(()))}" if array.size == 1 else ""
        shown = constant_digest(array)[:DIGEST_DIGITS]
        return f"{results} = constant<{node.outputs[0].type} sha256:{shown}>{label}{comment}"
    types = ", ".join(str(value.type) for value in node.outputs)
    return f"{results} = {node.op.name}({_arguments(node, variables, digests)}) : {types}{label}"


def format_attrs(
    attrs: Mapping[str, Attr], variables: Container[str] = (), digests: _Digests = _UNKNOWN
) -> str:
    """Attributes as ``key=value``, separated by commas."""
    return ", ".join(
        f"{key}={format_attr(value, variables, digests)}" for key, value in attrs.items()
    )


def format_attr(value: Attr, variables: Container[str] = (), digests: _Digests = _UNKNOWN) -> str:
    """One attribute's value.

    A word such as ``f32`` or ``inf`` that is also the name of a Variable is written ``$f32``.

    Raises:
        GraphError: an attribute never holds this.
    """
    if isinstance(value, tuple):
        items = [format_attr(item, variables) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Expr):
        return str(value)
    if isinstance(value, BaseGraph):
        return digests.get(id(value)) or _nested_name(format_graph(value))
    if isinstance(value, DType):
        text = value.short
    elif value is None or isinstance(value, bool | int | float):
        text = repr(value)
    else:
        raise GraphError(f"an attribute cannot hold {type(value).__name__} {value!r}")
    word = text.lstrip("-")
    return text.replace(word, f"${word}") if word in variables else text


def _nested_name(text: str) -> str:
    """The name of a nested graph with this text."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]}"


def constant_digest(array: np.ndarray[Any, Any]) -> str:
    """The SHA-256 of an array's bytes in C order, in hexadecimal."""
    return hashlib.sha256(_bytes(array).data).hexdigest()


def graph_constants(graph: BaseGraph) -> dict[str, np.ndarray[Any, Any]]:
    """By digest, every array that the text form leaves out (the values of params excepted)."""
    arrays = [node.attrs["array"] for node in graph.nodes if node.op is CONSTANT]
    arrays += [
        state.node.attrs["init"]
        for state in graph.states.values()
        if not is_inout(state.node) and _uniform(state.node.attrs["init"]) is None
    ]
    found = {constant_digest(array): array for array in arrays}
    for nested in graph.nested():
        found.update(graph_constants(nested))
    return found


def graphs_equal(a: BaseGraph, b: BaseGraph) -> bool:
    """Whether two graphs have the same nodes, leaves, labels, outputs, assignments and constants.

    The values that params may carry, and source lines, are not compared.
    """
    return format_graph(a) == format_graph(b)


def has_given_label(node: Node) -> bool:
    """Whether a front end (or user) named this node, as opposed to an automatic ``add_7``."""
    prefix = node.op.name
    return not (
        node.label.startswith(prefix) and _AUTOMATIC_LABEL.fullmatch(node.label, len(prefix))
    )


def _arguments(node: Node, variables: Container[str], digests: _Digests) -> str:
    if isinstance(node.op, Leaf):
        return ", ".join(_leaf_arguments(node))
    parts = [f"%{value.id}" for value in node.inputs]
    if node.attrs:
        parts.append(format_attrs(node.attrs, variables, digests))
    return ", ".join(parts)


def _leaf_arguments(node: Node) -> Iterator[str]:
    yield json.dumps(node.attrs["name"])
    if is_inout(node):
        yield "inout=True"
    elif node.op is STATE:
        init = node.attrs["init"]
        uniform = _uniform(init)
        if uniform is None:
            yield f"init=sha256:{constant_digest(init)[:DIGEST_DIGITS]}"
        elif uniform.tobytes().strip(b"\0"):
            yield f"init={_scalar(uniform)}"


def _uniform(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The one element that all elements equal (a zero for an empty array), else ``None``."""
    if array.size == 0:
        return np.zeros((), array.dtype)
    first = array.reshape(-1)[:1]
    if not any(array.strides):  # a broadcast scalar, which is what most states start from
        return first.reshape(())
    same = _bytes(array).reshape(array.size, -1)
    return first.reshape(()) if (same == same[0]).all() else None


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _scalar(array: np.ndarray[Any, Any]) -> str:
    return repr(array.astype(np.float64).item() if array.dtype.kind == "V" else array.item())
