"""Notes of a compile report: nodes taken as they are or rewritten, and the kernels they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.leaves import LEAVES
from ostinato.passes.decompose import REWROTE
from ostinato.plan.report import KernelNote, NodeNote

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.program import Call, Program
    from ostinato.plan.report import CompileReport

__all__ = ["note_kernels", "note_nodes"]


def note_nodes(report: CompileReport, graph: BaseGraph) -> None:
    """Note the nodes that were rewritten, those that the device takes as they are, and the params.

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
    for param in graph.params.values():
        name = str(param.dtype)
        report.params[name] = report.params.get(name, 0) + param.type.max_bytes


def note_kernels(report: CompileReport, program: Program, name: Callable[[Call], str]) -> None:
    """Note which nodes of the lowered graph are in which kernel.

    Args:
        report: the report.
        program: the lowered graph.
        name: the device's name of a call's code.
    """
    report.kernels = [KernelNote(c.title, c.nodes, name(c)) for c in program.calls]
    report.prepared = [KernelNote(c.title, c.nodes, name(c)) for c in program.prepare]
