"""The backend: the device's presence, its capabilities, and compilation for it."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.backends.base import Backend, Progress
from ostinato.backends.common.experts import ExpertsInFile
from ostinato.backends.common.lowering_options import lowering_options
from ostinato.backends.common.node_notes import note_nodes
from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.ir.graph import BaseGraph
from ostinato.ir.graph_facts import graph_facts
from ostinato.ir.stored import ParamSource
from ostinato.lower.lowering import lower
from ostinato.passes.pipeline import run_passes
from ostinato.plan.report import CompileReport, KernelNote
from ostinato.plan.values import Origin

from .executable import LoopsExecutable
from .rules import CAPABILITIES, TABLE

__all__ = ["LoopsBackend"]


class LoopsBackend(Backend):
    """The device ``LOOPS:0``. Its context is the default one: it records nothing."""

    capabilities = CAPABILITIES

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self.device = device

    @staticmethod
    def count() -> int:
        return 1

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
    ) -> LoopsExecutable:
        report = CompileReport(graph.name, str(self.device))
        with report.timed("passes"):
            lowered, report.passes = run_passes(
                graph,
                capabilities=CAPABILITIES,
                optimize=options.optimize,
                disabled=options.disabled_passes,
                verify=options.verify,
            )
        with report.timed("lowering"):
            program, report.refused = lower(
                lowered, TABLE, lowering_options(options), facts=graph_facts(graph)
            )
        note_nodes(report, lowered)
        report.kernels = [KernelNote(c.title, c.nodes, c.title) for c in program.calls]
        report.prepared = [KernelNote(c.title, c.nodes, c.title) for c in program.prepare]
        return LoopsExecutable(
            program, Origin(graph, lowered), report, self.context, params, options
        )
