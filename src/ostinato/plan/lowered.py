"""A lowered program as prepared ops, and the buffers of the graph's values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.plan.prepared import KernelCall, KernelPart, PreparedKernel, View
from ostinato.plan.values import ValueBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Value
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Call, LoweredBuffer, Program
    from ostinato.plan.buffer import Buffer
    from ostinato.plan.prepared import KernelCode, PreparedOp
    from ostinato.plan.values import Origin

__all__ = ["LoweredOps"]


class LoweredOps:
    """The prepared ops of a program.

    Args:
        program: kernels and their buffers.
        buffers: the device buffer of each of these.
        code: the device's code of a kernel.
        origin: the graph that was lowered, and the one that the user built.

    Attributes:
        ops: a call for each kernel of a run, and a view where a value of the user's graph has the
            bytes of another in another shape.
        preparation: a call for each kernel that runs once per write of a param.
        values: by the ids of the user's values, the buffers that hold them.
    """

    def __init__(
        self,
        program: Program,
        buffers: Mapping[LoweredBuffer, Buffer],
        code: Callable[[Kernel], KernelCode],
        origin: Origin,
    ) -> None:
        self._buffers = buffers
        self._code = code
        stored = _stored(program, origin.lowered)
        by_id, views = self._find(origin.stand_ins(), stored)
        self.values = ValueBuffers(by_id, origin)
        self.ops = self._with_views(program.calls, views)
        self.preparation: Sequence[KernelCall] = [
            self._call(number, call) for number, call in enumerate(program.prepare)
        ]

    def _call(self, number: int, call: Call) -> KernelCall:
        return KernelCall(
            id=number,
            kernel=PreparedKernel.of(call, self._code(call.kernel), self._buffers),
            buffers=tuple(self._buffers[b] for b in call.buffers),
            node_names=call.nodes,
            flops=call.flops,
            parts=tuple(map(KernelPart.of, call.parts)),
        )

    def _find(
        self, stand_ins: Mapping[int, Value], stored: Mapping[Value, LoweredBuffer]
    ) -> tuple[dict[int, Buffer], dict[LoweredBuffer, list[Buffer]]]:
        """Buffers by value id, and the views among them by the buffer that they are views of."""
        by_id: dict[int, Buffer] = {}
        views: dict[LoweredBuffer, list[Buffer]] = {}
        seen: dict[Value, Buffer] = {}
        for key, value in stand_ins.items():
            holder = _holder(value, stored)
            if holder is None:
                continue
            buffer = seen.get(value) or self._buffers[holder]
            if buffer.type != value.type:
                buffer = buffer.reshaped(value.type)
                views.setdefault(holder, []).append(buffer)
            by_id[key] = seen[value] = buffer
        return by_id, views

    def _with_views(
        self, calls: Sequence[Call], views: Mapping[LoweredBuffer, Sequence[Buffer]]
    ) -> list[PreparedOp]:
        """A call for each kernel; views as soon as what they view is complete."""
        last = {buffer: step for step, call in enumerate(calls) for buffer in call.writes()}
        after: dict[int, list[LoweredBuffer]] = {}
        for holder in views:
            after.setdefault(last.get(holder, -1), []).append(holder)
        ops: list[PreparedOp] = []

        def view(holders: Iterable[LoweredBuffer]) -> None:
            for holder in holders:
                for target in views[holder]:
                    ops.append(View(id=len(ops), source=self._buffers[holder], target=target))

        view(after.get(-1, ()))
        for step, call in enumerate(calls):
            ops.append(self._call(len(ops), call))
            view(after.get(step, ()))
        return ops


def _stored(program: Program, graph: BaseGraph) -> dict[Value, LoweredBuffer]:
    """The values of the lowered graph that are in memory after the run."""
    outputs = {graph.outputs[name]: buffer for name, buffer in program.outputs.items()}
    states = {graph.assignments[name]: buffer for name, buffer in program.next_states.items()}
    leaves = [*program.inputs.values(), *program.params.values(), *program.states.values()]
    used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
    found: dict[Value, LoweredBuffer] = {}
    for buffer in (*leaves, *used):
        if buffer.value is not None:
            found.setdefault(buffer.value, buffer)
    return {**states, **outputs, **found}


def _holder(value: Value, stored: Mapping[Value, LoweredBuffer]) -> LoweredBuffer | None:
    """The buffer of a value, or of the value that it is a reshape of."""
    while value not in stored and value.node.op.name == "reshape":
        (value,) = value.node.inputs
    return stored.get(value)
