"""Offload: experts that do not all fit into memory; some are resident, the others are in a file.

A layer's experts are computed in rounds. The first is of resident experts; each later one stages a
few of the others in memory that it shares with all else that lives within a run. Rounds that have
nothing to do cost next to nothing. All rounds run the same kernels on the same panels, and every
row is computed in one of them, so results do not depend on which experts are resident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.backends.common.expert_store import check_uses, reads_stored
from ostinato.backends.cpu.rules.expert_matmul import grouped_matmul
from ostinato.backends.cpu.rules.expert_staging import PiecePacking, SelectExperts, StageExperts
from ostinato.backends.cpu.rules.experts import ExpertLayer
from ostinato.errors import InputError
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.ops.moe import EXPERT_MLP
from ostinato.records import dataclass, field, replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.cpu.rules.expert_matmul import ExpertMatmul
    from ostinato.backends.cpu.rules.group_rows import Routing
    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.ir.stored import MatrixLayout
    from ostinato.lower.program import Call

__all__ = [
    "Share",
    "StoredExperts",
    "StoredMatrix",
    "for_experts",
    "repeated",
    "shares",
    "source_numbers",
]

#: Of a budget, how much is room for experts that are not resident, unless one takes more.
_STAGING_SHARE = 1 / 8

#: Numbers of a source before those of its ranges, of a range, and of a place in one; see
#: csrc/experts.h.
_SOURCE_HEAD, _RANGE_NUMBERS, _PLACE_NUMBERS = 10, 3, 2


def source_numbers(experts: int, layout: MatrixLayout) -> int:
    """Numbers of the source of as many experts."""
    return _SOURCE_HEAD + len(layout.pitches) * (_RANGE_NUMBERS + _PLACE_NUMBERS * experts)


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """One matrix of each expert of a node.

    Attributes:
        param: the name of the param.
        packing: how a matrix of the file is packed.
        source: a table for the device's runtime: where the matrices are.
        slots: the panels of resident experts.
    """

    param: str
    packing: PiecePacking
    source: LoweredBuffer
    slots: LoweredBuffer


@dataclass(frozen=True, eq=False)
class StoredExperts:
    """The experts of a layer, some of which are resident.

    Attributes:
        routing: of the layer.
        slots: number of slots.
        table: the slot of each expert, or -1.
        matrices: those that each expert consists of.
    """

    routing: Routing
    slots: int
    table: LoweredBuffer
    matrices: list[StoredMatrix] = field(default_factory=list)

    @property
    def buffers(self) -> list[LoweredBuffer]:
        """All that lives as long as the program."""
        return [self.table, *(b for m in self.matrices for b in (m.source, m.slots))]


@dataclass(frozen=True)
class Share:
    """A node's share of the budget.

    Attributes:
        slots: number of slots of resident experts.
        staged: experts that a round stages.
    """

    slots: int
    staged: int


def repeated(pattern: Sequence[Call], number: int, chosen: LoweredBuffer) -> list[Call]:
    """The calls of another round that stages experts, by those of one.

    They share kernels, but not the memory that experts are staged in: so that each piece of it is
    in use only as long as it must be.
    """
    fresh: dict[LoweredBuffer, LoweredBuffer] = {}
    for call in pattern:
        if isinstance(call.kernel, SelectExperts):
            choice = call.buffers[0]
            assert choice.data is not None
            first_row, _, size = choice.data
            numbers = np.array([first_row, number, size], np.int64)
            fresh[choice] = replace(choice, data=numbers)
        if isinstance(call.kernel, SelectExperts | StageExperts):
            fresh.update((room, replace(room)) for room in call.writes() if room is not chosen)
    return [
        replace(call, buffers=tuple(fresh.get(b, b) for b in call.buffers), flops=0)
        for call in pattern
    ]


# -- sharing the budget ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Need:
    """The memory that a node's experts take.

    Attributes:
        experts: how many there are.
        used: how many of them can have rows in one run.
        whole: bytes of an expert.
        at_once: bytes of an expert that are needed at the same time.
    """

    experts: int
    used: int
    whole: int
    at_once: int

    @property
    def chooses(self) -> bool:
        return self.experts > 1


def shares(
    graph: BaseGraph, nodes: Sequence[Node], store: ExpertStore, registers: RegisterFile
) -> dict[Node, Share]:
    """Each node's share of the budget, of nodes with experts in the file.

    Every layer gets as many slots as every other one, or as many as it has experts.

    Raises:
        InputError: a param of the file is more than the matrices of experts, or the budget is too
            small for a single expert.
    """
    if not store.params:
        return {}
    needs = {node: _need(node, registers) for node in nodes if reads_stored(node, store)}
    check_uses(graph, nodes, needs, store)
    everything = sum(need.experts * need.whole for need in needs.values())
    if store.budget is None or everything <= store.budget:
        return {node: Share(need.experts, 0) for node, need in needs.items()}
    fixed = sum(need.whole for need in needs.values() if not need.chooses)
    choosing = {node: need for node, need in needs.items() if need.chooses}
    budget = store.budget - fixed
    staged = _staged(choosing.values(), budget, everything)
    left = budget - _staging(choosing.values(), staged)
    slots = 0
    while sum(min(n.experts, slots + 1) * n.whole for n in choosing.values()) <= left:
        slots += 1
    return {
        node: Share(min(need.experts, slots), min(need.used, staged) if need.chooses else 0)
        if need.chooses
        else Share(1, 0)
        for node, need in needs.items()
    }


def _staging(needs: Collection[_Need], staged: int) -> int:
    """Bytes for that many staged experts; layers use them one after the other."""
    return max((min(n.used, staged) * n.at_once for n in needs), default=0)


def _staged(needs: Collection[_Need], budget: int, everything: int) -> int:
    """The number of experts that a round stages."""
    least = _staging(needs, 1)
    if least > budget:
        raise InputError(
            f"expert_budget is {budget:,} bytes, but one expert takes {least:,}, and all of them "
            f"{everything:,}"
        )
    most, staged = max((n.used for n in needs), default=1), 1
    while staged < most and _staging(needs, staged + 1) <= budget * _STAGING_SHARE:
        staged += 1
    return staged


def _need(node: Node, registers: RegisterFile) -> _Need:
    if node.op is EXPERT_MLP:
        layer = ExpertLayer(node, registers, packed=True)
        matmuls: tuple[ExpertMatmul, ...] = (layer.inner, layer.outer)
    else:
        matmuls = (grouped_matmul(node, registers),)
    parts = [
        sum(
            for_experts(p, 1).packed_buffer(matmul.tile[1], Role.TEMP, matmul.form).nbytes
            for p in matmul.packings
        )
        for matmul in matmuls
    ]
    experts = matmuls[0].layout.experts
    used = max(1, min(experts, bounds(matmuls[0].rows)[1]))
    return _Need(experts, used, sum(parts), max(parts))


def for_experts(matmul: PackedMatmul, experts: int) -> PackedMatmul:
    """The same packing for another number of experts."""
    return replace(matmul, spec=replace(matmul.spec, groups=(experts,)))
