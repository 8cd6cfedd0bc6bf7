"""Op signatures: an op, or several fused ones, with the types of the operands."""

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

__all__ = ["OpSignature", "Step"]


class Step(NamedTuple):
    """One op of a signature.

    Attributes:
        op: the op.
        attrs: its static arguments.
        operands: numbers of values; see :class:`OpSignature`.
        spelling: the arguments as text, which differs where Python values compare equal: 0.0 and
            -0.0, 1 and 1.0.
    """

    op: Op
    attrs: tuple[tuple[str, Attr], ...]
    operands: tuple[int, ...]
    spelling: str

    @staticmethod
    def of(op: Op, attrs: dict[str, Attr], operands: tuple[int, ...]) -> Step:
        """A step that applies ``op`` with these arguments."""
        items = tuple(attrs.items())
        return Step(op, items, operands, repr(items))

    def renumbered(self, numbers: Sequence[int]) -> Step:
        """The same step on other operands; ``numbers`` maps each old number to the new one."""
        return self._replace(operands=tuple([numbers[i] for i in self.operands]))


@dataclass(frozen=True)
class OpSignature:
    """The key of a compiled op: steps in order, on operands of these types.

    Its values are numbered: first the operands, then the results of the steps.

    Attributes:
        operands: the types of the operands.
        steps: the ops.
        results: numbers of the values that are results.
        in_place: whether the only result overwrites the first operand.
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
        """The names of its ops (``"exp+add"``)."""
        return "+".join(dict.fromkeys(step.op.name for step in self.steps))

    @cached_property
    def elementwise(self) -> bool:
        """Whether an element of the result depends on one element of each operand."""
        return not self.in_place and all(isinstance(step.op, Elementwise) for step in self.steps)

    @cached_property
    def variables(self) -> tuple[Symbol, ...]:
        """The Variables in its shapes and attributes."""
        return tuple(self.graph().variables.values())

    @cached_property
    def least(self) -> dict[str, int]:
        """By Variable, the least value that its ops accept, where one is known."""
        return least_values(graph_facts(self.graph())) if self.variables else {}

    def reads_once(self, operand: int) -> bool:
        """Whether the operand of this number is read by exactly one step, once."""
        return sum(step.operands.count(operand) for step in self.steps) == 1

    def graph(self) -> Graph:
        """A graph that computes it: inputs ``x0``, ``x1``, …, outputs ``y0``, ``y1``, ….

        For one in place, ``x0`` is a state whose next value is the only result.
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
