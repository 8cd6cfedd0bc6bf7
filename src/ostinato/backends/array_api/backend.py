"""The backend of an array framework: compilation for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.agreed import agreed_property
from ostinato.backends.array_api.context import ArrayContext
from ostinato.backends.base import Backend
from ostinato.errors import UnsupportedOpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.array_api.executable import ArrayExecutable
    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.base import Capabilities, Progress
    from ostinato.backends.common.experts import ExpertsInFile
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ParamSource
    from ostinato.variables import Dim

__all__ = ["ArrayBackend"]


class ArrayBackend(Backend):
    """A device of an array framework.

    Args:
        device: its name.
        framework: the framework on that device.
    """

    def __init__(self, device: Device, framework: Framework) -> None:
        self.device = device
        self.framework = framework

    @property
    def capabilities(self) -> Capabilities:
        return self.framework.capabilities

    @agreed_property
    def context(self) -> ArrayContext:
        return ArrayContext(self.device, self.framework)

    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
        siblings: Any = None,
    ) -> ArrayExecutable:
        from ostinato.backends.array_api.executable import ArrayCompilation, ArrayExecutable
        from ostinato.backends.array_api.functions import StageFunctions
        from ostinato.backends.array_api.lowering import lower_in_stages
        from ostinato.backends.common.expert_store import ExpertStore
        from ostinato.backends.common.image_builder import build_image
        from ostinato.backends.common.lowered_graph import lower_graph
        from ostinato.backends.common.program_image import ProgramImage
        from ostinato.backends.common.report_notes import note_kernels

        store, tensors = None, {} if experts is None else experts.tensors
        if experts is not None:
            store = ExpertStore.of(experts)

        def lower(graph: BaseGraph, *, facts: Any) -> Any:
            return lower_in_stages(graph, self.framework.on_host, facts=facts, store=store)

        lowered = lower_graph(graph, options, self.device, self.capabilities, lower)
        program, report = lowered.program, lowered.report
        if not self.framework.holds_narrow:
            _check_results(program.graph, self.framework.label)
        note_kernels(report, program, lambda call: call.title)
        report.remarks += [
            f"on the host: {node.op.name} {node.label!r}"
            for part in program.parts
            for node in part.nodes
            if self.framework.on_host(node)
        ]
        functions = StageFunctions(self.framework, options.max_specializations)
        ready = [stage for stage in program.stages if not stage.sizes]
        with report.timed("compile"):
            for number, stage in enumerate(ready, 1):
                functions.get(stage, {})
                if progress is not None:
                    progress(number, len(ready))
        report.compiled, report.cached = functions.compiled, functions.stored
        image = build_image(ProgramImage[Any], lowered, lambda _: (), size_symbol=_size_text)
        with report.timed("memory"):
            return ArrayExecutable(
                image,
                ArrayCompilation(lowered, functions),
                self.context,
                params,
                tensors,
                keeps=options.keep_intermediates,
            )


def _check_results(graph: BaseGraph, label: str) -> None:
    """Check that nothing that users can read is an 8-bit float.

    Raises:
        UnsupportedOpError: some outputs or states are; lists every one.
    """
    results = [(f"output {name!r}", value) for name, value in graph.outputs.items()]
    results += [(f"state {name!r}", value) for name, value in graph.states.items()]
    refused = [f"  {name} ({value.type})" for name, value in results if value.dtype.is_narrow]
    if refused:
        raise UnsupportedOpError("\n".join([f"{label} has no arrays of 8-bit floats:", *refused]))


def _size_text(size: Dim) -> str:
    """A size that depends on Variables, as text."""
    return "" if isinstance(size, int) else str(size)
