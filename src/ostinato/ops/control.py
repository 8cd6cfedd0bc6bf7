"""Control flow: ops whose attributes are nested graphs.

A nested graph is closed: it has inputs and constants, and every outer value that it reads is an
operand of its node. It mentions Variables of the graph around it, and holds no params or states: a
param is an operand as any other value, and a state's next value is a result that the graph around
assigns.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.dtypes import BOOL, INT64
from ostinato.errors import GraphError
from ostinato.ir.graph import BaseGraph
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.variables import Expr, maximum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.variables import Dim

__all__ = ["COND", "FAMILY", "LOOP", "Cond", "ControlFlow", "Loop", "LoopParts"]

Array = np.ndarray[Any, Any]

#: Evaluates a nested graph: its outputs for arrays of its inputs.
Evaluate: TypeAlias = "Callable[[BaseGraph, Sequence[Array]], list[Array]]"


class ControlFlow(Op):
    """An op that runs nested graphs."""

    @abstractmethod
    def interpret(
        self,
        evaluate: Evaluate,
        operands: Sequence[Array],
        zeros: Sequence[Array],
        attrs: dict[str, Attr],
    ) -> Sequence[Array]:
        """The results, computed by evaluating nested graphs one after the other.

        Args:
            evaluate: evaluates a nested graph.
            operands: arrays of the node's operands.
            zeros: arrays of zeros, of the results' types, to be filled or replaced.
            attrs: the attributes, with numbers for dims.
        """

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        raise GraphError(f"{self.name} is evaluated graph by graph; see interpret")

    def check_graph(
        self, attribute: str, graph: Attr, operands: Sequence[TensorType]
    ) -> list[TensorType]:
        """The types of a nested graph's outputs, after checking that it is closed and fits.

        Raises:
            GraphError: it is no graph, holds params or states, or its inputs are not ``operands``.
        """
        self.expect(isinstance(graph, BaseGraph), f"{attribute} is a graph, got {graph!r:.60}")
        for kind, leaves in (("param", graph.params), ("state", graph.states)):
            self.expect(not leaves, f"{attribute} has the {kind} {next(iter(leaves), '')!r}")
        live = [v.name for v in graph.variables.values() if v.bound is not None]
        self.expect(not live, f"{attribute} has sizes that depend on data ({', '.join(live)})")
        declared = [value.type for value in graph.inputs.values()]
        self.expect(
            declared == list(operands),
            f"the inputs of {attribute} are {_listed(declared)}, expected {_listed(operands)}",
        )
        return [value.type for value in graph.outputs.values()]


class Cond(ControlFlow):
    """The outputs of one of two graphs: only the one that a condition picks is run.

    Operands are the condition, a bool scalar, and then the inputs of both graphs.
    """

    name = "cond"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect(bool(operands), "takes a condition")
        _expect_scalar(self, "condition", operands[0], BOOL)
        then, other = (
            self.check_graph(name, attrs.get(name), operands[1:])
            for name in ("then_graph", "else_graph")
        )
        self.expect(bool(then), "its graphs give no results")
        self.expect(
            then == other,
            f"then_graph gives {_listed(then)} and else_graph {_listed(other)}; expected the same "
            "types",
        )
        return tuple(then)

    def interpret(
        self,
        evaluate: Evaluate,
        operands: Sequence[Array],
        zeros: Sequence[Array],
        attrs: dict[str, Attr],
    ) -> Sequence[Array]:
        taken = attrs["then_graph" if operands[0] else "else_graph"]
        return evaluate(taken, operands[1:])

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return maximum(_flops(attrs["then_graph"]), _flops(attrs["else_graph"]))


class LoopParts:
    """The operands or results of a loop by their use.

    Args:
        attrs: of the loop.
    """

    def __init__(self, attrs: dict[str, Attr]) -> None:
        self.counted: bool = attrs["counted"]
        self.conditional: bool = attrs["conditional"]
        self.first_carried = self.counted + self.conditional
        self.first_scanned: int = self.first_carried + attrs["carried"]
        self.first_captured: int = self.first_scanned + attrs["scanned"]


class Loop(ControlFlow):
    """A graph that is run again and again, on what it gave the time before.

    Operands, in order: the trip count, an int64 scalar, if ``counted``; whether to begin, a bool
    scalar, if ``conditional``; the first ``carried`` values; ``scanned`` tensors, of which each
    iteration takes its part along the first axis; captured values, the same in each iteration.

    The body's inputs are the number of the iteration, an int64 scalar, the carried values, the
    parts of the scanned ones, and the captured values. Its outputs are whether to go on, if
    ``conditional``; the next carried values; and parts of results that are stacked along a new
    first axis. Results are the last carried values, then the stacked ones.

    Attributes of a node: ``body``; ``carried`` and ``scanned``, numbers of operands; ``trips``, the
    number of iterations, or the most of them, or ``None``; ``counted``; ``conditional``; and
    ``backwards``, for each scanned operand and each stacked result, whether its last part is that
    of the first iteration.

    Stacked results have ``trips`` parts. Those of iterations that a run does not come to are
    undefined; the body counts the iterations where parts have to be told apart.
    """

    name = "loop"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        expected = ("body", "carried", "scanned", "trips", "counted", "conditional", "backwards")
        self.expect(tuple(attrs) == expected, f"takes the attributes {expected}")
        trips, scanned = attrs["trips"], attrs["scanned"]
        parts = LoopParts(attrs)
        self.expect(
            len(operands) >= parts.first_captured,
            f"takes at least {parts.first_captured} operands, got {len(operands)}",
        )
        if parts.counted:
            _expect_scalar(self, "trip count", operands[0], INT64)
        if parts.conditional:
            _expect_scalar(self, "condition", operands[parts.counted], BOOL)
        carried = operands[parts.first_carried : parts.first_scanned]
        slices = [
            self._part(number, operand, trips)
            for number, operand in enumerate(operands[parts.first_scanned : parts.first_captured])
        ]
        captured = operands[parts.first_captured :]
        counter = TensorType(INT64, ())
        inputs = [counter, *carried, *slices, *captured]
        given = self.check_graph("body", attrs["body"], inputs)
        if parts.conditional:
            self.expect(bool(given), "its body gives no condition")
            _expect_scalar(self, "condition that the body gives", given.pop(0), BOOL)
        after, stacked = given[: len(carried)], given[len(carried) :]
        self.expect(
            after == list(carried),
            f"it carries {_listed(carried)}, and its body gives {_listed(after)}; expected the "
            "same types",
        )
        self._check_trips(parts, trips, bool(stacked or scanned), any(attrs["backwards"]))
        self.expect(bool(given), "its body gives no results")
        self.expect(
            len(attrs["backwards"]) == scanned + len(stacked),
            f"backwards is {attrs['backwards']}, expected {scanned + len(stacked)} bools",
        )
        return (*carried, *(TensorType(t.dtype, (trips, *t.shape)) for t in stacked))

    def _part(self, number: int, operand: TensorType, trips: Attr) -> TensorType:
        """The type of an iteration's part of a scanned operand."""
        self.expect(
            bool(operand.shape) and operand.shape[0] == trips,
            f"scanned operand {number} is {operand}; expected {trips} parts along its first axis",
        )
        return TensorType(operand.dtype, operand.shape[1:])

    def _check_trips(self, parts: LoopParts, trips: Attr, needed: bool, backwards: bool) -> None:
        exact = trips is not None and not parts.counted and not parts.conditional
        self.expect(
            trips is not None or not needed,
            "stacked results and scanned operands need a size for the most iterations",
        )
        self.expect(exact or not backwards, "only a loop whose trip count is a size goes backwards")
        self.expect(
            exact or parts.counted or parts.conditional,
            "it has neither a trip count nor a condition, and would never end",
        )
        if trips is not None:
            whole = isinstance(trips, int | Expr) and not isinstance(trips, bool)
            self.expect(
                whole and (isinstance(trips, Expr) or trips >= 0),
                f"a trip count is a size, got {trips!r}",
            )

    def interpret(
        self,
        evaluate: Evaluate,
        operands: Sequence[Array],
        zeros: Sequence[Array],
        attrs: dict[str, Attr],
    ) -> Sequence[Array]:
        parts = LoopParts(attrs)
        limits = [] if attrs["trips"] is None else [attrs["trips"]]
        limits += [int(operands[0])] if parts.counted else []
        going = bool(operands[parts.counted]) if parts.conditional else True
        carried = list(operands[parts.first_carried : parts.first_scanned])
        scanned = operands[parts.first_scanned : parts.first_captured]
        captured = operands[parts.first_captured :]
        stacked = zeros[len(carried) :]
        backwards = attrs["backwards"]
        iteration = 0
        while going and (not limits or iteration < min(limits)):
            at = [min(limits) - 1 - iteration if b else iteration for b in backwards]
            slices = [x[i] for x, i in zip(scanned, at, strict=False)]
            number = np.asarray(iteration, np.int64)
            given = evaluate(attrs["body"], [number, *carried, *slices, *captured])
            if parts.conditional:
                going = bool(given.pop(0))
            carried = given[: len(carried)]
            for whole, i, part in zip(
                stacked, at[len(scanned) :], given[len(carried) :], strict=True
            ):
                whole[i] = part
            iteration += 1
        return [*carried, *stacked]

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        trips = attrs["trips"]
        return _flops(attrs["body"]) * (1 if trips is None else trips)


def _expect_scalar(op: Op, what: str, type_: TensorType, dtype: Any) -> None:
    wanted = TensorType(dtype, ())
    op.expect(type_ == wanted, f"the {what} is {type_}, expected {wanted}")


def _flops(graph: BaseGraph) -> Dim:
    total: Dim = 0
    for node in graph.nodes:
        total = total + node.op.flops([value.type for value in node.inputs], node.attrs)
    return total


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


COND, LOOP = Cond(), Loop()
FAMILY: tuple[Op, ...] = (COND, LOOP)
