"""The code of a part of a graph, as plans show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.array_api.stages import Stage
from ostinato.lower.loopir.text import kernel_text
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.lower.loopir.kernel import Kernel

__all__ = ["StageCode"]


@dataclass(frozen=True, eq=False)
class StageCode:
    """See :class:`~ostinato.plan.prepared.KernelCode`.

    Attributes:
        functions: the compiled stages.
        kernel: the part.
    """

    functions: StageFunctions
    kernel: Kernel

    @property
    def source(self) -> str:
        """The framework's optimised code, for the sizes that were compiled last.

        Of a step of the host, and before there are sizes: the nodes.
        """
        known = self.functions.latest(self.kernel) if isinstance(self.kernel, Stage) else None
        return kernel_text(self.kernel) if known is None else known.text

    @property
    def assembly(self) -> None:
        """The framework shows none."""
