"""The lowering of graphs with experts: products with the matrices that each row chose.

Experts that are in a file are computed in waves; see :mod:`ostinato.lower.waves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from ostinato.dtypes import INT64
from ostinato.ir.leaves import INPUT, STATE
from ostinato.ir.types import TensorType
from ostinato.lower.experts import ExpertLayer
from ostinato.lower.fetching import Choosing, Fetching, piece_packing
from ostinato.lower.grouped import RowProduct, grouped_matmul_kernel, row_product, rows_in_place
from ostinato.lower.grouping import Routing, grouping_kernel
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.lowering import Lowering
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.waves import (
    SOURCE_HEAD,
    ExpertStore,
    Share,
    StoredExperts,
    StoredMatrix,
    repeated,
    shares,
)
from ostinato.ops.moe import EXPERT_MLP
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.experts import ExpertStep
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.lowering import LoweringOptions, Rule
    from ostinato.variables import Symbol

__all__ = ["ExpertLowering"]

Buffers: TypeAlias = Sequence[LoweredBuffer]

#: Multiplies rows with matrices in panels, given those, the list of rows, and whether it is the
#: last wave.
Multiply: TypeAlias = Callable[[Buffers, LoweredBuffer, bool], None]


class ExpertLowering(Lowering):
    """The lowering of graphs with experts: their products, in waves if they are in a file."""

    def __init__(
        self, graph: BaseGraph, options: LoweringOptions, variables: tuple[Symbol, ...]
    ) -> None:
        super().__init__(graph, options, variables)
        self.counted.update(node for node in self.nodes if node.op is EXPERT_MLP)
        self._in_file = options.experts or ExpertStore({})
        self._shares = shares(graph, self.nodes, self._in_file, options.registers)

    def _lower_grouped(self, region: Region, anchor: Node) -> None:
        x, w, ids = anchor.inputs
        if not rows_in_place(self._builder(region), x):
            self._copy(x)
        registers, packed = self.options.registers, not self._may_stay([w])
        product = row_product(anchor, x.shape[0], (w,), registers, packed=packed)
        outputs = self._region_outputs(region)

        def multiply(matrices: Buffers, groups: LoweredBuffer, last: bool) -> None:
            build = self._builder(region)
            args = (build, product, matrices, groups, outputs, self.variables)
            kernel = grouped_matmul_kernel(*args)
            if last:
                self._call(region, build, kernel, outputs)
            else:
                self._helper_call(anchor, anchor.op.name, build, kernel)

        self._multiply(anchor, ids, [(product, multiply)])

    def _lower_experts(self, region: Region, anchor: Node) -> None:
        registers, packed = self.options.registers, not self._may_stay(anchor.inputs[3:])
        layer = ExpertLayer(anchor, registers, packed=packed)
        if not rows_in_place(self._helper_builder(), layer.x):
            self._copy(layer.x)
        self._expert_products(layer)
        build = self._builder(region)
        outputs = self._region_outputs(region)
        self._call(region, build, layer.sum_nest(build, outputs, self.variables), outputs)

    def _expert_products(self, layer: ExpertLayer) -> None:
        """Emits the products of an ``expert_mlp``: into the hidden units, and out of them."""

        def multiply(
            step: ExpertStep, matrices: Buffers, groups: LoweredBuffer, last: bool
        ) -> None:
            title, product, make = step
            build = self._helper_builder()
            kernel = make(build, matrices, groups, self.variables)
            self._helper_call(layer.node, title, build, kernel, product.flops if last else 0)

        steps = [(step[1], partial(multiply, step)) for step in layer.products]
        self._multiply(layer.node, layer.ids, steps)

    def _multiply(
        self, node: Node, ids: Value, steps: Sequence[tuple[RowProduct, Multiply]]
    ) -> None:
        """Multiplies the rows of ``node`` with their experts' matrices, product after product."""
        if node not in self._shares:
            for product, multiply in steps:
                multiply(*self._grouped_operands(product, ids), True)
            return
        share, routing = self._shares[node], self._routing(steps[0][0], ids)
        experts = self._stored_experts(routing, share)
        first = len(experts.matrices)
        for product, _ in steps:
            experts.matrices.extend(self._stored_matrices(product, share))
        matrices = experts.matrices[first:]
        chosen = LoweredBuffer(routing.layout.type, Role.TEMP, f"{node.label}.chosen")

        def wave(number: int, *, last: bool) -> list[Call]:
            start = len(self.calls)
            fetched = self._choose(node, experts, chosen, number, share)
            remaining = iter(matrices)
            for product, multiply in steps:
                used = [next(remaining) for _ in product.weights]
                panels = [
                    self._fetch(node, matrix, fetched, share) if number else matrix.slots
                    for matrix in used
                ]
                multiply(panels, chosen, last)
            return self.calls[start:]

        if share.places:
            wave(0, last=not share.staged)
        if share.staged:
            pattern = wave(1, last=True)
            most = max(1, min(bounds(routing.layout.rows)[1], routing.layout.experts))
            for number in range(2, 1 + ceil(most / share.staged)):
                self.calls += repeated(pattern, number, chosen)

    # -- operands ------------------------------------------------------------------------------

    def _may_stay(self, matrices: Iterable[Value]) -> bool:
        """Whether matrices of experts are better read where they are.

        Those that change from run to run would be packed in each, all of them, for the few that
        are needed.
        """
        return all(
            matrix in self.stored and self.stored[matrix].layout is None and _varies(matrix)
            for matrix in matrices
        )

    def _grouped_operands(
        self, product: RowProduct, ids: Value
    ) -> tuple[list[LoweredBuffer], LoweredBuffer]:
        """The matrices of ``product``, and its rows by their expert ``ids``."""
        if product.packed:
            matrices = [self._pack(p, product.tile[1], product.form) for p in product.packings]
        else:
            matrices = [self.stored[weight] for weight in product.weights]
        return matrices, self._routing(product, ids).groups

    def _routing(self, product: RowProduct, ids: Value) -> Routing:
        """The rows of ``product`` by their expert ``ids``."""
        node, layout = product.node, product.layout
        if (ids, layout) not in self.routings:
            groups = LoweredBuffer(layout.type, Role.TEMP, f"{node.label}.groups")
            self.routings[ids, layout] = Routing(node.label, ids.shape, layout, groups)
            build = self._helper_builder()
            kernel = grouping_kernel(build, ids, groups, layout, self.variables)
            self._helper_call(node, "group", build, kernel)
        return self.routings[ids, layout]

    # -- experts in a file ---------------------------------------------------------------------

    def _stored_experts(self, routing: Routing, share: Share) -> StoredExperts:
        """Those of a routing, which nodes with the same expert ids share."""
        for experts in self.stored_experts.values():
            if experts.routing is routing:
                return experts
        table = LoweredBuffer(
            TensorType(INT64, (routing.layout.experts,)), Role.PLACED, f"{routing.node}.places"
        )
        self.stored_experts[table] = StoredExperts(routing, share.places, table)
        return self.stored_experts[table]

    def _stored_matrices(self, product: RowProduct, share: Share) -> Iterator[StoredMatrix]:
        for weight, packing in zip(product.weights, product.packings, strict=True):
            name = weight.name
            of_places = replace(packing, groups=(share.places,))
            slots = of_places.packed_buffer(product.tile[1], Role.PLACED, product.form)
            experts, depth, columns = weight.shape
            assert isinstance(depth, int)
            assert isinstance(columns, int)
            transposed = self._in_file.params[name]
            matrix = (depth, columns)
            pieces = piece_packing(weight.dtype, matrix, slots.type, transposed=transposed)
            size = SOURCE_HEAD + experts
            source = LoweredBuffer(TensorType(INT64, (size,)), Role.PLACED, f"{name}.source")
            yield StoredMatrix(name, pieces, source, slots)

    def _choose(
        self,
        node: Node,
        experts: StoredExperts,
        chosen: LoweredBuffer,
        wave: int,
        share: Share,
    ) -> LoweredBuffer:
        """Has ``chosen`` list the rows of a wave; gives the experts that it is to fetch."""
        groups = experts.routing
        numbers = np.array([groups.layout.first_row, wave, share.staged if wave else 0], np.int64)
        label = node.label
        choice = LoweredBuffer(
            TensorType(INT64, (3,)), Role.CONSTANT, f"{label}.choice", data=numbers
        )
        listed = TensorType(INT64, (max(1, share.staged),))
        fetched = LoweredBuffer(listed, Role.TEMP, f"{label}.fetched")
        reads = (choice, groups.groups, experts.table)
        kernel = Choosing(_args(reads, (chosen, fetched)), self.variables)
        self.calls.append(Call(kernel, (*reads, chosen, fetched), (label,), "choose experts"))
        return fetched

    def _fetch(
        self, node: Node, matrix: StoredMatrix, fetched: LoweredBuffer, share: Share
    ) -> LoweredBuffer:
        """The panels of a matrix of experts that have no place."""
        shape = (share.staged, *matrix.slots.type.shape[1:])
        name = f"{matrix.param}.fetched"
        panels = LoweredBuffer(TensorType(matrix.slots.type.dtype, shape), Role.TEMP, name)
        reads = (matrix.source, fetched)
        kernel = Fetching(_args(reads, (panels,)), share.staged, matrix.packing, self.variables)
        self.calls.append(Call(kernel, (*reads, panels), (node.label,), "fetch experts"))
        return panels

    # -- rules ---------------------------------------------------------------------------------

    rules: ClassVar[Mapping[str, Rule]] = {
        **Lowering.rules,
        "grouped_matmul": _lower_grouped,
        "expert_mlp": _lower_experts,
    }


def _args(reads: Sequence[LoweredBuffer], writes: Sequence[LoweredBuffer]) -> tuple[Arg, ...]:
    return (
        *(Arg(buffer.type.dtype, True, False) for buffer in reads),
        *(Arg(buffer.type.dtype, False, True) for buffer in writes),
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
