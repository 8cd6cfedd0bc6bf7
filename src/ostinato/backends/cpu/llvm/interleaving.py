"""Interleaving the instructions of independent vectors.

The code of a long op is one chain, each instruction of which waits for the one before it. A core's
schedulers hold less than the code of two such chains, so that the second, behind the first, hardly
begins before that one ends. Instructions of several vectors in turn keep as many chains under way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from llvmlite import ir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["emit_interleaved"]


def emit_interleaved(
    builder: ir.IRBuilder, chains: Iterable[Callable[[], None]], *, alternate: bool = True
) -> None:
    """Emit several chains, and alternate between their instructions.

    Chains of several basic blocks, and chains that store, stay one behind the other.

    Args:
        chains: each emits one at the builder's position, the end of a block; it may use values
            of those before it.
        alternate: off, all of them stay one behind the other.
    """
    block = builder.block
    instructions: list[ir.Instruction] = block.instructions
    ends = [len(instructions)]
    for emit in chains:
        emit()
        ends.append(len(instructions))
    emitted = instructions[ends[0] :]
    straight = builder.block is block and not any(isinstance(i, ir.StoreInstr) for i in emitted)
    if alternate and straight:
        parts = [instructions[a:b] for a, b in pairwise(ends)]
        instructions[ends[0] :] = _alternating(parts)


def _alternating(chains: Sequence[Sequence[ir.Instruction]]) -> list[ir.Instruction]:
    """An instruction of each chain in turn, each behind its operands."""
    missing = {id(instruction) for chain in chains for instruction in chain}
    order: list[ir.Instruction] = []
    waiting = [iter(chain) for chain in chains]
    heads = [next(chain, None) for chain in waiting]
    while missing:
        for number, head in enumerate(heads):
            if head is not None and missing.isdisjoint(map(id, head.operands)):
                missing.discard(id(head))
                order.append(head)
                heads[number] = next(waiting[number], None)
    return order
