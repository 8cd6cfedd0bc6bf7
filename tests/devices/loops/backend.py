"""The backend: the device's presence, its capabilities, and compilation for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

from ostinato.backends.base import Backend, Progress
from ostinato.backends.common.experts import ExpertsInFile
from ostinato.backends.common.image_builder import build_image
from ostinato.backends.common.lowered_graph import lower_graph
from ostinato.backends.common.lowering_options import lowering_options
from ostinato.backends.common.program_image import ProgramImage
from ostinato.backends.common.report_notes import note_kernels
from ostinato.backends.device import Device
from ostinato.backends.options import CompileOptions
from ostinato.ir.graph import BaseGraph
from ostinato.ir.stored import ParamSource
from ostinato.lower.lowering import lower

from .context import LoopsContext
from .executable import LoopsExecutable
from .program import Step
from .rules import CAPABILITIES, TABLE

__all__ = ["LoopsBackend"]


class LoopsBackend(Backend):
    """The device ``LOOPS:0``."""

    capabilities = CAPABILITIES

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self.device = device

    @cached_property
    def context(self) -> LoopsContext:
        return LoopsContext(self.device)

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
        lowered = lower_graph(
            graph,
            options,
            self.device,
            CAPABILITIES,
            partial(lower, table=TABLE, options=lowering_options(options)),
        )
        note_kernels(lowered.report, lowered.program, lambda call: call.title)
        image = build_image(ProgramImage[Step], lowered, partial(Step.of_call, lowered))
        return LoopsExecutable(image, lowered, self.context, params)
