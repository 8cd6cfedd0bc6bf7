"""Run the parts of a graph on arrays of a framework."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato import reference
from ostinato.backends.array_api.stages import ExpertStep, HostStep, Stage
from ostinato.ir.facts import bind_size, check_facts
from ostinato.ir.leaves import PARAM
from ostinato.ops.control import ControlFlow
from ostinato.variables import Expr, evaluate, symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ostinato.backends.array_api.expert_tier import ExpertTier
    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.backends.array_api.stages import Part, StagedGraph
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["Run", "dim_number"]


def dim_number(framework: Framework, value: Value, sizes: Mapping[str, int]) -> Any:
    """The value of a node ``dim_value``, as an array."""
    number = evaluate(value.node.attrs["dim"], sizes)
    return framework.from_host(np.array(number, np.int64), copy=True)


class Run:
    """One run of a program, as far as it has come.

    Args:
        functions: the compiled stages.
        sizes: the values of Variables; those that depend on data are added.
        facts: the conditions on these.
        consumed: operands that nothing reads after the last stage.
        tier: the experts of layers that are not all on the device.

    Attributes:
        sizes: see above.
    """

    def __init__(
        self,
        functions: StageFunctions,
        sizes: dict[str, int],
        facts: Sequence[Fact] = (),
        consumed: Collection[Value] = (),
        tier: ExpertTier | None = None,
    ) -> None:
        self._tier = tier
        self._staged: dict[ResidentLayer, list[Any]] = {}
        self._consumed = frozenset(consumed)
        self._functions = functions
        self._framework = functions.framework
        self.sizes = sizes
        self._facts = list(facts)

    def parts(
        self, parts: Iterable[Part], values: dict[Value, Any], *, timed: bool = False
    ) -> list[float]:
        """Run parts in order, on ``values``, to which their results are added.

        Returns:
            The seconds of each; without ``timed``, those until it was submitted.

        Raises:
            VariableError: a size that depends on data is out of bounds.
        """
        seconds = []
        for part in parts:
            start = time.perf_counter()
            if isinstance(part, Stage):
                self._stage(part, values)
            elif isinstance(part, ExpertStep):
                self._expert_step(part, values)
            else:
                assert isinstance(part, HostStep)
                self._host_step(part, values)
            if timed:
                self._framework.wait([values[value] for value in part.results])
            seconds.append(time.perf_counter() - start)
        return seconds

    def _stage(self, stage: Stage, values: dict[Value, Any]) -> None:
        operands = [values[value] for value in stage.operands]
        operands += [dim_number(self._framework, value, self.sizes) for value in stage.numbers]
        operands += [array for layer in stage.resident for array in self._staged.pop(layer)]
        consumed = self._consumed if stage.last else ()
        function = self._functions.get(stage, self.sizes, consumed)
        values.update(zip(stage.results, function(operands), strict=True))

    def _expert_step(self, step: ExpertStep, values: dict[Value, Any]) -> None:
        assert self._tier is not None
        for layer in step.layers:
            ids = self._framework.to_host(self._array(layer.ids, values))
            self._staged[layer] = self._tier.stage(layer, ids)

    def _host_step(self, step: HostStep, values: dict[Value, Any]) -> None:
        node = step.node
        if node.op.binds_size:
            (count,) = node.inputs
            array = self._array(count, values)
            self._bind(node, int(self._framework.to_host(array)))
            values[node.outputs[0]] = array
            return
        operands = [self._on_host(value, values) for value in node.inputs]
        if isinstance(node.op, ControlFlow):
            results = self._interpreted(step, node.op, operands)
        else:
            with np.errstate(all="ignore"):
                results = reference.evaluate_node(node, operands, self.sizes)
        for value, result in zip(node.outputs, results, strict=True):
            array = np.ascontiguousarray(result, value.dtype.numpy)
            values[value] = self._framework.from_host(array.reshape(np.shape(result)), copy=True)

    def _on_host(self, value: Value, values: dict[Value, Any]) -> np.ndarray[Any, Any]:
        """The elements of a value; those of experts in a file are on the host anyway."""
        if self._tier is not None and value.node.op is PARAM:
            stored = self._tier.host.matrices.get(value.name)
            if stored is not None:
                return stored
        return self._framework.to_host(self._array(value, values))

    def _array(self, value: Value, values: dict[Value, Any]) -> Any:
        found = values.get(value)
        return self._functions.constant(value) if found is None else found

    def _bind(self, node: Node, count: int) -> None:
        """Give a data-dependent Variable its value, and check what follows."""
        (size,) = symbols(node.attrs["size"])
        bind_size(f"{node.op.name} {node.label!r}", size, count, self.sizes)
        self.sizes[size.name] = count
        check_facts(self._facts, self.sizes)
        self._facts = [fact for fact in self._facts if not fact.names <= self.sizes.keys()]

    def _interpreted(
        self, step: HostStep, op: ControlFlow, operands: Sequence[np.ndarray[Any, Any]]
    ) -> Sequence[Any]:
        """The results of a node that runs nested graphs, as arrays of the host."""
        nested = {id(staged.graph): staged for _, staged in step.nested}
        attrs = {
            name: evaluate(attr, self.sizes) if isinstance(attr, Expr) else attr
            for name, attr in step.node.attrs.items()
        }
        zeros = [
            np.zeros([evaluate(dim, self.sizes) for dim in value.shape], value.dtype.numpy)
            for value in step.node.outputs
        ]
        return op.interpret(
            lambda graph, arrays: self._nested(nested[id(graph)], graph, arrays),
            operands,
            zeros,
            attrs,
        )

    def _nested(
        self, staged: StagedGraph, graph: BaseGraph, arrays: Sequence[np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """The outputs of a nested graph."""
        values = {
            leaf: self._framework.from_host(np.array(array, order="C"), copy=True)
            for leaf, array in zip(graph.inputs.values(), arrays, strict=True)
        }
        values.update((value, self._functions.constant(value)) for value in staged.constants)
        self.parts(staged.parts, values)
        return [
            np.array(self._framework.to_host(values[value])) for value in graph.outputs.values()
        ]
