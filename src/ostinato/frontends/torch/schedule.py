"""The execution of a partitioned FX graph. This module imports PyTorch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule

from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import Node

    from ostinato.frontends.torch.native import NativePartition
    from ostinato.frontends.torch.report import GraphReport

__all__ = ["Schedule", "eager_function"]


def eager_function(
    module: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> Callable[..., tuple[Any, ...]]:
    """A function that runs some nodes of a graph in eager.

    Args:
        module: has the graph.
        nodes: in order.
        inputs: the nodes whose results it takes.
        outputs: the nodes whose results it gives.
    """
    graph = Graph()
    copies: dict[Node, Node] = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in outputs))
    function: Callable[..., tuple[Any, ...]] = GraphModule(module, graph).forward
    return function


class Schedule:
    """Steps, native and eager, over registers.

    Args:
        n_inputs: the number of placeholders, which have the first registers.
        report: counts failures.
    """

    def __init__(self, module: GraphModule, report: GraphReport) -> None:
        self._module = module
        self._report = report
        self._registers: dict[Node, int] = {}
        self._steps: list[tuple[Any, list[int], list[int], list[int], Any]] = []
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._n_inputs = len(placeholders)
        for node in placeholders:
            self._register(node)
        self._constants: list[tuple[int, Any]] = []
        for node in module.graph.nodes:
            if node.op == "get_attr":
                value = module
                for part in str(node.target).split("."):
                    value = getattr(value, part)
                self._constants.append((self._register(node), value))

    def _register(self, node: Node) -> int:
        return self._registers.setdefault(node, len(self._registers))

    def add_native(self, partition: NativePartition, nodes: Sequence[Node]) -> None:
        """Append a native step; a call that fails runs ``nodes`` in eager."""
        inputs = [self._registers[n] for n in partition.inputs]
        outputs = [self._register(n) for n in partition.outputs]
        self._steps.append((partition, inputs, outputs, [], nodes))

    def add_eager(self, nodes: Sequence[Node]) -> None:
        """Append nodes that run in eager."""
        function, read, given = self._eager(nodes)
        inputs = [self._registers[n] for n in read]
        outputs = [self._register(n) for n in given]
        self._steps.append((function, inputs, outputs, [], None))

    def _eager(self, nodes: Sequence[Node]) -> tuple[Callable[..., Any], list[Node], list[Node]]:
        members = set(nodes)
        reads = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in members)
        gives = [node for node in nodes if any(user not in members for user in node.users)]
        return eager_function(self._module, nodes, list(reads), gives), list(reads), gives

    def finish(self) -> None:
        """Complete the schedule: find where registers end and what the graph gives."""
        (output,) = (n for n in self._module.graph.nodes if n.op == "output")
        results = output.args[0]
        listed = results if isinstance(results, tuple | list) else (results,)
        self._results = [
            (self._registers[item], None) if isinstance(item, torch.fx.Node) else (-1, item)
            for item in listed
        ]
        kept = {register for register, _ in self._results}
        seen = set(kept) | {register for register, _ in self._constants}
        for _, inputs, outputs, ends, _ in reversed(self._steps):
            for register in dict.fromkeys((*inputs, *outputs)):
                if register not in seen:
                    seen.add(register)
                    ends.append(register)

    def __call__(self, given: list[Any]) -> list[Any]:
        """Run on a list of arguments, which is emptied."""
        values = given + [None] * (len(self._registers) - len(given))
        given.clear()
        for register, value in self._constants:
            values[register] = value
        for function, inputs, outputs, ends, nodes in self._steps:
            if nodes is None:
                results = function(*[values[i] for i in inputs])
            else:
                try:
                    results = function(*[values[i] for i in inputs])
                except OstinatoError as error:
                    results = self._recover(error, function, nodes, values)
            for register, result in zip(outputs, results, strict=True):
                values[register] = result
            for register in ends:
                values[register] = None
        return [item if i < 0 else values[i] for i, item in self._results]

    def _recover(
        self,
        error: OstinatoError,
        partition: NativePartition,
        nodes: Sequence[Node],
        values: Sequence[Any],
    ) -> Sequence[Any]:
        """Run a partition's nodes in eager for this call."""
        self._report.failures.append(str(error))
        warnings.warn(
            f"ostinato: a native partition of {self._report.name} failed and runs in eager this "
            f"time: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        members = set(nodes)
        reads = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in members)
        function = eager_function(self._module, nodes, list(reads), partition.outputs)
        return function(*[values[self._registers[n]] for n in reads])

    #: For PyTorch: arguments arrive in one list.
    _boxed_call = True
