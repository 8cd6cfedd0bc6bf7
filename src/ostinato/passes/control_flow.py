"""Control flow made simpler: known branches and short loops inlined, invariants moved out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.ir.leaves import CONSTANT, INPUT
from ostinato.ops.builder import Graph
from ostinato.ops.control import COND, LOOP, LoopParts
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import array_of
from ostinato.passes.rewrite import Rewriter, Uses
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["ControlFlow"]


@dataclass(frozen=True)
class ControlFlow(Pass):
    """Simplifies nodes that run nested graphs.

    A ``cond`` whose condition is a constant becomes its branch. A ``loop`` of a few iterations
    becomes these. What is the same in each iteration of a loop is computed before it; constants
    are brought into nested graphs, where they can be folded; results and captured values that
    nothing reads are dropped.

    Attributes:
        most_unrolled: nodes, of all iterations together, that a loop is unrolled to at most.
    """

    most_unrolled: int = 32
    name: ClassVar[str] = "control_flow"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter, uses = Rewriter(graph), Uses(graph)
        for node in rewriter.nodes():
            if node.op not in (COND, LOOP):
                rewriter.copy(node)
                continue
            what, results = self._simplified(rewriter, node, uses)
            if results is None:
                rewriter.copy(node)
            else:
                rewriter.replace(node, results)
                report.changed(self, what, node)
        return rewriter.finish()

    def _simplified(
        self, rewriter: Rewriter, node: Node, uses: Uses
    ) -> tuple[str, Sequence[Value | None] | None]:
        """A description of the change, and the new results; ``None``: there is no change."""
        graph, operands = rewriter.graph, rewriter.operands(node)
        if node.op is COND and (known := array_of(operands[0])) is not None:
            taken = node.attrs["then_graph" if known else "else_graph"]
            return "inlined a branch", _inlined(graph, taken, operands[1:])
        if node.op is LOOP and self._is_short(node):
            with graph.labelled(node.label):
                return "unrolled loop", _unrolled(graph, node, operands)
        read = [uses.is_result(v) or bool(uses.readers(v)) for v in node.outputs]
        signature = _Signature(node, operands, read)
        with graph.labelled(node.label):
            if not signature.simplify(graph):
                return "", None
            results = graph.apply(node.op, signature.operands, signature.attrs)
        given = iter(results)
        return f"simplified {node.op.name}", [
            next(given) if kept else None for kept in signature.kept
        ]

    def _is_short(self, node: Node) -> bool:
        trips, parts = node.attrs["trips"], LoopParts(node.attrs)
        if not isinstance(trips, int) or parts.counted or parts.conditional:
            return False
        stacked = len(node.outputs) > node.attrs["carried"]
        if trips == 0:
            return not stacked
        computed = sum(n.op not in (INPUT, CONSTANT) for n in node.attrs["body"].nodes)
        return trips * max(computed, 1) <= self.most_unrolled


def _inlined(graph: Graph, nested: BaseGraph, operands: Iterable[Value]) -> list[Value]:
    """The outputs of a nested graph, computed in ``graph``."""
    new = dict(zip(nested.inputs.values(), operands, strict=True))
    for node in nested.nodes:
        if node.op is not INPUT:
            copies = graph.adopt(node, [new[value] for value in node.inputs])
            new.update(zip(node.outputs, copies, strict=True))
    return [new[value] for value in nested.outputs.values()]


def _unrolled(graph: Graph, node: Node, operands: Sequence[Value]) -> list[Value]:
    """The results of a loop of a known number of iterations, which are computed in a row."""
    parts, trips, backwards = LoopParts(node.attrs), node.attrs["trips"], node.attrs["backwards"]
    carried = list(operands[: parts.first_scanned])
    scanned = operands[parts.first_scanned : parts.first_captured]
    captured = operands[parts.first_captured :]
    stacked: list[list[Value]] = [[] for _ in backwards[len(scanned) :]]
    for i in range(trips):
        number = graph.constant(np.int64(i))
        slices = [
            graph.getitem(x, trips - 1 - i if b else i)
            for x, b in zip(scanned, backwards, strict=False)
        ]
        given = _inlined(graph, node.attrs["body"], [number, *carried, *slices, *captured])
        carried = given[: len(carried)]
        for found, part in zip(stacked, given[len(carried) :], strict=True):
            found.append(part)
    wholes = [
        graph.stack(found[::-1] if b else found)
        for found, b in zip(stacked, backwards[len(scanned) :], strict=True)
    ]
    return [*carried, *wholes]


class _Signature:
    """The operands, nested graphs and results of a node, while they are reduced.

    Args:
        node: a ``cond`` or a ``loop``.
        operands: in the graph under construction.
        read: for each result, whether anything reads it.
    """

    def __init__(self, node: Node, operands: Sequence[Value], read: Sequence[bool]) -> None:
        self.operands = list(operands)
        self.attrs = dict(node.attrs)
        self.kept = list(read)
        self._is_loop = node.op is LOOP
        self._names = ("body",) if self._is_loop else ("then_graph", "else_graph")
        self._parts = LoopParts(node.attrs) if self._is_loop else None

    def simplify(self, graph: Graph) -> bool:
        """Reduce what can be; whether anything was."""
        before = (self.operands, [self.attrs[name] for name in self._names])
        changed = self._drop_results()
        self._sink_constants()
        if self._is_loop:
            self._hoist(graph)
        self._drop_captured()
        after = [self.attrs[name] for name in self._names]
        return (
            changed
            or before[0] != self.operands
            or any(a is not b for a, b in zip(before[1], after, strict=True))
        )

    @property
    def _head(self) -> int:
        """The number of operands before the captured ones."""
        return 1 if self._parts is None else self._parts.first_captured

    @property
    def _fixed_inputs(self) -> int:
        """The number of a nested graph's inputs before the captured ones."""
        if self._parts is None:
            return 0
        carried: int = self.attrs["carried"]
        scanned: int = self.attrs["scanned"]
        return 1 + carried + scanned

    def _drop_results(self) -> bool:
        """Drop results that nothing reads; those that a loop carries stay."""
        carried = self.attrs["carried"] if self._is_loop else 0
        self.kept[:carried] = [True] * carried
        if not any(self.kept):  # a node has at least one result
            self.kept[0] = True
        if all(self.kept):
            return False
        keep = self.kept
        if self._parts is not None:
            keep = [True] * self._parts.conditional + keep
            scanned = self.attrs["scanned"]
            flags = self.attrs["backwards"]
            stacked = zip(flags[scanned:], self.kept[carried:], strict=True)
            self.attrs["backwards"] = (*flags[:scanned], *(f for f, kept in stacked if kept))
        for name in self._names:
            nested = self.attrs[name]
            outputs = [v for v, kept in zip(nested.outputs.values(), keep, strict=True) if kept]
            self.attrs[name] = _rebuilt(nested, list(nested.inputs.values()), {}, outputs)
        return True

    def _sink_constants(self) -> None:
        captured = self.operands[self._head :]
        if not any(v.node.op is CONSTANT for v in captured):
            return
        for name in self._names:
            nested = self.attrs[name]
            inputs = list(nested.inputs.values())
            outer = dict(zip(inputs[self._fixed_inputs :], captured, strict=True))
            constants = {v: o.node for v, o in outer.items() if o.node.op is CONSTANT}
            rest = [v for v in inputs if v not in constants]
            self.attrs[name] = _rebuilt(nested, rest, constants, list(nested.outputs.values()))
        kept = [v for v in captured if v.node.op is not CONSTANT]
        self.operands[self._head :] = kept

    def _hoist(self, graph: Graph) -> None:
        """Compute before the loop what is the same in each iteration."""
        body = self.attrs["body"]
        inputs = list(body.inputs.values())
        outer = dict(zip(inputs[self._fixed_inputs :], self.operands[self._head :], strict=True))
        moved = [n for n in body.nodes if n.op not in (INPUT, CONSTANT)]
        same: dict[Value, Value] = dict(outer)
        constants = {n.outputs[0]: n for n in body.nodes if n.op is CONSTANT}
        hoisted: list[Node] = []
        for node in moved:
            read = node.inputs
            if not read or not all(v in same or v in constants for v in read):
                continue
            if all(v in constants for v in read):
                continue
            operands = [same[v] if v in same else graph.adopt(constants[v], ())[0] for v in read]
            same.update(zip(node.outputs, graph.adopt(node, operands), strict=True))
            hoisted.append(node)
        if not hoisted:
            return
        gone = set(hoisted)
        needed = {v for n in body.nodes if n not in gone for v in n.inputs}
        needed.update(body.outputs.values())
        crossing = [v for n in hoisted for v in n.outputs if v in needed]
        outputs = list(body.outputs.values())
        self.attrs["body"] = _rebuilt(body, inputs, {}, outputs, crossing)
        self.operands += [same[v] for v in crossing]

    def _drop_captured(self) -> None:
        """Drop captured values that no nested graph reads."""
        graphs = [self.attrs[name] for name in self._names]
        used: list[bool] = [False] * (len(self.operands) - self._head)
        for nested in graphs:
            read = {v for n in nested.nodes for v in n.inputs} | set(nested.outputs.values())
            captured = list(nested.inputs.values())[self._fixed_inputs :]
            used = [u or v in read for u, v in zip(used, captured, strict=True)]
        if all(used):
            return
        for name, nested in zip(self._names, graphs, strict=True):
            inputs = list(nested.inputs.values())
            pairs = zip(inputs[self._fixed_inputs :], used, strict=True)
            rest = inputs[: self._fixed_inputs] + [v for v, u in pairs if u]
            self.attrs[name] = _rebuilt(nested, rest, {}, list(nested.outputs.values()))
        kept = [v for v, u in zip(self.operands[self._head :], used, strict=True) if u]
        self.operands[self._head :] = kept


def _rebuilt(
    nested: BaseGraph,
    inputs: Sequence[Value],
    constants: dict[Value, Node],
    outputs: Sequence[Value],
    further: Collection[Value] = (),
) -> Graph:
    """A nested graph with other inputs and outputs, without what these do not depend on.

    Args:
        inputs: of its inputs, those that it keeps, in order.
        constants: by input, the constant that is in its place.
        outputs: its new outputs.
        further: computed values that are inputs from now on.
    """
    graph = Graph(nested.name)
    new: dict[Value, Value] = {}
    for number, value in enumerate((*inputs, *further)):
        new[value] = graph.input(f"input_{number}", value.shape, value.dtype)
    for value, node in constants.items():
        (new[value],) = graph.adopt(node, ())
    needed = _needed(outputs, new)
    for node in nested.nodes:
        if node in needed:
            copies = graph.adopt(node, [new[value] for value in node.inputs])
            new.update(
                (value, copy)
                for value, copy in zip(node.outputs, copies, strict=True)
                if value not in new
            )
    graph.set_outputs([new[value] for value in outputs])
    return graph


def _needed(outputs: Sequence[Value], given: Collection[Value]) -> set[Node]:
    """The nodes that compute ``outputs`` from values that are given."""
    needed: set[Node] = set()
    stack = [value for value in outputs if value not in given]
    while stack:
        node = stack.pop().node
        if node not in needed:
            needed.add(node)
            stack.extend(value for value in node.inputs if value not in given)
    return needed
