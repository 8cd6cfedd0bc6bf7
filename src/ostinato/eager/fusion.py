"""Fusion of elementwise nodes with the only consumer of their result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.op_signature import OpSignature
from ostinato.eager.allocation import AllocationView, same_view
from ostinato.eager.compute_node import ComputeNode
from ostinato.plan.hazards import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.eager.allocation import Operand

__all__ = ["fused", "same_elements"]

#: Limits of one kernel's compile time, those of allocations of a graph (``FusionOptions``).
_MAX_STEPS = 64
_MAX_OPERANDS = 24


def fused(nodes: Sequence[ComputeNode]) -> tuple[ComputeNode, ...]:
    """The nodes after every legal fusion; see :meth:`ComputeGraph.fuse`."""
    return _Fusion(nodes).run()


def same_elements(a: Operand, b: Operand) -> bool:
    """Whether both are the same bytes in the same shape."""
    same_bytes = a.storage_id == b.storage_id and a.offset == b.offset and a.end == b.end
    return same_bytes and a.type.shape == b.type.shape


class _Touch(NamedTuple):
    """A read or a write of part of a storage by the node at ``position``."""

    position: int
    operand: Operand
    writes: bool


class _Fusion:
    """Nodes by position, of which some have been fused into later ones.

    Attributes:
        nodes: by position; ``None`` where a node was fused into a later one.
        touches: by storage, its reads and writes. Reads of the user's buffers are left out: their
            contents are no result that could be recomputed in a consumer.
    """

    def __init__(self, nodes: Sequence[ComputeNode]) -> None:
        self.nodes: list[ComputeNode | None] = list(nodes)
        self.touches: dict[int, list[_Touch]] = {}
        for position, node in enumerate(nodes):
            self._add_touches(position, node)

    def run(self) -> tuple[ComputeNode, ...]:
        """Fuse in order, so that each producer has been fused with its own producers before."""
        for position in range(len(self.nodes)):
            while self._fuse_producer(position):
                pass
        return tuple(node for node in self.nodes if node is not None)

    def _fuse_producer(self, position: int) -> bool:
        """Fuse the node at ``position`` with one of its producers, if that is legal."""
        consumer = self.nodes[position]
        if consumer is None or consumer.signature is None or not consumer.signature.elementwise:
            return False
        for number in range(len(consumer.operands)):
            source = self._producer(position, consumer, number)
            if source is not None:
                producer = self.nodes[source]
                assert producer is not None
                fused_node = _joined(producer, consumer, number)
                if _allowed(consumer, fused_node):
                    self._replace(source, position, fused_node)
                    return True
        return False

    def _producer(self, position: int, consumer: ComputeNode, number: int) -> int | None:
        """The position of the node that can be fused to compute this operand."""
        operand = consumer.operands[number]
        assert consumer.signature is not None
        if not isinstance(operand, AllocationView) or not consumer.signature.reads_once(number):
            return None
        touches = self.touches[operand.storage_id]
        if len(touches) != 2:
            return None  # other readers or writers, or written before this session
        made, read = sorted(touches, key=lambda touch: touch.position)
        if not made.writes or read.position != position:
            return None
        source = made.position
        node = self.nodes[source]
        assert node is not None
        if node.signature is None or not node.signature.elementwise or node.copies:
            return None
        if len(node.signature.steps) + len(consumer.signature.steps) > _MAX_STEPS:
            return None
        if not same_view(made.operand, operand):
            return None
        shape = operand.type.shape
        if any(result.type.shape != shape for result in consumer.results):
            return None  # a broadcast operand would be computed once for each element
        return None if self._overwritten(node, source, position) else source

    def _overwritten(self, node: ComputeNode, start: int, stop: int) -> bool:
        """Whether a node between two positions writes an operand of ``node``."""
        return any(
            touch.writes and start < touch.position < stop and overlap(touch.operand, operand)
            for operand in node.operands
            for touch in self.touches.get(operand.storage_id, ())
        )

    def _replace(self, source: int, position: int, fused_node: ComputeNode) -> None:
        gone = {source, position}
        for node in (self.nodes[source], self.nodes[position]):
            assert node is not None
            for storage in {operand.storage_id for operand in (*node.reads, *node.writes)}:
                known = self.touches.get(storage, ())
                self.touches[storage] = [t for t in known if t.position not in gone]
        self.nodes[source] = None
        self.nodes[position] = fused_node
        self._add_touches(position, fused_node)

    def _add_touches(self, position: int, node: ComputeNode) -> None:
        for operand in node.reads:
            if isinstance(operand, AllocationView):
                self._touch(_Touch(position, operand, writes=False))
        for operand in node.writes:
            self._touch(_Touch(position, operand, writes=True))

    def _touch(self, touch: _Touch) -> None:
        self.touches.setdefault(touch.operand.storage_id, []).append(touch)


def _allowed(consumer: ComputeNode, fused_node: ComputeNode) -> bool:
    """Whether one kernel may compute both: it writes no element before reading it."""
    if len(fused_node.operands) > _MAX_OPERANDS:
        return False
    clashes = [
        (operand, result)
        for operand in fused_node.operands
        for result in consumer.results
        if overlap(operand, result)
    ]
    if clashes and len(fused_node.results) > 1:
        return False  # the order of its stores is not defined
    return all(same_elements(operand, result) for operand, result in clashes)


def _joined(producer: ComputeNode, consumer: ComputeNode, number: int) -> ComputeNode:
    """Both nodes as one; ``number`` is that of the consumer's operand that the producer writes."""
    first, second = producer.signature, consumer.signature
    assert first is not None
    assert second is not None
    link = consumer.operands[number]
    operands: list[Operand] = []
    for operand in _all_but(producer.operands, consumer.operands, number):
        if not any(same_view(operand, known) for known in operands):
            operands.append(operand)

    def number_of(operand: Operand) -> int:
        return next(i for i, known in enumerate(operands) if same_view(operand, known))

    base = len(operands)
    early = [number_of(o) for o in producer.operands]
    early += range(base, base + len(first.steps))
    given = next(i for i, r in enumerate(producer.results) if same_view(r, link))
    late = [early[first.results[given]] if o is link else number_of(o) for o in consumer.operands]
    late += range(base + len(first.steps), base + len(first.steps) + len(second.steps))
    kept = [i for i, r in enumerate(producer.results) if i != given or _held(r)]
    signature = OpSignature(
        tuple(operand.type for operand in operands),
        (*(s.renumbered(early) for s in first.steps), *(s.renumbered(late) for s in second.steps)),
        (*(early[first.results[i]] for i in kept), *(late[i] for i in second.results)),
    )
    results = (*(producer.results[i] for i in kept), *consumer.results)
    return ComputeNode(signature, tuple(operands), results, consumer.copies)


def _all_but(first: Sequence[Operand], second: Sequence[Operand], number: int) -> Iterator[Operand]:
    yield from first
    yield from (operand for i, operand in enumerate(second) if i != number)


def _held(result: Operand) -> bool:
    """Whether the user can still read a result."""
    return not isinstance(result, AllocationView) or result.allocation.storage is not None
