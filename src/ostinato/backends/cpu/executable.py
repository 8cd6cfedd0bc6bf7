"""A lowered program with code and memory, ready to run through the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.cpu import _core
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.plan.execution_plan import ExecutionPlan, arena_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cpu.compiler import MachineCode
    from ostinato.backends.device import Device
    from ostinato.lower.program import Program
    from ostinato.plan.report import CompileReport

__all__ = ["CpuExecutable"]

Array = np.ndarray[Any, Any]


class CpuExecutable(Executable):
    """See :class:`~ostinato.backends.base.Executable`.

    Memory is taken once, here: an arena for what lives within a run, and one block each for
    params, constants, states and prepared values. Inputs and outputs are the caller's arrays.
    """

    def __init__(
        self,
        program: Program,
        code: MachineCode,
        pool: _core.ThreadPool,
        device: Device,
        report: CompileReport,
    ) -> None:
        self.program = program
        self.report = report
        self._code = code
        self._pool = pool
        self._slots: list[Any] = []
        self._places: dict[LoweredBuffer, tuple[int, int]] = {}
        self._writable: dict[str, Array] = {}
        placement, temps = arena_placement(program)
        self._place_together(temps, placement.offsets, placement.arena_bytes)
        owned = self._owned()
        self._place_fixed(owned)
        externals = [*program.inputs.values(), *program.outputs.values()]
        for buffer in externals:
            self._places[buffer] = (len(self._slots), 0)
            size = code.size(buffer.type.size * buffer.type.dtype.itemsize)
            written = buffer.role is Role.OUTPUT
            self._slots.append((buffer.nbytes, written, size) if size else (buffer.nbytes, written))
        self._run = self._native(program.calls, self._slots)
        fixed = self._slots[: -len(externals)] if externals else self._slots
        self._prepare = self._native(program.prepare, fixed)
        self._prepared = False
        self.plan = ExecutionPlan(device, program, placement)

    # -- memory ------------------------------------------------------------------------------------

    def _owned(self) -> list[LoweredBuffer]:
        """Buffers that live as long as this object, each once."""
        program = self.program
        used = [b for call in (*program.prepare, *program.calls) for b in call.buffers]
        kept = (Role.PARAM, Role.CONSTANT, Role.STATE, Role.PREPARED)
        listed = [*program.params.values(), *program.states.values(), *used]
        return list(dict.fromkeys(b for b in listed if b.role in kept))

    def _place_fixed(self, owned: Sequence[LoweredBuffer]) -> None:
        offsets: list[int] = []
        end = 0
        for buffer in owned:
            offsets.append(end)
            end += -(-buffer.nbytes // 64) * 64
        memory = self._place_together(owned, offsets, end)
        for buffer, offset in zip(owned, offsets, strict=True):
            view = _typed_view(memory, offset, buffer)
            if buffer.data is not None:
                view[...] = buffer.data
            elif buffer.role is Role.STATE:
                assert buffer.value is not None
                view[...] = buffer.value.node.attrs["init"]
            elif buffer.role is Role.PARAM:
                self._writable[buffer.name] = view

    def _place_together(
        self, buffers: Sequence[LoweredBuffer], offsets: Sequence[int], nbytes: int
    ) -> _core.Arena:
        arena = _core.Arena(nbytes)
        for buffer, offset in zip(buffers, offsets, strict=True):
            self._places[buffer] = (len(self._slots), offset)
        self._slots.append(arena)
        return arena

    def _native(self, calls: Sequence[Call], slots: Sequence[Any]) -> _core.Program:
        steps = [self._step(call) for call in calls]
        variables = len(self.program.variables)
        return _core.Program(self._pool, slots, steps, variables, owner=self._code)

    def _step(self, call: Call) -> tuple[Any, ...]:
        kernel = call.kernel
        compiled = self._code.kernel(kernel)
        arguments = tuple(self._places[b] for b in call.buffers)
        extent = kernel.extent if isinstance(kernel.extent, int) else 0
        return (
            compiled.address,
            arguments,
            extent,
            compiled.extent_address,
            kernel.grain,
            kernel.scratch_bytes,
            kernel.parallel,
        )

    # -- running -----------------------------------------------------------------------------------

    def write_param(self, name: str, array: Array) -> None:
        self._writable[name][...] = array
        self._prepared = False

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        self._ensure_prepared()
        self._run.run((*inputs, *outputs), variables)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        self._ensure_prepared()
        return self._run.bind((*inputs, *outputs), variables)

    def _ensure_prepared(self) -> None:
        if not self._prepared:
            self._prepare.run()
            self._prepared = True


def _typed_view(memory: Any, offset: int, buffer: LoweredBuffer) -> Array:
    shape = tuple(int(d) for d in buffer.type.shape)  # type: ignore[arg-type]  # never symbolic
    dtype = buffer.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(memory, np.uint8, count * dtype.itemsize, offset)
    return flat.view(dtype).reshape(shape)
