"""The rules of layers of experts, for the graphs that have such layers: most have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.common.called_experts import CalledExperts
    from ostinato.backends.common.expert_rules import ExpertRules
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["LazyExpertRules"]


class LazyExpertRules:
    """The rules of experts of one graph, made for the first node that needs them.

    Args:
        make: makes them.
        at_once: whether to make them now, since they refuse wrong uses of params.
    """

    def __init__(self, make: Callable[[], ExpertRules], *, at_once: bool) -> None:
        self._make = make
        self._made = make() if at_once else None

    @property
    def _rules(self) -> ExpertRules:
        self._made = self._made or self._make()
        return self._made

    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around the networks of experts."""
        self._rules.expert_mlp(lowering, region, root)

    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a matmul whose rows choose their matrices."""
        self._rules.grouped_matmul(lowering, region, root)

    @property
    def called(self) -> list[CalledExperts]:
        """See :class:`ExpertProgram`."""
        return [] if self._made is None else [*self._made.called.found.values()]

    @property
    def resident(self) -> list[ResidentLayer]:
        """See :class:`ExpertProgram`."""
        return [] if self._made is None else [*self._made.resident.values()]
