"""Evaluate nodes with the arrays of a framework, at known sizes: the body of what it compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ostinato.errors import OstinatoError, UnsupportedOpError
from ostinato.ir.leaves import Leaf
from ostinato.lower.lowering import live_nodes
from ostinato.ops.base import Elementwise
from ostinato.variables import Expr
from ostinato.variables import evaluate as evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["Evaluator", "NativeRule", "Readers"]


class Readers:
    """The nodes that read values.

    Args:
        nodes: all that there are.
        results: values that are read by what is no node.
    """

    def __init__(self, nodes: Iterable[Node], results: Iterable[Value]) -> None:
        self._results = frozenset(results)
        self._nodes: dict[Value, list[Node]] = {}
        for node in nodes:
            for value in dict.fromkeys(node.inputs):
                self._nodes.setdefault(value, []).append(node)

    def of(self, value: Value) -> list[Node] | None:
        """The readers of a value; ``None``: not all of them are nodes."""
        return None if value in self._results else self._nodes.get(value, [])


class NativeRule(Protocol):
    """A framework's own way to compute an op, in place of the op's rule."""

    def __call__(
        self, evaluator: Evaluator, node: Node, operands: Sequence[Any], attrs: dict[str, Any], /
    ) -> Any:
        """The result, or a tuple of them; they are rounded to the declared dtypes afterwards.

        Args:
            evaluator: has the namespace, and evaluates nested graphs.
            node: the node.
            operands: in their own dtypes.
            attrs: with numbers for dims.
        """


class Evaluator:
    """Evaluates nodes: each float of 16 bits is computed in float32, and rounded after every node.

    Args:
        xp: the framework's functions.
        rules: by op, the framework's own.
        sizes: the values of Variables.
        instead: by node and position, the operands that stand in for the node's own.

    Attributes:
        xp: see above.
        readers: of the values of the nodes that are being evaluated.
    """

    readers: Readers

    def __init__(
        self,
        xp: Any,
        rules: Mapping[str, NativeRule],
        sizes: Mapping[str, int],
        instead: Mapping[tuple[Node, int], Any] | None = None,
    ) -> None:
        self.xp = xp
        self._instead = {} if instead is None else instead
        self._rules = rules
        self._sizes = sizes

    def nodes(
        self, nodes: Sequence[Node], values: dict[Value, Any], results: Iterable[Value]
    ) -> None:
        """Evaluate nodes in order, and add their results to ``values``.

        Args:
            nodes: the nodes.
            values: has the arrays of all else that they read.
            results: values that are read afterwards.
        """
        self.readers = Readers(nodes, results)
        for node in nodes:
            operands = [
                self._instead[node, position]
                if (node, position) in self._instead
                else self.value(value, values)
                for position, value in enumerate(node.inputs)
            ]
            values.update(zip(node.outputs, self.node(node, operands), strict=True))

    def value(self, value: Value, values: dict[Value, Any]) -> Any:
        """The array of a value: a known one, or that of a constant."""
        array = values.get(value)
        if array is None:
            array = values[value] = self.constant(value.node.attrs["array"])
        return array

    def graph(self, graph: BaseGraph, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a nested graph."""
        values: dict[Value, Any] = dict(zip(graph.inputs.values(), inputs, strict=True))
        nodes = [node for node in live_nodes(graph) if not isinstance(node.op, Leaf)]
        around = self.readers
        self.nodes(nodes, values, graph.outputs.values())
        self.readers = around
        return [self.value(value, values) for value in graph.outputs.values()]

    def constant(self, array: np.ndarray[Any, Any]) -> Any:
        """A constant's elements; where all of them are one, that one, repeated."""
        if array.size > 1 and not any(array.strides):
            return self.xp.broadcast_to(
                self.xp.asarray(array[(slice(1),) * array.ndim].copy()), array.shape
            )
        return self.xp.asarray(array)

    def node(self, node: Node, operands: Sequence[Any]) -> list[Any]:
        """The results of a node, in the dtypes that the graph declares.

        Raises:
            UnsupportedOpError: the framework cannot compute it.
        """
        try:
            return self._results(node, operands)
        except OstinatoError:
            raise
        except Exception as error:  # a framework's errors are of any class
            what = f"{type(error).__name__}: {error}"
            raise UnsupportedOpError(f"{node} {node.source}".rstrip() + f": {what:.500}") from error

    def _results(self, node: Node, operands: Sequence[Any]) -> list[Any]:
        xp, attrs = self.xp, {name: self._resolved(value) for name, value in node.attrs.items()}
        rule = self._rules.get(node.op.name)
        if rule is not None:
            results = rule(self, node, operands, attrs)
        else:
            results = self.by_op(node, operands, attrs)
        if not isinstance(results, tuple | list):
            results = (results,)
        rounded = [
            xp.to(result, value.dtype) for result, value in zip(results, node.outputs, strict=True)
        ]
        for value, array in zip(node.outputs, rounded, strict=True):
            declared = tuple([evaluate_dim(dim, self._sizes) for dim in value.shape])
            if tuple(array.shape) != declared:
                raise UnsupportedOpError(
                    f"{node}: expected {value.type}, here {declared}, and computed "
                    f"{tuple(array.shape)}"
                )
        return rounded

    def by_op(self, node: Node, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of a node by the op's own rule; see :class:`NativeRule`."""
        xp = self.xp
        if isinstance(node.op, Elementwise):
            wanted = node.op.operand_dtypes(*(v.dtype for v in node.inputs), **node.attrs)
            operands = [xp.cast(x, dtype) for x, dtype in zip(operands, wanted, strict=True)]
        if not node.op.takes_narrow:  # else it moves or converts elements
            operands = [xp.widened(x) for x in operands]
        return node.op.evaluate(xp, *operands, **attrs)

    def dim(self, dim: Any) -> int:
        """The value of a dim."""
        return evaluate_dim(dim, self._sizes)

    def _resolved(self, attr: Any) -> Any:
        """An attribute with every symbolic dim replaced by its value."""
        if isinstance(attr, Expr):
            return evaluate_dim(attr, self._sizes)
        if isinstance(attr, tuple):
            return tuple([self._resolved(item) for item in attr])
        return attr
