"""The names that the nodes of a model's graph see, and the graph that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import ModelFormatError
from ostinato.frontends.onnx.known import NestedLeaves
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.known import Leaves, Tensor
    from ostinato.frontends.onnx.messages import AttributeProto, NodeProto
    from ostinato.ops.builder import Graph, NestedGraph

__all__ = ["Scope"]


@dataclass(frozen=True)
class Scope:
    """The names visible to the nodes of one graph or function body, and the graph that they become.

    Attributes:
        g: the graph under construction.
        leaves: makes known tensors into values of ``g``.
        names: defined here.
        outer: the scope around; ``None`` for the model's graph and for function bodies.
        opsets: the version of each operator domain.
        attributes: what a function body's attribute references stand for; ``None`` outside of
            functions, where there are no references.
        prefix: what the labels of nodes start with: the calls that lead here.
        depth: how many graphs and functions lie around.
    """

    g: Graph
    leaves: Leaves
    names: dict[str, Tensor]
    outer: Scope | None
    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] | None
    prefix: str = ""
    depth: int = 0

    def __contains__(self, name: object) -> bool:
        return name in self.names or (self.outer is not None and name in self.outer)

    def find(self, name: str) -> Tensor:
        """The tensor called ``name``.

        Raises:
            ModelFormatError: it stands for nothing.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise ModelFormatError(f"the name {name!r} is used and not defined")

    def inner(self, names: dict[str, Tensor]) -> Scope:
        """A scope for a subgraph, which sees this one's names and has these."""
        return replace(self, names=names, outer=self, depth=self.depth + 1)

    def nested(self, g: NestedGraph, names: dict[str, Tensor]) -> Scope:
        """The same for a subgraph that becomes a nested graph."""
        return replace(self.inner(names), g=g, leaves=NestedLeaves(g, self.leaves))

    def attributes_of(self, node: NodeProto) -> dict[str, AttributeProto]:
        """A node's attributes, with a function body's references replaced by the call's."""
        found: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found[attribute.name] = attribute
            elif self.attributes is None:
                raise ModelFormatError(
                    f"the attribute {attribute.name!r} refers to {attribute.ref_attr_name!r} of a "
                    "function, and the node is in none"
                )
            elif attribute.ref_attr_name in self.attributes:
                found[attribute.name] = self.attributes[attribute.ref_attr_name]
        return found
