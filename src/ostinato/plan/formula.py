"""What a node of a recorded session computes: an op, or several that were fused into one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ostinato.ir.facts import least_values
from ostinato.ir.graph_facts import graph_facts
from ostinato.ops.base import Elementwise
from ostinato.ops.builder import Graph
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType
    from ostinato.variables import Symbol

__all__ = ["Formula", "Step"]


class Step(NamedTuple):
    """One op of a formula.

    Attributes:
        op: what is applied.
        attrs: its static arguments.
        operands: numbers of values; see :class:`Formula`.
        spelling: the arguments as text, which tells apart what Python takes for equal: 0.0 and
            -0.0, 1 and 1.0.
    """

    op: Op
    attrs: tuple[tuple[str, Attr], ...]
    operands: tuple[int, ...]
    spelling: str

    @staticmethod
    def of(op: Op, attrs: dict[str, Attr], operands: tuple[int, ...]) -> Step:
        """An op with these arguments."""
        items = tuple(attrs.items())
        return Step(op, items, operands, repr(items))

    def renumbered(self, numbers: Sequence[int]) -> Step:
        """The same on other operands: for each number, the new one."""
        return self._replace(operands=tuple([numbers[i] for i in self.operands]))


@dataclass(frozen=True)
class Formula:
    """Ops on operands, in order. Formulas that compute the same from the same types are equal.

    Its values are numbered: first the operands, then the results of the steps.

    Attributes:
        operands: their types.
        steps: the ops.
        results: numbers of the values that it gives.
        in_place: whether its only result is written over its first operand.
    """

    operands: tuple[TensorType, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    in_place: bool = False

    @cached_property
    def _hash(self) -> int:
        return hash((self.operands, self.steps, self.results, self.in_place))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def name(self) -> str:
        """What it computes, in a word or two (``"exp+add"``)."""
        return "+".join(dict.fromkeys(step.op.name for step in self.steps))

    @cached_property
    def elementwise(self) -> bool:
        """Whether an element of the result depends on one element of each operand."""
        return not self.in_place and all(isinstance(step.op, Elementwise) for step in self.steps)

    @cached_property
    def variables(self) -> tuple[Symbol, ...]:
        """The Variables that its shapes and attributes mention."""
        return tuple(self.graph().variables.values())

    @cached_property
    def least(self) -> dict[str, int]:
        """By Variable, the least value that its ops can do with, where that is known."""
        return least_values(graph_facts(self.graph())) if self.variables else {}

    def reads_once(self, operand: int) -> bool:
        """Whether just one step reads the operand of this number, and reads it once."""
        return sum(step.operands.count(operand) for step in self.steps) == 1

    def graph(self) -> Graph:
        """The formula as a graph: inputs ``x0``, ``x1``, …, outputs ``y0``, ``y1``, ….

        Where it works in place ``x0`` is a state, whose next value is the only result.
        """
        graph = Graph(self.name)
        values = []
        for number, type_ in enumerate(self.operands):
            leaf = graph.state if self.in_place and number == 0 else graph.input
            values.append(leaf(f"x{number}", type_.shape, type_.dtype))
        for step in self.steps:
            values += graph.apply(step.op, [values[i] for i in step.operands], dict(step.attrs))
        if self.in_place:
            graph.assign(values[0], values[self.results[0]])
        else:
            graph.set_outputs({f"y{i}": values[number] for i, number in enumerate(self.results)})
        return graph
