"""Experts that do not all fit into memory: some have places there, the others are in a file.

A layer's experts are computed in waves. The first is of those that have a place; each later one
fetches a few of the others into room that it shares with all else that lives within a run. Waves
that have nothing to do cost next to nothing. All waves run the same kernels on the same panels, and
every row is computed in one of them, so results do not depend on who has a place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ostinato.dtypes import INT64
from ostinato.errors import InputError
from ostinato.ir.leaves import PARAM
from ostinato.ir.types import TensorType
from ostinato.lower.emission import Emission
from ostinato.lower.experts import ExpertLayer
from ostinato.lower.fetching import Choosing, Fetching, PiecePacking, piece_packing
from ostinato.lower.grouped import RowProduct, row_product
from ostinato.lower.loops import Arg
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.ops.moe import EXPERT_MLP, GROUPED_MATMUL
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower.experts import ExpertStep
    from ostinato.lower.grouping import Routing
    from ostinato.lower.products import RegisterFile
    from ostinato.variables import Symbol

__all__ = ["SOURCE_HEAD", "Buffers", "ExpertStore", "ExpertWaves", "StoredExperts", "StoredMatrix"]

#: Of a budget, how much is room for experts without a place, unless one takes more.
_STAGING_SHARE = 1 / 8

#: Numbers of a source before the offsets of its experts; see csrc/experts.h.
SOURCE_HEAD = 11

Buffers: TypeAlias = Sequence[LoweredBuffer]

#: Multiplies rows with matrices in panels, given those, the list of rows, and whether it is the
#: last wave.
Multiply: TypeAlias = Callable[[Buffers, LoweredBuffer, bool], None]


@dataclass(frozen=True)
class ExpertStore:
    """Which params are in a file of experts, and how much memory their experts may take.

    Attributes:
        params: by name, whether the file has the matrices transposed.
        budget: bytes; ``None``: as many as it takes.
    """

    params: Mapping[str, bool]
    budget: int | None = None


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """One matrix of each expert of a node.

    Attributes:
        param: the name of the param.
        packing: how a matrix of the file is packed.
        source: a table for the device's runtime: where the matrices are.
        slots: the panels of experts that have places.
    """

    param: str
    packing: PiecePacking
    source: LoweredBuffer
    slots: LoweredBuffer


@dataclass(frozen=True, eq=False)
class StoredExperts:
    """The experts of a layer, some of which have places in memory.

    Attributes:
        routing: of the layer.
        places: how many there are.
        table: the place of each expert, or -1.
        matrices: what each expert consists of.
    """

    routing: Routing
    places: int
    table: LoweredBuffer
    matrices: list[StoredMatrix] = field(default_factory=list)

    @property
    def buffers(self) -> list[LoweredBuffer]:
        """All that lives as long as the program."""
        return [self.table, *(b for m in self.matrices for b in (m.source, m.slots))]


@dataclass(frozen=True)
class _Share:
    """What a node gets of the budget: places, and how many experts a wave fetches."""

    places: int
    staged: int


class ExpertWaves(Emission):
    """Emits products with experts, in waves if they are in a file; a part of the lowering.

    Attributes:
        stored_experts: the layers whose experts are in a file, by the table of their places.
    """

    def __init__(
        self,
        graph: BaseGraph,
        nodes: Sequence[Node],
        store: ExpertStore | None,
        registers: RegisterFile,
        variables: tuple[Symbol, ...],
    ) -> None:
        super().__init__(nodes, variables)
        self.stored_experts: dict[LoweredBuffer, StoredExperts] = {}
        self._in_file = store or ExpertStore({})
        self._shares = _shares(graph, nodes, self._in_file, registers)

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
                self.calls += _again(pattern, number, chosen)

    def _stored_experts(self, routing: Routing, share: _Share) -> StoredExperts:
        """Those of a routing, which nodes with the same expert ids share."""
        for experts in self.stored_experts.values():
            if experts.routing is routing:
                return experts
        table = LoweredBuffer(
            TensorType(INT64, (routing.layout.experts,)), Role.PLACED, f"{routing.node}.places"
        )
        self.stored_experts[table] = StoredExperts(routing, share.places, table)
        return self.stored_experts[table]

    def _stored_matrices(self, product: RowProduct, share: _Share) -> Iterator[StoredMatrix]:
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

    # -- calls ---------------------------------------------------------------------------------

    def _choose(
        self,
        node: Node,
        experts: StoredExperts,
        chosen: LoweredBuffer,
        wave: int,
        share: _Share,
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
        self, node: Node, matrix: StoredMatrix, fetched: LoweredBuffer, share: _Share
    ) -> LoweredBuffer:
        """The panels of a matrix of experts that have no place."""
        shape = (share.staged, *matrix.slots.type.shape[1:])
        name = f"{matrix.param}.fetched"
        panels = LoweredBuffer(TensorType(matrix.slots.type.dtype, shape), Role.TEMP, name)
        reads = (matrix.source, fetched)
        kernel = Fetching(_args(reads, (panels,)), share.staged, matrix.packing, self.variables)
        self.calls.append(Call(kernel, (*reads, panels), (node.label,), "fetch experts"))
        return panels


def _args(reads: Sequence[LoweredBuffer], writes: Sequence[LoweredBuffer]) -> tuple[Arg, ...]:
    return (
        *(Arg(buffer.type.dtype, True, False) for buffer in reads),
        *(Arg(buffer.type.dtype, False, True) for buffer in writes),
    )


def _again(pattern: Sequence[Call], wave: int, chosen: LoweredBuffer) -> list[Call]:
    """The calls of a wave that fetches experts, by those of another one.

    They share kernels, but not the room that experts are fetched into: so that each piece of it is
    in use only as long as it must be.
    """
    fresh: dict[LoweredBuffer, LoweredBuffer] = {}
    for call in pattern:
        if isinstance(call.kernel, Choosing):
            choice = call.buffers[0]
            assert choice.data is not None
            first_row, _, size = choice.data
            numbers = np.array([first_row, wave, size], np.int64)
            fresh[choice] = replace(choice, data=numbers)
        if isinstance(call.kernel, Choosing | Fetching):
            fresh.update((room, replace(room)) for room in call.writes() if room is not chosen)
    return [
        replace(call, buffers=tuple(fresh.get(b, b) for b in call.buffers), flops=0)
        for call in pattern
    ]


# -- sharing the budget ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Need:
    """What a node's experts take.

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


def _shares(
    graph: BaseGraph, nodes: Sequence[Node], store: ExpertStore, registers: RegisterFile
) -> dict[Node, _Share]:
    """What each node with experts in the file gets of the budget.

    Every layer gets as many places as every other one, or as many as it has experts.

    Raises:
        InputError: a param of the file is more than the matrices of experts, or the budget is too
            small for a single expert.
    """
    if not store.params:
        return {}
    needs = {node: _need(node, registers) for node in nodes if _reads_stored(node, store)}
    _check_uses(graph, nodes, needs, store)
    everything = sum(need.experts * need.whole for need in needs.values())
    if store.budget is None or everything <= store.budget:
        return {node: _Share(need.experts, 0) for node, need in needs.items()}
    fixed = sum(need.whole for need in needs.values() if not need.chooses)
    choosing = {node: need for node, need in needs.items() if need.chooses}
    budget = store.budget - fixed
    staged = _staged(choosing.values(), budget, everything)
    left = budget - _staging(choosing.values(), staged)
    places = 0
    while sum(min(n.experts, places + 1) * n.whole for n in choosing.values()) <= left:
        places += 1
    return {
        node: _Share(min(need.experts, places), min(need.used, staged) if need.chooses else 0)
        if need.chooses
        else _Share(1, 0)
        for node, need in needs.items()
    }


def _staging(needs: Collection[_Need], staged: int) -> int:
    """Bytes of room for that many fetched experts; layers use it one after the other."""
    return max((min(n.used, staged) * n.at_once for n in needs), default=0)


def _staged(needs: Collection[_Need], budget: int, everything: int) -> int:
    """How many experts a wave fetches."""
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


def _matrices(node: Node) -> Sequence[Value]:
    """The operands of a node that are matrices of experts."""
    if node.op is EXPERT_MLP:
        return node.inputs[3:]
    return node.inputs[1:2] if node.op is GROUPED_MATMUL else ()


def _reads_stored(node: Node, store: ExpertStore) -> bool:
    return any(m.node.op is PARAM and m.name in store.params for m in _matrices(node))


def _need(node: Node, registers: RegisterFile) -> _Need:
    if node.op is EXPERT_MLP:
        layer = ExpertLayer(node, registers, packed=True)
        products: tuple[RowProduct, ...] = (layer.inner, layer.outer)
    else:
        x, w, _ = node.inputs
        products = (row_product(node, x.shape[0], (w,), registers),)
    parts = [
        sum(
            replace(p, groups=(1,)).packed_buffer(product.tile[1], Role.TEMP, product.form).nbytes
            for p in product.packings
        )
        for product in products
    ]
    experts = products[0].layout.experts
    used = max(1, min(experts, bounds(products[0].rows)[1]))
    return _Need(experts, used, sum(parts), max(parts))


def _check_uses(
    graph: BaseGraph, nodes: Sequence[Node], needs: Mapping[Node, _Need], store: ExpertStore
) -> None:
    """Refuse params of the file that are anything but matrices of experts."""
    for name in store.params:
        value = graph.params[name]
        readers = [node for node in nodes if value in node.inputs]
        wrong = [n for n in readers if n.inputs.count(value) != _matrices(n).count(value)]
        if wrong or value in graph.results():
            by = f"{wrong[0]} {wrong[0].source}".rstrip() if wrong else "the outputs"
            raise InputError(f"param {name!r} is in the file of experts, but is also read by {by}")
    for node in needs:
        missing = [m for m in _matrices(node) if m.node.op is not PARAM]
        missing += [m for m in _matrices(node) if m.name not in store.params]
        if missing:
            raise InputError(
                f"{node} {node.source}: of its matrices, {missing[0].name!r} is not in the "
                "file of experts, others are"
            )
