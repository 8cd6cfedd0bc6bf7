"""``out=``: having the results of a call written to buffers that the user brings.

A result is computed right where it is wanted if no op of the call can notice; else it is computed
aside and copied at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import GraphError
from ostinato.ops.indexing import DYNAMIC_UPDATE_SLICE, SCATTER, SCATTER_ND
from ostinato.plan.buffer import Buffer
from ostinato.plan.compute_node import ComputeNode
from ostinato.plan.formula import Formula
from ostinato.plan.fusion import same_elements
from ostinato.plan.hazards import overlap
from ostinato.plan.region import Piece, Region, same_place
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.ir.types import TensorType
    from ostinato.plan.region import Operand

__all__ = ["redirected"]

#: Ops whose kernels write part of their first operand, where that is memory to be written.
_UPDATES = frozenset({DYNAMIC_UPDATE_SLICE, SCATTER, SCATTER_ND})

Pair = tuple["Operand", "Operand"]


def redirected(
    nodes: Sequence[ComputeNode], pairs: Sequence[Pair], session: object
) -> list[ComputeNode]:
    """The nodes of one call, such that its results are written elsewhere.

    Args:
        nodes: in order.
        pairs: each result, and where it is wanted.
        session: what stands for the session, for memory that this needs.

    Raises:
        GraphError: what is to be written overlaps.
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
    """The node that makes ``result``, made to write ``target``, and its position; or nothing."""
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
    """An update of part of the target itself, made in place."""
    formula = node.formula
    if formula is None or formula.steps[0].op not in _UPDATES:
        return None
    first, *others = node.operands
    if any(isinstance(dim, Expr) for dim in first.type.shape):
        return None
    if not same_place(first, target) or any(overlap(other, target) for other in others):
        return None
    in_place = Formula(formula.operands, formula.steps, formula.results, in_place=True)
    return ComputeNode(in_place, node.operands, (first,))


def _writing(node: ComputeNode, result: Operand, target: Operand) -> ComputeNode | None:
    """The node with ``target`` for the memory of ``result``."""
    assert node.formula is not None
    written = [
        _seen_as(target, known.type) if _is_all_of(result, known) else known
        for known in node.results
    ]
    if all(a is b for a, b in zip(written, node.results, strict=True)):
        return None
    clashes = [operand for operand in node.operands if overlap(operand, target)]
    if clashes:
        if not node.formula.elementwise or len(written) > 1:
            return None
        if not all(same_elements(operand, written[0]) for operand in clashes):
            return None
    return ComputeNode(node.formula, node.operands, tuple(written))


def _is_all_of(result: Operand, known: Operand) -> bool:
    same = result.storage_id == known.storage_id and result.offset == known.offset
    return same and result.end == known.end


def _seen_as(target: Operand, type_: TensorType) -> Operand:
    if target.type == type_:
        return target
    if isinstance(target, Piece):
        return Piece(target.region, target.offset, type_)
    assert isinstance(target, Buffer)
    return target.reshaped(type_)


def _copying(
    last: Sequence[ComputeNode], pairs: Sequence[Pair], session: object
) -> Iterator[ComputeNode]:
    """The last node, and then copies: first of what another copy would overwrite, to be safe."""
    pairs = [(result, target) for result, target in pairs if not _is_all_of(result, target)]
    targets = [target for _, target in pairs]
    aside: list[Pair] = []
    copies: list[Pair] = []
    for result, target in pairs:
        source = result
        if any(overlap(result, other) for other in targets):
            source = Piece(Region(result.nbytes, session), 0, result.type)
            aside.append((result, source))
        copies.append((source, target))
    every = (*aside, *copies)
    if not every:
        yield from last
    elif last and last[0].formula is not None:
        (node,) = last
        yield ComputeNode(node.formula, node.operands, node.results, (*node.copies, *every))
    else:
        yield from last
        yield ComputeNode(None, (), (), every)
