"""The oracle: a graph evaluated node by node with NumPy, in float64 between roundings.

Each op computes on float64 copies of its float operands, by the op's own rule, and its result is
rounded once to the dtype that the graph declares. Integers are computed in their dtype and wrap.
Every backend is tested against this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.conversion import round_to
from ostinato.dtypes import DType
from ostinato.errors import GraphError, InputError
from ostinato.ir.binding import check_values, solve_dims, variable_values
from ostinato.ir.facts import bind_size, check_facts
from ostinato.ir.graph_facts import graph_facts
from ostinato.ir.leaves import CONSTANT, INPUT, PARAM, STATE, as_numpy, is_inout
from ostinato.ir.unbuilt import at_inputs, specialization_of
from ostinato.ops.base import Elementwise
from ostinato.ops.control import ControlFlow
from ostinato.ops.namespace import ORACLE, as_oracle
from ostinato.records import dataclass
from ostinato.variables import Expr, symbols
from ostinato.variables import evaluate as evaluate_dim

if TYPE_CHECKING:
    from ostinato.ir.binding import VariableValues
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ir.types import TensorType

__all__ = ["ReferenceResult", "evaluate", "evaluate_node", "run"]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class ReferenceResult:
    """The results of one evaluation of a graph.

    Attributes:
        outputs: the results by name, in output order.
        states: what every state holds after the run.
        values: every value that was computed.
        variables: the value of every Variable.
    """

    outputs: dict[str, Array]
    states: dict[str, Array]
    values: dict[Value, Array]
    variables: dict[str, int]


def evaluate(
    graph: BaseGraph,
    inputs: Arrays | None = None,
    params: Arrays | None = None,
    *,
    states: Arrays | None = None,
    variables: VariableValues | None = None,
) -> list[Array]:
    """The outputs of ``graph``, in order.

    Args:
        graph: the graph.
        inputs: an array for every input, by name.
        params: weights by name; those left out take the value that the graph holds.
        states: what states hold before the run; those left out hold their initial value.
        variables: values of Variables that the inputs' shapes do not give.

    Raises:
        InputError: an input or param is unknown, missing, or of another shape or dtype.
        VariableError: a Variable has no value, two values, or one out of bounds.
        GraphError: the graph has no outputs.
    """
    result = run(graph, inputs, params, states=states, variables=variables)
    return list(result.outputs.values())


def run(
    graph: BaseGraph,
    inputs: Arrays | None = None,
    params: Arrays | None = None,
    *,
    states: Arrays | None = None,
    variables: VariableValues | None = None,
) -> ReferenceResult:
    """As :func:`evaluate`, with the states after the run and every value on the way."""
    if not graph.outputs and not graph.assignments:
        raise GraphError(f"graph {graph.name!r} has no outputs: call set_outputs first")
    if (way := specialization_of(graph)) is not None and way.needed:
        arrays = _arrays("input", inputs, graph.inputs, {})
        graph = at_inputs(graph, arrays)
        inputs = {name: array for name, array in arrays.items() if name in graph.inputs}
    inouts = {name: leaf for name, leaf in graph.states.items() if is_inout(leaf.node)}
    own = {name: leaf for name, leaf in graph.states.items() if name not in inouts}
    start = {name: leaf.node.attrs["init"] for name, leaf in own.items()}
    brought = _arrays("input", inputs, {**graph.inputs, **inouts}, {})
    given = {
        INPUT: {name: brought[name] for name in graph.inputs},
        PARAM: _arrays("param", params, graph.params, graph.param_values),
        STATE: {**_arrays("state", states, own, start), **{n: brought[n] for n in inouts}},
    }
    leaves = {**graph.inputs, **inouts}
    shapes = {name: (leaf.shape, brought[name].shape) for name, leaf in leaves.items()}
    given_ones = {n: v for n, v in graph.variables.items() if v.bound is None}
    known = {} if variables is None else variable_values(variables, given_ones)
    sizes = solve_dims(shapes, known)
    check_values(given_ones, sizes)
    with np.errstate(all="ignore"):
        values = _node_values(graph, given, sizes)
    after = {**given[STATE], **{n: values[v] for n, v in graph.assignments.items()}}
    outputs = {name: values[value] for name, value in graph.outputs.items()}
    return ReferenceResult(outputs, after, values, sizes)


def _node_values(
    graph: BaseGraph, given: Mapping[Any, Mapping[str, Array]], sizes: dict[str, int]
) -> dict[Value, Array]:
    """Every value of a graph, for arrays of its leaves by kind and name.

    Args:
        sizes: of the Variables; data-dependent ones are added.
    """
    every = graph_facts(graph)
    check_facts(every, sizes)
    facts = [f for f in every if not f.names <= sizes.keys()]
    values: dict[Value, Array] = {}
    for node in graph.nodes:
        if node.op in given:
            values[node.outputs[0]] = given[node.op][node.attrs["name"]]
        elif node.op is CONSTANT:
            values[node.outputs[0]] = node.attrs["array"]
        else:
            operands = [values[v] for v in node.inputs]
            if node.op.binds_size:
                facts = _bind_size(node, int(operands[0]), sizes, facts)
            values.update(zip(node.outputs, evaluate_node(node, operands, sizes), strict=True))
    return values


def _bind_size(node: Node, value: int, sizes: dict[str, int], facts: list[Fact]) -> list[Fact]:
    """Add a data-dependent size to ``sizes``; the facts that can not be checked yet."""
    (size,) = symbols(node.attrs["size"])
    bind_size(f"{node.op.name} {node.label!r}", size, value, sizes)
    sizes[size.name] = value
    check_facts(facts, sizes)
    return [fact for fact in facts if not fact.names <= sizes.keys()]


def evaluate_node(
    node: Node, operands: Sequence[Array], sizes: Mapping[str, int] = MappingProxyType({})
) -> list[Array]:
    """The results of one node, of the types that the graph declares."""
    if isinstance(node.op, Elementwise):
        wanted = node.op.operand_dtypes(*(v.dtype for v in node.inputs), **node.attrs)
        operands = [_converted(a, d) for a, d in zip(operands, wanted, strict=True)]
    attrs = {name: _resolved(value, sizes) for name, value in node.attrs.items()}
    if isinstance(node.op, ControlFlow):
        results: Any = _interpret(node, node.op, operands, attrs, sizes)
    else:
        results = node.op.evaluate(ORACLE, *map(as_oracle, operands), **attrs)
    if not isinstance(results, tuple | list):
        results = (results,)
    rounded = [round_to(r, v.dtype) for r, v in zip(results, node.outputs, strict=True)]
    for value, array in zip(node.outputs, rounded, strict=True):
        declared = tuple(evaluate_dim(d, sizes) for d in value.shape)
        if array.shape != declared:
            raise GraphError(
                f"{node}: expected {value.type}, here {declared}, and computed {array.shape}"
            )
    return rounded


def _interpret(
    node: Node,
    op: ControlFlow,
    operands: Sequence[Array],
    attrs: dict[str, Any],
    sizes: Mapping[str, int],
) -> Sequence[Array]:
    """The results of a node that runs nested graphs."""

    def run_nested(graph: BaseGraph, arrays: Sequence[Array]) -> list[Array]:
        given = {INPUT: dict(zip(graph.inputs, arrays, strict=True))}
        values = _node_values(graph, given, dict(sizes))
        return [values[value] for value in graph.outputs.values()]

    shapes = [tuple(evaluate_dim(d, sizes) for d in value.shape) for value in node.outputs]
    zeros = [np.zeros(s, v.dtype.numpy) for s, v in zip(shapes, node.outputs, strict=True)]
    return op.interpret(run_nested, operands, zeros, attrs)


def _converted(array: Array, dtype: DType) -> Array:
    """An operand of an elementwise op in the dtype that the op computes with."""
    if array.dtype == dtype.numpy:
        return array
    return round_to(ORACLE.cast(as_oracle(array), dtype), dtype)


def _resolved(attr: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with every symbolic dim replaced by its value."""
    if isinstance(attr, Expr):
        return evaluate_dim(attr, sizes)
    if isinstance(attr, tuple):
        return tuple(_resolved(item, sizes) for item in attr)
    return attr


def _arrays(
    kind: str, given: Arrays | None, leaves: Mapping[str, Value], defaults: Arrays
) -> dict[str, Array]:
    """An array for every leaf of a kind, of its dtype and rank (and shape, where that is fixed)."""
    given = given or {}
    unknown = [repr(name) for name in given if name not in leaves]
    if unknown:
        known = ", ".join(map(repr, leaves)) or "none"
        raise InputError(f"there is no {kind} {', '.join(unknown)}; the graph has {known}")
    missing = [repr(name) for name in leaves if name not in given and name not in defaults]
    if missing:
        raise InputError(f"no array was given for {kind} {', '.join(missing)}")
    return {
        name: _checked(f"{kind} {name!r}", given.get(name, defaults.get(name)), leaf.type)
        for name, leaf in leaves.items()
    }


def _checked(what: str, array: Any, type_: TensorType) -> Array:
    try:
        result = as_numpy(array)
        dtype = DType.parse(result.dtype)
    except GraphError as error:
        raise InputError(f"{what}: {error}") from None
    if dtype != type_.dtype:
        raise InputError(f"{what} is {type_}, got {dtype}; cast it first")
    fits = len(result.shape) == type_.ndim and all(
        size == dim or not isinstance(dim, int)
        for size, dim in zip(result.shape, type_.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{what} is {type_}, got shape {list(result.shape)}")
    return result
