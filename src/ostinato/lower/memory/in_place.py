"""Updates of a state that may be made in the state's own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.ir.graph import Node, Value

__all__ = ["update_chain"]


def update_chain(value: Value, state: Value) -> list[Node]:
    """The updates that make ``value`` of ``state``, each of the one before; empty if others do."""
    chain: list[Node] = []
    while value is not state:
        if not value.node.op.updates_operand:
            return []
        chain.append(value.node)
        value = value.node.inputs[0]
    return chain
