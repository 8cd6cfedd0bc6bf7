"""The identity of a graph apart from its nodes: name, interface, leaves, facts."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.types import TensorType
    from ostinato.variables import Symbol

__all__ = ["GraphRecord", "Interface"]


@dataclass(frozen=True, eq=False)
class GraphRecord:
    """A graph's text form and the arrays that the text leaves out: enough to build it again.

    Attributes:
        text: as :mod:`ostinato.ir.text` has it.
        constants: the arrays, by the SHA-256 of their bytes.
    """

    text: str
    constants: Mapping[str, np.ndarray[Any, Any]]

    @staticmethod
    def of(graph: BaseGraph) -> GraphRecord:
        """Make the record of a graph as it is now. The values of params are no part of it."""
        from ostinato.ir.text import format_graph, graph_constants

        return GraphRecord(format_graph(graph), graph_constants(graph))

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for equal graphs only."""
        parts = "\n".join([self.text, *sorted(self.constants)])
        return hashlib.sha256(parts.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Interface:
    """The signature of a graph: its name, leaves, outputs and assignments.

    Attributes:
        name: of the graph.
        inputs, params, states, outputs: types by name.
        variables: all that the graph mentions, by name.
        expert_inputs: the inputs that number experts, and how many experts there are.
        facts: the conditions on Variables that its nodes rely on.
        written: the inputs whose arrays runs write to; they are the last ones.
    """

    name: str
    inputs: Mapping[str, TensorType]
    params: Mapping[str, TensorType]
    states: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    variables: Mapping[str, Symbol]
    expert_inputs: Mapping[str, int]
    facts: tuple[Fact, ...]
    written: frozenset[str] = frozenset()
