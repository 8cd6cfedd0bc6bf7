"""Joining elementwise nodes with the one node that reads their result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.plan.compute_node import ComputeNode
from ostinato.plan.formula import Formula
from ostinato.plan.hazards import overlap
from ostinato.plan.region import Piece, same_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.plan.region import Operand

__all__ = ["fused", "same_elements"]

#: Limits of one kernel's compile time, those of regions of a graph (``FusionOptions``).
_MAX_STEPS = 64
_MAX_OPERANDS = 24


def fused(nodes: Sequence[ComputeNode]) -> tuple[ComputeNode, ...]:
    """The nodes with every fusion made that is safe; see :meth:`ComputeGraph.fuse`."""
    return _Fusion(nodes).run()


def same_elements(a: Operand, b: Operand) -> bool:
    """Whether both are the same bytes, element for element, at the same indices."""
    same_bytes = a.storage_id == b.storage_id and a.offset == b.offset and a.end == b.end
    return same_bytes and a.type.shape == b.type.shape


class _Touch(NamedTuple):
    """That a node reads or writes part of a storage."""

    position: int
    operand: Operand
    writes: bool


class _Fusion:
    """Nodes by position, of which some have gone into later ones.

    Attributes:
        nodes: those that are left.
        touches: by storage, who touches it. Who reads a buffer of the user's does not matter: it is
            no result that could be computed on the spot.
    """

    def __init__(self, nodes: Sequence[ComputeNode]) -> None:
        self.nodes: list[ComputeNode | None] = list(nodes)
        self.touches: dict[int, list[_Touch]] = {}
        for position, node in enumerate(nodes):
            self._note(position, node)

    def run(self) -> tuple[ComputeNode, ...]:
        """In order, so that a producer has taken in its own producers already."""
        for position in range(len(self.nodes)):
            while self._take_in_a_producer(position):
                pass
        return tuple(node for node in self.nodes if node is not None)

    def _take_in_a_producer(self, position: int) -> bool:
        consumer = self.nodes[position]
        if consumer is None or consumer.formula is None or not consumer.formula.elementwise:
            return False
        for number in range(len(consumer.operands)):
            source = self._producer(position, consumer, number)
            if source is not None:
                producer = self.nodes[source]
                assert producer is not None
                joint = _joined(producer, consumer, number)
                if _allowed(consumer, joint):
                    self._replace(source, position, joint)
                    return True
        return False

    def _producer(self, position: int, consumer: ComputeNode, number: int) -> int | None:
        """The position of the node that could be computed on the spot for this operand."""
        operand = consumer.operands[number]
        assert consumer.formula is not None
        if not isinstance(operand, Piece) or not consumer.formula.reads_once(number):
            return None
        touches = self.touches[operand.storage_id]
        if len(touches) != 2:
            return None  # there are other readers or writers, or it was written before this session
        made, read = sorted(touches, key=lambda touch: touch.position)
        if not made.writes or read.position != position:
            return None
        source = made.position
        node = self.nodes[source]
        assert node is not None
        if node.formula is None or not node.formula.elementwise or node.copies:
            return None
        if len(node.formula.steps) + len(consumer.formula.steps) > _MAX_STEPS:
            return None
        if not same_place(made.operand, operand):
            return None
        shape = operand.type.shape
        if any(result.type.shape != shape for result in consumer.results):
            return None  # what is broadcast would be computed again and again
        return None if self._overwritten(node, source, position) else source

    def _overwritten(self, node: ComputeNode, start: int, stop: int) -> bool:
        """Whether something between two positions writes what ``node`` reads."""
        return any(
            touch.writes and start < touch.position < stop and overlap(touch.operand, operand)
            for operand in node.operands
            for touch in self.touches.get(operand.storage_id, ())
        )

    def _replace(self, source: int, position: int, joint: ComputeNode) -> None:
        gone = {source, position}
        for node in (self.nodes[source], self.nodes[position]):
            assert node is not None
            for storage in {operand.storage_id for operand in (*node.reads, *node.writes)}:
                known = self.touches.get(storage, ())
                self.touches[storage] = [t for t in known if t.position not in gone]
        self.nodes[source] = None
        self.nodes[position] = joint
        self._note(position, joint)

    def _note(self, position: int, node: ComputeNode) -> None:
        for operand in node.reads:
            if isinstance(operand, Piece):
                self._touch(_Touch(position, operand, writes=False))
        for operand in node.writes:
            self._touch(_Touch(position, operand, writes=True))

    def _touch(self, touch: _Touch) -> None:
        self.touches.setdefault(touch.operand.storage_id, []).append(touch)


def _allowed(consumer: ComputeNode, joint: ComputeNode) -> bool:
    """Whether a kernel may do both: it writes no element that it has yet to read."""
    if len(joint.operands) > _MAX_OPERANDS:
        return False
    clashes = [
        (operand, result)
        for operand in joint.operands
        for result in consumer.results
        if overlap(operand, result)
    ]
    if clashes and len(joint.results) > 1:
        return False  # nobody says which of its stores comes first
    return all(same_elements(operand, result) for operand, result in clashes)


def _joined(producer: ComputeNode, consumer: ComputeNode, number: int) -> ComputeNode:
    """Both nodes as one; ``number`` is that of the consumer's operand that the producer gives."""
    first, second = producer.formula, consumer.formula
    assert first is not None
    assert second is not None
    link = consumer.operands[number]
    operands: list[Operand] = []
    for operand in _all_but(producer.operands, consumer.operands, number):
        if not any(same_place(operand, known) for known in operands):
            operands.append(operand)

    def place(operand: Operand) -> int:
        return next(i for i, known in enumerate(operands) if same_place(operand, known))

    base = len(operands)
    early = [place(o) for o in producer.operands]
    early += range(base, base + len(first.steps))
    given = next(i for i, r in enumerate(producer.results) if same_place(r, link))
    late = [early[first.results[given]] if o is link else place(o) for o in consumer.operands]
    late += range(base + len(first.steps), base + len(first.steps) + len(second.steps))
    kept = [i for i, r in enumerate(producer.results) if i != given or _held(r)]
    formula = Formula(
        tuple(operand.type for operand in operands),
        (*(s.renumbered(early) for s in first.steps), *(s.renumbered(late) for s in second.steps)),
        (*(early[first.results[i]] for i in kept), *(late[i] for i in second.results)),
    )
    results = (*(producer.results[i] for i in kept), *consumer.results)
    return ComputeNode(formula, tuple(operands), results, consumer.copies)


def _all_but(first: Sequence[Operand], second: Sequence[Operand], number: int) -> Iterator[Operand]:
    yield from first
    yield from (operand for i, operand in enumerate(second) if i != number)


def _held(result: Operand) -> bool:
    """Whether a user can still read a result."""
    return not isinstance(result, Piece) or result.region.storage is not None
