"""``out=`` arguments: results of a call written to buffers of the user's.

A result is computed directly in its target if no op of the call reads the target afterwards;
otherwise it is computed in memory of its own and copied at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.op_signature import OpSignature
from ostinato.eager.allocation import Allocation, AllocationView, same_view
from ostinato.eager.compute_node import ComputeNode
from ostinato.eager.fusion import same_elements
from ostinato.errors import GraphError
from ostinato.ops.indexing import DYNAMIC_UPDATE_SLICE, SCATTER, SCATTER_ND
from ostinato.plan.buffer import Buffer
from ostinato.plan.hazards import overlap
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.eager.allocation import Operand
    from ostinato.ir.types import TensorType

__all__ = ["bind_out_args"]

#: Ops that update part of their first operand, in place if the target is that operand.
_UPDATES = frozenset({DYNAMIC_UPDATE_SLICE, SCATTER, SCATTER_ND})

Pair = tuple["Operand", "Operand"]


def bind_out_args(
    nodes: Sequence[ComputeNode], pairs: Sequence[Pair], session: object
) -> list[ComputeNode]:
    """Rewrite the nodes of one call so that its results are written to other operands.

    Args:
        nodes: in order.
        pairs: each result and its target.
        session: the identity of the session, for new allocations.

    Raises:
        GraphError: targets overlap.
    """
    targets = [target for _, target in pairs]
    if len(pairs) > 1 and any(overlap(a, b) for i, a in enumerate(targets) for b in targets[:i]):
        raise GraphError("the buffers of out= overlap each other")
    written = list(nodes)
    for result, target in pairs:
        found = _direct(written, result, target)
        if found is None:
            return [*nodes[:-1], *_copying(nodes[-1:], pairs, session)]
        position, node = found
        written[position] = node
    return written


def _direct(
    nodes: Sequence[ComputeNode], result: Operand, target: Operand
) -> tuple[int, ComputeNode] | None:
    """The producer of ``result``, rewritten to write ``target``, and its position, if possible."""
    makers = [
        position
        for position, node in enumerate(nodes)
        for known in node.results
        if overlap(result, known)
    ]
    if len(makers) != 1:
        return None
    (position,) = makers
    maker = nodes[position]
    for node in nodes[position + 1 :]:
        if any(overlap(o, result) or overlap(o, target) for o in (*node.reads, *node.writes)):
            return None
    made = _updating(maker, target) or _writing(maker, result, target)
    return None if made is None else (position, made)


def _updating(node: ComputeNode, target: Operand) -> ComputeNode | None:
    """The node as an update of ``target`` in place, if it updates part of it."""
    signature = node.signature
    if signature is None or signature.steps[0].op not in _UPDATES:
        return None
    first, *others = node.operands
    if any(isinstance(dim, Expr) for dim in first.type.shape):
        return None
    if not same_view(first, target) or any(overlap(other, target) for other in others):
        return None
    in_place = OpSignature(signature.operands, signature.steps, signature.results, in_place=True)
    return ComputeNode(in_place, node.operands, (first,))


def _writing(node: ComputeNode, result: Operand, target: Operand) -> ComputeNode | None:
    """The node with ``target`` in the place of ``result``, unless an operand overlaps it."""
    assert node.signature is not None
    written = [
        _seen_as(target, known.type) if _is_all_of(result, known) else known
        for known in node.results
    ]
    if all(a is b for a, b in zip(written, node.results, strict=True)):
        return None
    clashes = [operand for operand in node.operands if overlap(operand, target)]
    if clashes:
        if not node.signature.elementwise or len(written) > 1:
            return None
        if not all(same_elements(operand, written[0]) for operand in clashes):
            return None
    return ComputeNode(node.signature, node.operands, tuple(written))


def _is_all_of(result: Operand, known: Operand) -> bool:
    same = result.storage_id == known.storage_id and result.offset == known.offset
    return same and result.end == known.end


def _seen_as(target: Operand, type_: TensorType) -> Operand:
    if target.type == type_:
        return target
    if isinstance(target, AllocationView):
        return AllocationView(target.allocation, target.offset, type_)
    assert isinstance(target, Buffer)
    return target.reshaped(type_)


def _copying(
    last: Sequence[ComputeNode], pairs: Sequence[Pair], session: object
) -> Iterator[ComputeNode]:
    """The last node followed by copies, first of those results that another copy overwrites."""
    pairs = [(result, target) for result, target in pairs if not _is_all_of(result, target)]
    targets = [target for _, target in pairs]
    saved: list[Pair] = []
    copies: list[Pair] = []
    for result, target in pairs:
        source = result
        if any(overlap(result, other) for other in targets):
            source = AllocationView(Allocation(result.nbytes, session), 0, result.type)
            saved.append((result, source))
        copies.append((source, target))
    every = (*saved, *copies)
    if not every:
        yield from last
    elif last and last[0].signature is not None:
        (node,) = last
        yield ComputeNode(node.signature, node.operands, node.results, (*node.copies, *every))
    else:
        yield from last
        yield ComputeNode(None, (), (), every)
