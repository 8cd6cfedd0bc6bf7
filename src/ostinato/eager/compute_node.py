"""Nodes of recorded sessions: an op signature on operands, and the bytes it reads and writes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.plan.hazards import overlap
from ostinato.plan.prepared import Copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.common.compiled_op import CompiledOp
    from ostinato.backends.common.op_signature import OpSignature
    from ostinato.eager.allocation import Operand
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import PreparedOp

__all__ = ["ComputeNode"]


class ComputeNode:
    """One dispatch: an op, then copies of its results to other operands.

    Nodes are immutable. Each touches the bytes of :attr:`reads` and :attr:`writes`, and no others.

    Attributes:
        signature: the op; ``None``: the node only copies.
        operands: read by the op, buffers by reference.
        results: written by the op; in place, its first operand alone.
        copies: pairs of source and target.
    """

    __slots__ = ("__dict__", "copies", "operands", "results", "signature")

    def __init__(
        self,
        signature: OpSignature | None,
        operands: tuple[Operand, ...],
        results: tuple[Operand, ...],
        copies: tuple[tuple[Operand, Operand], ...] = (),
    ) -> None:
        self.signature = signature
        self.operands = operands
        self.results = results
        self.copies = copies

    @property
    def name(self) -> str:
        """The names of its ops (``"exp+add"``)."""
        return "copy" if self.signature is None else self.signature.name

    @cached_property
    def reads(self) -> tuple[Operand, ...]:
        """The bytes that it reads before it writes them."""
        return (*self.operands, *(source for source, _ in self.copies if self._read_first(source)))

    @cached_property
    def writes(self) -> tuple[Operand, ...]:
        """The bytes that it writes."""
        if not self.copies:
            return self.results
        return (*self.results, *(target for _, target in self.copies))

    def _read_first(self, source: Operand) -> bool:
        return not any(overlap(source, result) for result in self.results)

    def ops(
        self,
        first_id: int,
        compiled_op: CompiledOp | None,
        temps: Sequence[Buffer],
        find: Callable[[Operand], Buffer],
    ) -> list[PreparedOp]:
        """The node as prepared ops.

        Args:
            first_id: number of the first one.
            compiled_op: of the signature.
            temps: memory for its temps.
            find: maps an operand to its buffer.
        """
        ops: list[PreparedOp] = []
        if compiled_op is not None:
            bound = (*self.operands, *(() if self._in_place else self.results))
            ops += compiled_op.ops(first_id, [*(find(operand) for operand in bound), *temps])
        for source, target in self.copies:
            number = first_id + len(ops)
            ops.append(Copy(id=number, source=find(source), target=find(target)))
        return ops

    @property
    def _in_place(self) -> bool:
        return self.signature is not None and self.signature.in_place

    def __repr__(self) -> str:
        read = ", ".join(str(operand.type) for operand in self.reads)
        written = ", ".join(str(operand.type) for operand in self.writes)
        return f"{self.name}({read}) -> {written}"
