"""A lowered program with code and memory, ready to run through the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.base import Executable
from ostinato.backends.cpu import _core
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.plan.execution_plan import ExecutionPlan, arena_placement
from ostinato.plan.preparation import preparations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.cpu.compiler import MachineCode
    from ostinato.backends.device import Device
    from ostinato.lower.program import Program
    from ostinato.plan.preparation import Preparation
    from ostinato.plan.report import CompileReport

__all__ = ["CpuExecutable"]

Array = np.ndarray[Any, Any]

#: Bytes of a param that one thread copies before it looks for more.
_COPIED_AT_ONCE = 1 << 18


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
        params: Mapping[str, Array],
    ) -> None:
        self.program = program
        self.report = report
        self._code = code
        self._pool = pool
        self._slots: list[Any] = []
        self._places: dict[LoweredBuffer, tuple[int, int]] = {}
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
        self._fixed = self._slots[: -len(externals)] if externals else self._slots
        self._run = self._native([self._step(call) for call in program.calls], self._slots)
        self._preparations = preparations(program.prepare)
        self.plan = ExecutionPlan(device, program, placement)
        self._write(params, [p for p in self._preparations if p.params <= params.keys()])

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

    def _place_together(
        self, buffers: Sequence[LoweredBuffer], offsets: Sequence[int], nbytes: int
    ) -> _core.Arena:
        arena = _core.Arena(nbytes)
        for buffer, offset in zip(buffers, offsets, strict=True):
            self._places[buffer] = (len(self._slots), offset)
        self._slots.append(arena)
        return arena

    def _native(
        self,
        steps: Sequence[_core.Step],
        slots: Sequence[Any],
        *,
        turns_with: _core.Program | None = None,
    ) -> _core.Program:
        variables = len(self.program.variables)
        return _core.Program(
            self._pool, slots, steps, variables, owner=self._code, turns_with=turns_with
        )

    def _step(self, call: Call) -> _core.Step:
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

    # -- params ------------------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        self._write(params, [p for p in self._preparations if not p.params.isdisjoint(params)])

    def _write(self, params: Mapping[str, Array], stale: Sequence[Preparation]) -> None:
        """Copy arrays into params, then prepare.

        All of it is one native program that takes turns with runs. It is made for the occasion:
        weights are written rarely, and in any combination.
        """
        buffers = [self.program.params[name] for name in params]
        given = [(buffer.nbytes, False) for buffer in buffers]
        copies = [self._copy(b, len(self._fixed) + i) for i, b in enumerate(buffers)]
        steps = [*copies, *(self._step(call) for part in stale for call in part.calls)]
        slots = [*self._fixed, *given]
        self._native(steps, slots, turns_with=self._run).run(list(params.values()))

    def _copy(self, target: LoweredBuffer, source: int) -> _core.Step:
        """The step that fills ``target`` from the slot ``source``."""
        arguments = (self._places[target], (source, 0))
        return (_core.memcpy_kernel, arguments, target.nbytes, 0, _COPIED_AT_ONCE, 0)

    # -- running -----------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> None:
        self._run.run([*inputs, *outputs], variables)

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], variables: Sequence[int]
    ) -> Callable[[], None]:
        return self._run.bind([*inputs, *outputs], variables)


def _typed_view(memory: Any, offset: int, buffer: LoweredBuffer) -> Array:
    shape = tuple(int(d) for d in buffer.type.shape)  # type: ignore[arg-type]  # never symbolic
    dtype = buffer.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(memory, np.uint8, count * dtype.itemsize, offset)
    return flat.view(dtype).reshape(shape)
