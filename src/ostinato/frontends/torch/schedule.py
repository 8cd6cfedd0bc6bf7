"""The execution of a partitioned FX graph. This module imports PyTorch."""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ostinato.errors import OstinatoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.frontends.torch.native import NativePartition
    from ostinato.frontends.torch.report import GraphReport

__all__ = ["Schedule", "attribute", "eager_function"]


def attribute(module: GraphModule, node: Node) -> Any:
    """The attribute of a module that a node stands for."""
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


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


class Step(NamedTuple):
    """Nodes that run in one go.

    Attributes:
        function: takes a tuple of results and gives a sequence of them.
        inputs, outputs: the registers that these are in.
        ends: the registers that no later step reads.
        fallback: of a native step, the nodes that run in eager where it fails.
    """

    function: Callable[[tuple[Any, ...]], Sequence[Any]]
    inputs: list[int]
    outputs: list[int]
    ends: list[int]
    fallback: Sequence[Node] | None


class Schedule:
    """Steps, native and eager, over registers: one for each result of a node that others read.

    Args:
        module: the graph; its placeholders have the first registers.
        report: counts failures.
    """

    def __init__(self, module: GraphModule, report: GraphReport) -> None:
        self._module = module
        self._report = report
        self._registers: dict[Node, int] = {}
        self._steps: list[Step] = []
        self._constants: list[tuple[int, Any]] = []
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node in placeholders:
            self._register(node)
        self._n_inputs = len(placeholders)
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._constants.append((self._register(node), attribute(module, node)))

    def _register(self, node: Node) -> int:
        return self._registers.setdefault(node, len(self._registers))

    def add_native(self, partition: NativePartition, nodes: Sequence[Node]) -> None:
        """Append a native step; a call that fails runs ``nodes`` in eager."""
        inputs = [self._registers[node] for node in partition.inputs]
        outputs = [self._register(node) for node in partition.outputs]
        self._steps.append(Step(partition, inputs, outputs, [], nodes))

    def add_eager(self, nodes: Sequence[Node]) -> None:
        """Append nodes that run in eager."""
        members = set(nodes)
        given = [node for node in nodes if any(user not in members for user in node.users)]
        read, function = self._eager(nodes, given)
        inputs = [self._registers[node] for node in read]
        outputs = [self._register(node) for node in given]
        self._steps.append(Step(function, inputs, outputs, [], None))

    def _eager(
        self, nodes: Sequence[Node], outputs: Sequence[Node]
    ) -> tuple[list[Node], Callable[[tuple[Any, ...]], Sequence[Any]]]:
        """A function that runs nodes in eager, and the nodes whose results it takes."""
        members = set(nodes)
        read = [*dict.fromkeys(n for node in nodes for n in node.all_input_nodes)]
        read = [node for node in read if node not in members]
        function = eager_function(self._module, nodes, read, outputs)
        return read, lambda given: function(*given)

    def function(self) -> Callable[[list[Any]], Sequence[Any]]:
        """A function that runs the graph on a list of arguments, and empties it."""
        (output,) = (node for node in self._module.graph.nodes if node.op == "output")
        results = output.args[0]
        listed = results if isinstance(results, tuple | list) else (results,)
        registers = [
            self._registers[item] if isinstance(item, torch.fx.Node) else None for item in listed
        ]
        boxed = self._single(registers)
        if boxed is None:
            boxed = self._general(registers, listed)
        boxed._boxed_call = True  # type: ignore[attr-defined]  # PyTorch asks for it
        return boxed

    def _single(self, results: Sequence[int | None]) -> Callable[[list[Any]], Sequence[Any]] | None:
        """The function of a graph that is one native step and gives its outputs as they are."""
        if len(self._steps) != 1 or self._constants or self._steps[0].fallback is None:
            return None
        partition, inputs, outputs, _, nodes = self._steps[0]
        if outputs != results or len(inputs) < 2:
            return None
        pick = operator.itemgetter(*inputs)

        def run(given: list[Any]) -> Sequence[Any]:
            picked: tuple[Any, ...] = pick(given)
            try:
                found = partition(picked)
            except OstinatoError as error:
                found = self._recover(error, nodes, given)
            given.clear()
            return found

        return run

    def _general(
        self, results: Sequence[int | None], fixed: Sequence[Any]
    ) -> Callable[[list[Any]], Sequence[Any]]:
        seen = {register for register in results if register is not None}
        seen |= {register for register, _ in self._constants}
        for step in reversed(self._steps):
            for register in dict.fromkeys((*step.inputs, *step.outputs)):
                if register not in seen:
                    seen.add(register)
                    step.ends.append(register)
        room = [None] * (len(self._registers) - self._n_inputs)

        def run(given: list[Any]) -> Sequence[Any]:
            values = given + room
            given.clear()
            for register, value in self._constants:
                values[register] = value
            for function, inputs, outputs, ends, nodes in self._steps:
                try:
                    found = function(tuple([values[i] for i in inputs]))
                except OstinatoError as error:
                    if nodes is None:
                        raise
                    found = self._recover(error, nodes, values, outputs)
                for register, result in zip(outputs, found, strict=True):
                    values[register] = result
                for register in ends:
                    values[register] = None
            pairs = zip(results, fixed, strict=True)
            return [item if i is None else values[i] for i, item in pairs]

        return run

    def _recover(
        self,
        error: OstinatoError,
        nodes: Sequence[Node] | None,
        values: Sequence[Any],
        outputs: Sequence[int] | None = None,
    ) -> Sequence[Any]:
        """Run a partition's nodes in eager for this call."""
        self._report.failures.append(str(error))
        warnings.warn(
            f"ostinato: a native partition of {self._report.name} failed and runs in eager this "
            f"time: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        assert nodes is not None
        wanted = self._steps[0].outputs if outputs is None else outputs
        node_of = {register: node for node, register in self._registers.items()}
        read, function = self._eager(nodes, [node_of[register] for register in wanted])
        return function(tuple([values[self._registers[node]] for node in read]))
