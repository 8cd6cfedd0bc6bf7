"""The plan of a compiled graph: which kernels run, in which order, in which memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.lower.program import LoweredBuffer, Program, Role
from ostinato.lower.text import kernel_text
from ostinato.plan.memory import Lifetime, MemoryReport, Placement, place
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.lower.program import Call

__all__ = ["ExecutionPlan", "KernelInfo", "arena_placement"]


@dataclass(frozen=True)
class KernelInfo:
    """One kernel of a plan.

    Attributes:
        name: what it computes, in a word or two.
        source: its loop IR.
        node_names: labels of the graph's nodes that it computes.
        flops: floating point operations, at the largest sizes.
        bytes: bytes of the buffers that it reads and writes, at the largest sizes.
    """

    name: str
    source: str
    node_names: tuple[str, ...]
    flops: int
    bytes: int


class ExecutionPlan:
    """What a compiled graph runs (SPEC section 3).

    Attributes:
        device: where it runs.
        memory: how much memory it takes.
    """

    def __init__(self, device: Any, program: Program, placement: Placement) -> None:
        self.device = device
        self._program = program
        fixed = _total(program, (Role.PARAM, Role.CONSTANT, Role.PREPARED))
        self.memory = MemoryReport(
            placement.arena_bytes,
            placement.unshared_bytes,
            placement.lower_bound_bytes,
            fixed,
            _total(program, (Role.STATE,)),
        )

    @cached_property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """The kernels of one run, in order."""
        return tuple(_info(call) for call in self._program.calls)

    @cached_property
    def prepared_kernels(self) -> tuple[KernelInfo, ...]:
        """The kernels that run once per write of a param, in order."""
        return tuple(_info(call) for call in self._program.prepare)

    def __str__(self) -> str:
        lines = [f"plan on {self.device}: {len(self.kernels)} kernels a run"]
        for position, kernel in enumerate(self.kernels):
            lines.append(
                f"  {position:>4} {kernel.name:<40} {kernel.flops:>14,} flop {kernel.bytes:>14,} B"
            )
        return "\n".join([*lines, str(self.memory)])


def arena_placement(program: Program) -> tuple[Placement, list[LoweredBuffer]]:
    """Places the buffers that live within one run; returns them in the placement's order."""
    first: dict[LoweredBuffer, int] = {}
    last: dict[LoweredBuffer, int] = {}
    for step, call in enumerate(program.calls):
        for buffer in call.buffers:
            if buffer.role is Role.TEMP:
                first.setdefault(buffer, step)
                last[buffer] = step
    buffers = list(first)
    lifetimes = [Lifetime(b.nbytes, first[b], last[b]) for b in buffers]
    return place(lifetimes), buffers


def _total(program: Program, roles: tuple[Role, ...]) -> int:
    used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
    listed = [*program.params.values(), *program.states.values(), *used]
    return sum(b.nbytes for b in dict.fromkeys(listed) if b.role in roles)


def _info(call: Call) -> KernelInfo:
    nbytes = sum(b.nbytes for b in call.reads()) + sum(b.nbytes for b in call.writes())
    return KernelInfo(call.title, kernel_text(call.kernel), call.nodes, bounds(call.flops)[1], nbytes)
