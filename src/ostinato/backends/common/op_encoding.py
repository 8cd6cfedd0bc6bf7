"""The memory of prepared ops that a device encodes: its storages, and what is accessed there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.errors import PlanError
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.device import Device
    from ostinato.plan import prepared
    from ostinato.plan.buffer import Buffer, Storage
    from ostinato.plan.prepared import PreparedOp
    from ostinato.variables import Symbol
else:
    prepared = LazyModule("ostinato.plan.prepared")

__all__ = ["OpMemory"]


class OpMemory(NamedTuple):
    """The memory of some ops.

    Attributes:
        slots: numbers of the storages that they touch, from 0.
        written: the storages that they write.
        spans: the accesses: in each storage, from the first to the last byte read, or written.
    """

    slots: Mapping[Storage, int]
    written: frozenset[Storage]
    spans: Sequence[tuple[int, int, bool]]

    @staticmethod
    def of(ops: Sequence[PreparedOp], variables: Sequence[Symbol], device: Device) -> OpMemory:
        """The memory of ``ops``, which may run on a device with these Variables.

        Raises:
            PlanError: a buffer is another device's, or was released; or the ops are no ops.
        """
        buffers = [b for op in ops for b in _touched(op)]
        for buffer in buffers:
            if buffer.device != device:
                raise PlanError(f"{buffer!r} cannot be used on {device}")
        prepared.check_ops(ops, variables)
        storages = dict.fromkeys(b.storage for b in buffers)
        slots = {storage: number for number, storage in enumerate(storages)}
        written = frozenset(b.storage for op in ops for b in op.writes)
        return OpMemory(slots, written, _spans(ops))

    @property
    def storages(self) -> list[Storage]:
        """The storages, in the order of their numbers."""
        return [*self.slots]

    def place(self, buffer: Buffer) -> tuple[int, int]:
        """The slot and the offset of a buffer."""
        return self.slots[buffer.storage], buffer.offset


def _spans(ops: Sequence[PreparedOp]) -> list[tuple[int, int, bool]]:
    """See :attr:`OpMemory.spans`."""
    extents: dict[tuple[Storage, bool], tuple[int, int]] = {}
    for op in ops:
        for written, buffers in ((False, op.reads), (True, op.writes)):
            for buffer in buffers:
                key = buffer.storage, written
                low, high = extents.get(key, (buffer.offset, buffer.end))
                extents[key] = min(low, buffer.offset), max(high, buffer.end)
    return [
        storage.span(low, high - low, written=written)
        for (storage, written), (low, high) in extents.items()
    ]


def _touched(op: PreparedOp) -> tuple[Buffer, ...]:
    return op.buffers if isinstance(op, prepared.KernelCall) else (*op.reads, *op.writes)
