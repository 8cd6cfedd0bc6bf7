"""Notes of a compile report on nodes: taken as they are, or rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.leaves import LEAVES
from ostinato.passes.decompose import REWROTE
from ostinato.plan.report import NodeNote

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph
    from ostinato.plan.report import CompileReport

__all__ = ["note_nodes"]


def note_nodes(report: CompileReport, graph: BaseGraph) -> None:
    """Note the nodes that were rewritten, and those that the device takes as they are.

    Args:
        report: has the events of the passes.
        graph: the graph that was lowered.
    """
    rewritten = {
        label: event.what.removeprefix(REWROTE)
        for event in report.passes
        if event.what.startswith(REWROTE)
        for label in event.labels
    }
    computed = {n.label: n.op.name for n in graph.nodes if n.op.name not in LEAVES}
    report.rewritten = [NodeNote(label, op) for label, op in rewritten.items()]
    report.native = [NodeNote(la, op) for la, op in computed.items() if la not in rewritten]
