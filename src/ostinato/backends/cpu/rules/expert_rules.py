"""The CPU's rules for experts: matmuls with the matrices that each row chose.

Experts that are in a file are computed in offload rounds; see
:mod:`ostinato.backends.cpu.rules.offload`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ostinato.backends.common.expert_store import ExpertStore
from ostinato.backends.cpu.rules.expert_matmul import (
    ExpertMatmul,
    grouped_matmul,
    grouped_matmul_kernel,
    rows_in_place,
)
from ostinato.backends.cpu.rules.expert_staging import SelectExperts, StageExperts, piece_packing
from ostinato.backends.cpu.rules.experts import ExpertLayer
from ostinato.backends.cpu.rules.group_rows import Routing, group_rows_kernel
from ostinato.backends.cpu.rules.offload import (
    Share,
    StoredExperts,
    StoredMatrix,
    for_experts,
    repeated,
    shares,
    source_numbers,
)
from ostinato.backends.cpu.rules.packed_matmul import pack
from ostinato.dtypes import INT64
from ostinato.ir.leaves import INPUT, STATE
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cpu.rules.experts import ExpertStep
    from ostinato.backends.cpu.rules.group_rows import GroupLayout
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["ExpertRules"]

Buffers: TypeAlias = Sequence[LoweredBuffer]

#: Multiplies rows with matrices in panels, given those, the list of rows, and whether it is the
#: last round.
Multiply: TypeAlias = Callable[[Buffers, LoweredBuffer, bool], None]


class ExpertRules:
    """Rules for the matmuls of experts, in offload rounds if the experts are in a file.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        in_file: the params that are in a file; ``None``: there is none.
        registers: what tiles are sized for.

    Attributes:
        routings: the list of rows by expert, by the ids of the experts.
        stored_experts: the layers whose experts are in a file, by the table of their slots.

    Raises:
        InputError: params of the file are used for more than experts, or do not fit the budget.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        in_file: ExpertStore | None,
        registers: RegisterFile,
    ) -> None:
        self.registers = registers
        self.routings: dict[tuple[Value, GroupLayout], Routing] = {}
        self.stored_experts: dict[LoweredBuffer, StoredExperts] = {}
        self._in_file = in_file or ExpertStore({})
        self._shares = shares(graph, nodes, self._in_file, registers)

    def grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a ``grouped_matmul`` node."""
        x, w, _ = root.inputs
        if not rows_in_place(lowering.builder(region), x):
            lowering.copy(x)
        packed = not _may_stay(lowering, [w])
        self._alone(lowering, region, root, grouped_matmul(root, self.registers, packed=packed))

    def packed_grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around a ``packed_grouped_block_matmul`` node."""
        matmul = grouped_matmul(root, self.registers)
        for part in matmul.row_operands:
            if not part.reads_in_place(lowering.helper_builder()):
                lowering.copy(part.spec.a)
        self._alone(lowering, region, root, matmul)

    def _alone(
        self, lowering: ProgramBuilder, region: Region, root: Node, matmul: ExpertMatmul
    ) -> None:
        """Lower a region around a node that is one matmul, whose last operand are expert ids."""
        ids = root.inputs[-1]
        outputs = lowering.region_outputs(region)

        def multiply(matrices: Buffers, groups: LoweredBuffer, last: bool) -> None:
            build = lowering.builder(region)
            args = (build, matmul, matrices, groups, outputs, lowering.variables)
            kernel = grouped_matmul_kernel(*args)
            if last:
                lowering.call(region, build, kernel, outputs)
            else:
                lowering.helper_call(root, root.op.name, build, kernel)

        self._multiply(lowering, root, ids, [(matmul, multiply)])

    def expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        """Lower a region around an ``expert_mlp`` node."""
        lowering.counted.add(root)
        registers, packed = self.registers, not _may_stay(lowering, root.inputs[3:])
        layer = ExpertLayer(root, registers, packed=packed)
        if not rows_in_place(lowering.helper_builder(), layer.x):
            lowering.copy(layer.x)
        self._expert_matmuls(lowering, layer)
        build = lowering.builder(region)
        outputs = lowering.region_outputs(region)
        lowering.call(region, build, layer.sum_nest(build, outputs, lowering.variables), outputs)

    def _expert_matmuls(self, lowering: ProgramBuilder, layer: ExpertLayer) -> None:
        """Emit the matmuls of an ``expert_mlp``: into the hidden units, and out of them."""

        def multiply(
            step: ExpertStep, matrices: Buffers, groups: LoweredBuffer, last: bool
        ) -> None:
            title, matmul, make = step
            build = lowering.helper_builder()
            kernel = make(build, matrices, groups, lowering.variables)
            lowering.helper_call(layer.node, title, build, kernel, matmul.flops if last else 0)

        steps = [(step[1], partial(multiply, step)) for step in layer.matmuls]
        self._multiply(lowering, layer.node, layer.ids, steps)

    def _multiply(
        self,
        lowering: ProgramBuilder,
        node: Node,
        ids: Value,
        steps: Sequence[tuple[ExpertMatmul, Multiply]],
    ) -> None:
        """Multiply the rows of ``node`` with their experts' matrices, matmul after matmul."""
        if node not in self._shares:
            for matmul, multiply in steps:
                multiply(*self._grouped_operands(lowering, matmul, ids), True)
            return
        share, routing = self._shares[node], self._routing(lowering, steps[0][0], ids)
        experts = self._stored_experts(routing, share)
        first = len(experts.matrices)
        for matmul, _ in steps:
            experts.matrices.extend(self._stored_matrices(matmul, share))
        matrices = experts.matrices[first:]
        chosen = LoweredBuffer(routing.layout.type, Role.TEMP, f"{node.label}.chosen")

        def round_(number: int, *, last: bool) -> list[Call]:
            start = len(lowering.calls)
            staged = self._select(lowering, node, experts, chosen, number, share)
            remaining = iter(matrices)
            for matmul, multiply in steps:
                used = [next(remaining) for _ in matmul.weights]
                panels = [
                    self._stage(lowering, node, matrix, staged, share) if number else matrix.slots
                    for matrix in used
                ]
                multiply(panels, chosen, last)
            return lowering.calls[start:]

        if share.slots:
            round_(0, last=not share.staged)
        if share.staged:
            pattern = round_(1, last=True)
            most = max(1, min(bounds(routing.layout.rows)[1], routing.layout.experts))
            for number in range(2, 1 + ceil(most / share.staged)):
                lowering.calls += repeated(pattern, number, chosen)

    # -- operands ------------------------------------------------------------------------------

    def _grouped_operands(
        self, lowering: ProgramBuilder, matmul: ExpertMatmul, ids: Value
    ) -> tuple[list[LoweredBuffer], LoweredBuffer]:
        """The matrices of ``matmul``, and its rows by their expert ``ids``."""
        if matmul.packed:
            matrices = [pack(lowering, p, matmul.tile[1], matmul.form) for p in matmul.packings]
        else:
            matrices = [lowering.stored[weight] for weight in matmul.weights]
        return matrices, self._routing(lowering, matmul, ids).groups

    def _routing(self, lowering: ProgramBuilder, matmul: ExpertMatmul, ids: Value) -> Routing:
        """The rows of ``matmul`` by their expert ``ids``."""
        node, layout = matmul.node, matmul.layout
        if (ids, layout) not in self.routings:
            groups = LoweredBuffer(Routing.memory(layout), Role.TEMP, f"{node.label}.groups")
            nested = lowering.nested
            self.routings[ids, layout] = Routing(node.label, ids.shape, layout, groups, nested)
            lowering.kept.add(groups)
            build = lowering.helper_builder()
            kernel = group_rows_kernel(build, ids, groups, layout, lowering.variables)
            lowering.helper_call(node, "group", build, kernel)
        return self.routings[ids, layout]

    # -- experts in a file ---------------------------------------------------------------------

    def _stored_experts(self, routing: Routing, share: Share) -> StoredExperts:
        """The experts of a routing, which nodes with the same expert ids share."""
        for experts in self.stored_experts.values():
            if experts.routing is routing:
                return experts
        table = LoweredBuffer(
            TensorType(INT64, (routing.layout.experts,)), Role.RESIDENT, f"{routing.node}.slots"
        )
        self.stored_experts[table] = StoredExperts(routing, share.slots, table)
        return self.stored_experts[table]

    def _stored_matrices(self, matmul: ExpertMatmul, share: Share) -> Iterator[StoredMatrix]:
        for weight, packing in zip(matmul.weights, matmul.packings, strict=True):
            name = weight.name
            resident = for_experts(packing, share.slots)
            slots = resident.packed_buffer(matmul.tile[1], Role.RESIDENT, matmul.form)
            layout = self._in_file.params[name]
            pieces = piece_packing(packing, matmul.form, slots.type, layout)
            size = source_numbers(matmul.layout.experts, layout)
            source = LoweredBuffer(TensorType(INT64, (size,)), Role.RESIDENT, f"{name}.source")
            yield StoredMatrix(name, pieces, source, slots)

    def _select(
        self,
        lowering: ProgramBuilder,
        node: Node,
        experts: StoredExperts,
        chosen: LoweredBuffer,
        round_number: int,
        share: Share,
    ) -> LoweredBuffer:
        """Have ``chosen`` list the rows of a round; gives the experts that it is to stage."""
        groups = experts.routing
        count = share.staged if round_number else 0
        numbers = np.array([groups.layout.first_row, round_number, count], np.int64)
        label = node.label
        choice = LoweredBuffer(
            TensorType(INT64, (3,)), Role.CONSTANT, f"{label}.choice", data=numbers
        )
        listed = TensorType(INT64, (max(1, share.staged),))
        staged = LoweredBuffer(listed, Role.TEMP, f"{label}.staged")
        reads = (choice, groups.groups, experts.table)
        kernel = SelectExperts(_args(reads, (chosen, staged)), lowering.variables)
        lowering.calls.append(Call(kernel, (*reads, chosen, staged), (label,), "select experts"))
        return staged

    def _stage(
        self,
        lowering: ProgramBuilder,
        node: Node,
        matrix: StoredMatrix,
        staged: LoweredBuffer,
        share: Share,
    ) -> LoweredBuffer:
        """The panels of a matrix of non-resident experts."""
        shape = (share.staged, *matrix.slots.type.shape[1:])
        name = f"{matrix.param}.staged"
        panels = LoweredBuffer(TensorType(matrix.slots.type.dtype, shape), Role.TEMP, name)
        reads = (matrix.source, staged)
        kernel = StageExperts(
            _args(reads, (panels,)), share.staged, matrix.packing, lowering.variables
        )
        lowering.calls.append(Call(kernel, (*reads, panels), (node.label,), "stage experts"))
        return panels


def _args(reads: Sequence[LoweredBuffer], writes: Sequence[LoweredBuffer]) -> tuple[Arg, ...]:
    return (
        *(Arg(buffer.type.dtype, True, False) for buffer in reads),
        *(Arg(buffer.type.dtype, False, True) for buffer in writes),
    )


def _may_stay(lowering: ProgramBuilder, matrices: Iterable[Value]) -> bool:
    """Whether matrices of experts are better read where they are.

    Those that change from run to run would be packed in each, all of them, for the few that are
    needed.
    """
    stored = lowering.stored
    return all(
        matrix in stored and stored[matrix].layout is None and _varies(matrix)
        for matrix in matrices
    )


def _varies(value: Value) -> bool:
    """Whether ``value`` depends on more than params and constants."""
    seen: set[Node] = set()
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node.op in (INPUT, STATE):
            return True
        if node not in seen:
            seen.add(node)
            stack.extend(operand.node for operand in node.inputs)
    return False
