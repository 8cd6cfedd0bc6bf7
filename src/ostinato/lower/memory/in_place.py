"""What lowering asks of states: which updates can be made in their own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import is_transparent

if TYPE_CHECKING:
    from ostinato.ir.graph import Node, Value

__all__ = ["UPDATES", "reads_state", "update_chain"]

#: Ops that give their first operand with some elements changed.
UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter_nd"})


def update_chain(value: Value, state: Value) -> list[Node]:
    """The updates that make ``value`` of ``state``, each of the one before; empty if others do."""
    chain: list[Node] = []
    while value is not state:
        if value.node.op.name not in UPDATES:
            return []
        chain.append(value.node)
        value = value.node.inputs[0]
    return chain


def reads_state(value: Value) -> bool:
    """Whether ``value`` is a state, or is seen through views of one."""
    stack = [value]
    while stack:
        node = stack.pop().node
        if node.op.name == "state":
            return True
        if is_transparent(node):
            stack.extend(node.inputs)
    return False
