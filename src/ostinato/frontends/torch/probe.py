"""A trial conversion of a whole program, which finds the nodes without an equivalent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.importer import MISSING, Importer
from ostinato.frontends.torch.program import USER_INPUT, InputSpec
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.torch.program import Program, ProgramNode
    from ostinato.variables import Dim

__all__ = ["find_unsupported"]


def find_unsupported(program: Program, dims: Mapping[str, Dim]) -> dict[str, str]:
    """The nodes of ``program`` that cannot be converted, each with the reason.

    The results of such a node become inputs of the graph, so that the nodes which read them are
    examined too.

    Args:
        program: the program.
        dims: what its symbols stand for.
    """
    probe = _Probe(program, Graph("probe"), dims)
    probe.convert()
    return probe.reasons


class _Probe(Importer):
    def __init__(self, program: Program, g: Graph, dims: Mapping[str, Dim]) -> None:
        super().__init__(program, g, dims)
        self.reasons: dict[str, str] = {}

    def convert(self) -> None:
        """Convert what can be, and collect the reasons of the rest."""
        names: dict[str, Any] = {spec.name: self._input(spec) for spec in self._program.inputs}
        for node in self._program.nodes:
            count = len(self.unsupported)
            try:
                result = self._node(node, self._g, names)
            except Exception as error:  # a converter's own mistake costs this node, not the graph
                self.reasons[node.name] = f"{type(error).__name__}: {error}"
                result = MISSING
            if result is MISSING:
                result = self._substitute(node, count)
            names[node.results[0]] = result

    def _input(self, spec: InputSpec) -> Any:
        try:
            return self._leaf(spec)
        except Exception:  # an input of a foreign type is a matter of the nodes that read it
            return MISSING

    def _substitute(self, node: ProgramNode, count: int) -> Any:
        """Inputs in the place of a node's results."""
        if node.name not in self.reasons:
            reason = "it reads a tensor that has no equivalent"
            if len(self.unsupported) > count:
                reason = self.unsupported[-1].partition(": ")[2]
            elif self._failure is not None:
                reason, self._failure = str(self._failure), None
            self.reasons[node.name] = reason
        leaves = tuple(
            self._input(InputSpec(name, USER_INPUT, meta, name))
            for index, meta in enumerate(node.metas)
            for name in (f"{node.name}_result_{index}",)
        )
        return leaves if len(leaves) > 1 else leaves[0] if leaves else MISSING
