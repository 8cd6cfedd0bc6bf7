"""A graph after passes, lowering and placement: a device's compile up to its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ostinato.backends.common.buffer_layout import BufferLayout
from ostinato.backends.common.report_notes import note_nodes
from ostinato.ir.facts import least_values
from ostinato.ir.graph_facts import graph_facts
from ostinato.passes.pipeline import run_passes
from ostinato.plan.preparation import non_retained_params
from ostinato.plan.report import CompileReport
from ostinato.plan.values import Origin
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.backends.base import Capabilities
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.dtypes import DType
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph
    from ostinato.lower.fusion.regions import Refusal
    from ostinato.lower.program import LoweredBuffer, Program

__all__ = ["LoweredGraph", "lower_graph"]

P = TypeVar("P", bound="Program")
P_co = TypeVar("P_co", bound="Program", covariant=True)


class Lowering(Protocol[P_co]):
    """A device's lowering; see :func:`ostinato.lower.lowering.lower`."""

    def __call__(self, graph: BaseGraph, *, facts: Sequence[Fact]) -> tuple[P_co, list[Refusal]]:
        """The program of a graph, and the fusions that were refused."""


@dataclass(frozen=True, eq=False)
class LoweredGraph(Generic[P]):
    """A graph, lowered to kernels of a device.

    Attributes:
        program: kernels, buffers, and the order in which kernels run.
        layout: slots and offsets of the buffers.
        non_retained: non-retained params.
        origin: the graph before and after the passes.
        report: the compile report, so far.
        least: by Variable, the least value that the graph accepts, where one is known.
    """

    program: P
    layout: BufferLayout
    non_retained: frozenset[LoweredBuffer]
    origin: Origin
    report: CompileReport
    least: Mapping[str, int]

    def place(self, buffer: LoweredBuffer) -> tuple[int, int]:
        """The slot and the offset of a buffer; of a non-retained param, ``(-1 - n, 0)``.

        There, ``n`` is its position among the params.
        """
        if buffer in self.non_retained:
            return -1 - list(self.program.params.values()).index(buffer), 0
        return self.layout.locations[buffer]


def lower_graph(
    graph: BaseGraph,
    options: CompileOptions,
    device: Device,
    capabilities: Capabilities,
    lower: Lowering[P],
    *,
    resident: Callable[[P], Iterable[LoweredBuffer]] | None = None,
    built: BaseGraph | None = None,
    bfloat16_rows: Callable[[], bool] | None = None,
    widened_rows: Callable[[DType], bool] | None = None,
) -> LoweredGraph[P]:
    """Run the passes on ``graph``, lower it, and place its buffers.

    Args:
        graph, options: see :meth:`ostinato.backends.base.Backend.compile`.
        device: for the report.
        capabilities: of the device.
        lower: the device's lowering; returns the fusions that it refused as well.
        resident: the buffers that live as long as the program, whether or not calls use them.
        built: the user's graph, if that is another object than ``graph``.
        bfloat16_rows, widened_rows: see :func:`~ostinato.passes.pipeline.run_passes`.

    Raises:
        UnsupportedOpError: every node that the device has no way to compute.
    """
    report = CompileReport(graph.name, str(device))
    with report.timed("passes"):
        lowered, report.passes = run_passes(
            graph,
            capabilities=capabilities,
            optimize=options.optimize,
            disabled=options.disabled_passes,
            verify=options.verify,
            bfloat16_rows=bfloat16_rows,
            widened_rows=widened_rows,
        )
    with report.timed("lowering"):
        facts = graph_facts(graph)
        program, report.refused = lower(lowered, facts=facts)
    note_nodes(report, lowered)
    with report.timed("memory"):
        non_retained = non_retained_params(program)
        lasting = () if resident is None else resident(program)
        layout = BufferLayout.of(program, non_retained, lasting, apart=options.keep_intermediates)
    origin = Origin(graph if built is None else built, lowered)
    least = least_values(facts)
    return LoweredGraph(program, layout, non_retained, origin, report, least)
