"""Make an execution plan from a compiled program and the memory that it runs on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.backends.common.program_image import Slot
from ostinato.backends.common.program_runner import ProgramRunner
from ostinato.errors import InputError
from ostinato.lower.program import Role
from ostinato.plan.buffer import Buffer, LentStorage
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.lowered import LoweredOps
from ostinato.plan.memory import program_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from ostinato.backends.common.context import Context
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_memory import ProgramMemory
    from ostinato.backends.common.program_runner import RunnableProgram
    from ostinato.ir.facts import Fact
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import LoweredBuffer
    from ostinato.plan.buffer import Storage
    from ostinato.plan.prepared import KernelCode

__all__ = ["PlannedExecutable", "lent_storages", "make_plan"]

#: Descriptions of buffers that users may not write, by their role.
_READ_ONLY = {
    Role.CONSTANT: "a constant",
    Role.PREPARED: "prepared from params",
    Role.MASKED_TAIL: "set between runs",
    Role.RESIDENT: "set between runs",
}


class PlannedExecutable(Protocol):
    """The part of an executable that its plans use."""

    unset: set[str]

    @property
    def program(self) -> RunnableProgram:
        """The device's program."""

    @property
    def memory(self) -> ProgramMemory[Any, Any]:
        """The memory of the fixed slots."""

    def write_params(self, params: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """See :meth:`Executable.write_params`."""

    def write_state(self, name: str, array: np.ndarray[Any, Any] | None) -> None:
        """See :meth:`Executable.write_state`."""

    @property
    def live_sizes(self) -> dict[str, int]:
        """See :attr:`Executable.live_sizes`."""

    def discard(self) -> None:
        """See :meth:`Executable.discard`."""

    def close(self) -> None:
        """See :meth:`Executable.close`."""


def lent_storages(
    executable: PlannedExecutable, lowered: LoweredGraph[Any], context: Context
) -> dict[Slot | str, Storage]:
    """The memory that plans share with runs: by fixed slot, and by non-retained param."""
    device, token, memory = context.device, id(executable.program), executable.memory
    lent: dict[Slot | str, Storage] = {
        slot: LentStorage(device, size, partial(memory.lend, slot), token, context)
        for slot, size in zip(Slot, lowered.layout.sizes, strict=True)
    }
    for buffer in lowered.non_retained:
        lend = partial(memory.lend_unpacked, buffer.name)
        lent[buffer.name] = LentStorage(device, buffer.nbytes, lend, token, context)
    return lent


def make_plan(
    executable: PlannedExecutable,
    lowered: LoweredGraph[Any],
    code: Callable[[Kernel], KernelCode],
    lent: Mapping[Slot | str, Storage],
    context: Context,
    facts: Sequence[Fact],
    block: Callable[[Storage], Any] | None = None,
) -> ExecutionPlan:
    """A plan that runs an executable, on buffers of its own for inputs and outputs.

    Args:
        executable: runs the plan, and lends its memory.
        lowered: the compiled graph.
        code: the device's code of a kernel.
        lent: see :func:`lent_storages`.
        context: the device's command queue; takes the memory of inputs and outputs.
        facts: the conditions of the graph on values of its Variables.
        block: returns the memory of a storage, as the device's programs take it; by default, they
            run on memory of the host.
    """
    program, layout = lowered.program, lowered.layout
    sizes = {v.name: v.max for v in program.variables}
    own = [context.storage(buffer.nbytes) for buffer in program.externals]
    storages = [*(lent[slot] for slot in Slot), *own]
    at = {buffer: (storages[slot], offset) for buffer, (slot, offset) in layout.locations.items()}
    at.update((buffer, (lent[buffer.name], 0)) for buffer in lowered.non_retained)
    buffers = {
        buffer: _plan_buffer(executable, buffer, storage, offset, sizes)
        for buffer, (storage, offset) in at.items()
    }
    ops = LoweredOps(program, buffers, code, lowered.origin)
    return ExecutionPlan(
        ops.ops,
        device=context.device,
        queue=context,
        runner=lambda _: ProgramRunner(
            executable.program,
            own,
            check=partial(_check_params, executable),
            discard=executable.discard,
            close=executable.close,
            live_sizes=lambda: executable.live_sizes,
            block=block,
        ),
        inputs={name: buffers[b] for name, b in {**program.inputs, **program.inouts}.items()},
        outputs={name: buffers[b] for name, b in program.outputs.items()},
        memory=program_memory(program, layout.placement, lowered.non_retained),
        preparation=ops.preparation,
        variables=program.variables,
        sizes=sizes,
        values=ops.values,
        facts=facts,
    )


def _plan_buffer(
    executable: PlannedExecutable,
    buffer: LoweredBuffer,
    storage: Storage,
    offset: int,
    sizes: Mapping[str, int],
) -> Buffer:
    write: Callable[[np.ndarray[Any, Any]], None] | None = None
    if buffer.role is Role.PARAM:
        write = partial(_write_param, executable, buffer.name)
    elif buffer.role is Role.STATE and not buffer.is_inout:
        write = partial(executable.write_state, buffer.name)
    read_only = _READ_ONLY.get(buffer.role, "")
    return Buffer(storage, offset, buffer.type, sizes=sizes, read_only=read_only, write=write)


def _write_param(executable: PlannedExecutable, name: str, array: np.ndarray[Any, Any]) -> None:
    executable.write_params({name: array})


def _check_params(executable: PlannedExecutable) -> None:
    if executable.unset:
        names = ", ".join(sorted(executable.unset))
        raise InputError(f"these params were never set: {names}")
