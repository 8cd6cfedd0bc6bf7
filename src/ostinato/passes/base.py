"""The base class of passes, and the events that passes record for the compile report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node

__all__ = ["Event", "Pass", "PassReport"]


@dataclass(frozen=True)
class Event:
    """One kind of change that one pass made, or declined to make.

    Attributes:
        pass_name: the pass.
        what: what it did, such as ``"recovered layer_norm"``.
        labels: the nodes it did it to.
        refused: why it declined, where it nearly did; else empty.
    """

    pass_name: str
    what: str
    labels: tuple[str, ...]
    refused: str = ""

    @property
    def count(self) -> int:
        return len(self.labels)

    def __str__(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        why = f" refused: {self.refused} ({', '.join(self.labels[:3])})" if self.refused else ""
        return f"{self.pass_name}: {self.what}{why}{times}"


class PassReport:
    """The changes that passes made to one graph, in order; see :attr:`events`."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str, str], list[str]] = {}

    def changed(self, pass_: Pass, what: str, node: Node) -> None:
        """Record that ``pass_`` did ``what`` to ``node``."""
        self._labels.setdefault((pass_.name, what, ""), []).append(node.label)

    def refused(self, pass_: Pass, what: str, node: Node, why: str) -> None:
        """Record that ``pass_`` nearly did ``what`` to ``node``, and why it did not."""
        self._labels.setdefault((pass_.name, what, why), []).append(node.label)

    @property
    def events(self) -> list[Event]:
        """The changes and refusals, grouped by pass, kind and reason, in order of appearance."""
        return [
            Event(pass_name, what, tuple(labels), why)
            for (pass_name, what, why), labels in self._labels.items()
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))


class Pass(ABC):
    """A graph rewrite that preserves semantics.

    A pass has no state; one with options is a small frozen dataclass. Its docstring states its
    contract. A pass takes a valid graph and gives a valid graph with the same inputs, params,
    states, outputs and assignments, whose results are the same, to the bit or within the rounding
    of one op; it never changes the graph it is given.

    Attributes:
        name: what the compile report and ``disabled=`` call it.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        """The rewritten graph, or ``graph`` itself when there is nothing to do."""
