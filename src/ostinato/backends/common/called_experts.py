"""The layers of a program that choose among experts, and the ids of those that a run has called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.program_image import RoutingLocation
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.extent import buffers_behind
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Program, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.backends.common.buffer_layout import BufferLayout
    from ostinato.backends.common.resident_experts import ResidentLayer
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program import Call
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim

__all__ = [
    "CalledExperts",
    "CalledLayers",
    "ExpertProgram",
    "lasting_ids",
    "routings",
    "with_origins",
]


@dataclass(frozen=True, eq=False)
class CalledExperts:
    """A layer of experts: nodes that share the ids of the experts.

    Attributes:
        label: of its first node.
        experts: how many there are.
        ids: keep the ids of a run until the next one.
        resident: its nodes whose experts do not all stay on the device.
        padded: the numbers of rows of the inputs that the ids come from.
    """

    label: str
    experts: int
    ids: LoweredBuffer
    padded: tuple[int, ...] = ()
    resident: list[ResidentLayer] = field(default_factory=list)


@dataclass(eq=False)
class ExpertProgram(Program):
    """A device's program with layers of experts.

    Attributes:
        called: the layers that choose among experts, in order.
        resident: the nodes whose experts do not all stay on the device.
    """

    called: list[CalledExperts] = field(default_factory=list)
    resident: list[ResidentLayer] = field(default_factory=list)

    @staticmethod
    def of(
        program: Program,
        calls: list[Call],
        prepare: list[Call],
        called: Sequence[CalledExperts] = (),
        resident: Sequence[ResidentLayer] = (),
    ) -> ExpertProgram:
        """A program with other calls, and its layers of experts."""
        return program.extended(
            ExpertProgram, calls=calls, prepare=prepare, called=[*called], resident=[*resident]
        )


def with_origins(called: Sequence[CalledExperts], program: Program) -> list[CalledExperts]:
    """The layers, with the numbers of rows of the inputs that their ids come from."""
    if not called:
        return []
    leading = {b.type.shape[0] for b in program.inputs.values() if b.type.shape}
    sizes = sorted(size for size in leading if isinstance(size, int))
    behind = {size: buffers_behind(program, size) for size in sizes}
    return [
        replace(layer, padded=tuple(size for size in sizes if layer.ids in behind[size]))
        for layer in called
    ]


class CalledLayers:
    """The layers of a graph that choose among experts, as its nodes are lowered.

    Args:
        keep: whether the ids of a run are kept; without, there are no layers.

    Attributes:
        found: the layers so far, by their ids and the number of experts.
    """

    def __init__(self, *, keep: bool) -> None:
        self.found: dict[tuple[Value, Dim], CalledExperts] = {}
        self._keep = keep

    def layer(
        self, lowering: ProgramBuilder, root: Node, ids: Value, count: Dim
    ) -> CalledExperts | None:
        """The layer of a node, which keeps its ids; ``None``: it is none, or they are not kept.

        A network that every token goes through is no layer, nor is one in the body of a loop.

        Args:
            lowering: takes the copy of ids that something else of a run writes.
            root: the node.
            ids: of the experts of each row.
            count: the number of experts.
        """
        if not self._keep or lowering.nested or not isinstance(count, int) or count < 2:
            return None
        if (ids, count) not in self.found:
            kept = lasting_ids(lowering, root, ids)
            lowering.kept.add(kept)
            self.found[ids, count] = CalledExperts(root.label, count, kept)
        return self.found[ids, count]


def lasting_ids(lowering: ProgramBuilder, root: Node, ids: Value) -> LoweredBuffer:
    """Memory that has the ids as int64 until the next run: their own, or that of a copy."""
    if _stays(lowering, ids):
        return lowering.stored[ids]
    type_ = TensorType(INT64, ids.shape)
    kept = LoweredBuffer(type_, Role.TEMP, f"{root.label}.ids")
    build = lowering.helper_builder()
    at = build.axes(ids.shape)
    number = build.as_int64(build.at(ids, at))
    store = Store(build.argument(kept, writes=True), linear_index(ids.shape, at), number)
    nest = block_nest(build, symbols_of(at), [store], lowering.variables)
    lowering.helper_call(root, "experts' ids", build, nest)
    return kept


def _stays(lowering: ProgramBuilder, ids: Value) -> bool:
    """Whether the ids are in memory of their own that nothing else of a run writes."""
    buffer = lowering.stored.get(ids)
    if buffer is None or buffer.role is not Role.TEMP or buffer in lowering.assigned:
        return False
    readers = [node for node in lowering.nodes if ids in node.inputs]
    return (
        ids.dtype is INT64
        and buffer.layout is None
        and buffer.home is None
        and not any(node.op.updates_operand for node in readers)
    )


def routings(called: Sequence[CalledExperts], layout: BufferLayout) -> Iterator[RoutingLocation]:
    """The places in the arena where runs leave the ids of the experts that they called."""
    for layer in called:
        ids, (_, offset) = layer.ids, layout.locations[layer.ids]
        per_token = tuple(map(int, ids.type.shape[1:]))  # type: ignore[arg-type]  # not symbolic
        rows = "" if isinstance(ids.type.size, int) else str(ids.type.size)
        yield RoutingLocation(
            layer.label, per_token, layer.experts, 0, offset, ids.nbytes, rows, layer.padded
        )
