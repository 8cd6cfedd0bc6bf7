"""The step that brings the experts that a run calls and that are not resident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.kernel import Kernel
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["StageExperts"]


@dataclass(frozen=True, eq=False)
class StageExperts(Kernel):
    """Finds the place of each row's expert, after the experts that are missing were brought.

    It is no kernel of the device: the host reads the ids, and writes places and matrices.

    Attributes:
        args: the ids of the experts, and the places, by row; then the matrices by place.
        variables: the graph's Variables.
        rows: how many there are.
        layer: of which some experts are resident.
    """

    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...]
    rows: Dim
    layer: ResidentLayer

    def describe(self, text: KernelText) -> None:
        layer = self.layer
        text.line(0, f"stage up to {layer.staged} of {layer.experts} experts for {self.rows} rows")
        text.head(self.args)

    def variable_free(self) -> bool:
        return isinstance(self.rows, int)
