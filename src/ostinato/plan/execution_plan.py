"""Execution plans: prepared ops in execution order, and their memory."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.errors import PlanError, VariableError
from ostinato.ir.binding import check_values, variable_values
from ostinato.ir.facts import check_facts
from ostinato.plan.buffer import Buffer
from ostinato.plan.memory import ops_memory
from ostinato.plan.order import Submission
from ostinato.plan.prepared import KernelCall, View
from ostinato.plan.profile import KernelProfile, PartProfile, Profile, TimedStep
from ostinato.plan.schedule import schedule
from ostinato.plan.values import ValueBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.ir.binding import VariableValues
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import Value
    from ostinato.plan.buffer import DeviceQueue
    from ostinato.plan.memory import MemoryReport
    from ostinato.plan.order import Accesses
    from ostinato.plan.prepared import PreparedKernel, PreparedOp
    from ostinato.plan.profile import StepTime
    from ostinato.variables import Symbol

__all__ = ["ExecutionPlan", "Runner"]


class Runner(Protocol):
    """Prepared ops that a device has encoded, to be run any number of times."""

    @property
    def accesses(self) -> Accesses:
        """The memory that a run touches."""

    @property
    def held(self) -> Accesses:
        """The same, of what has been taken by now."""

    def check(self) -> None:
        """Check that the ops can run.

        Raises:
            InputError: a param was never set.
        """

    def run(self, variables: Sequence[int]) -> None:
        """Run all ops, in order or as if in order."""

    def run_profiled(self, variables: Sequence[int]) -> Sequence[StepTime]:
        """Run; return the time of each op but views."""

    @property
    def live_sizes(self) -> Mapping[str, int]:
        """The values that the last run gave data-dependent Variables, by name."""

    def discard(self) -> None:
        """Give back the memory of intermediate buffers, until the next run."""

    def close(self) -> None:
        """Give back all memory; from now on :meth:`run` raises :class:`PlanError`."""


class ExecutionPlan:
    """A schedule of ops and the buffers that they run on.

    Made by :meth:`Session.prepare`, held by every :class:`CompiledGraph`, or built by hand. It has
    buffers of its own for inputs and outputs, whose memory is taken at their first use: a compiled
    graph runs on the caller's arrays instead. It may be used from many threads; runs are
    serialised.

    Args:
        ops: the ops. They run in this order, but for ops that declare a dependency on a later one.
        device: the device that runs them.
        runner: encodes ops, given in their final order.
        inputs, outputs: buffers by name.
        memory: the memory of the plan; by default, that of the buffers that the ops touch.
        preparation: ops that have run, or will, outside of :meth:`execute`.
        variables: the Variables, in the order in which kernels take them. Data-dependent ones get
            their values from runs.
        sizes: their values, shared with the buffers' shapes; first the greatest ones.
        values: the buffers of the graph's values.
        queue: the device's, which may record, and hold values of Variables; by default, none.
        facts: conditions that values of the Variables must meet.

    Raises:
        PlanError: ops have the same id, or one depends on itself, on an op that does not exist,
            or through others on itself; or an output is neither written by an op nor an input.

    Attributes:
        device: the device that runs it.
        memory: the memory that it takes.
        prepared_ops: kernel calls, copies and views, in schedule order.
        preparation: those that run once per write of a param.
        inputs, outputs: buffers by name.
    """

    def __init__(
        self,
        ops: Iterable[PreparedOp],
        *,
        device: Any,
        runner: Callable[[Sequence[PreparedOp]], Runner],
        inputs: Mapping[str, Buffer] = MappingProxyType({}),
        outputs: Mapping[str, Buffer] = MappingProxyType({}),
        memory: MemoryReport | None = None,
        preparation: Sequence[KernelCall] = (),
        variables: Sequence[Symbol] = (),
        sizes: dict[str, int] | None = None,
        values: ValueBuffers | None = None,
        queue: DeviceQueue | None = None,
        facts: Sequence[Fact] = (),
    ) -> None:
        self.device = device
        self.prepared_ops = schedule(list(ops))
        self.preparation = tuple(preparation)
        self.inputs = MappingProxyType(dict(inputs))
        self.outputs = MappingProxyType(dict(outputs))
        _check_outputs(self.prepared_ops, self.inputs, self.outputs)
        held = [*self.inputs.values(), *self.outputs.values()]
        self.memory = memory or ops_memory(self.prepared_ops, held)
        self._symbols = tuple(variables)
        self._variables = {v.name: v for v in variables if v.bound is None}
        self._sizes = {v.name: v.max for v in variables} if sizes is None else sizes
        self._given: dict[str, int] = {}
        self._values = values or ValueBuffers({})
        self._queue = queue
        self._facts = tuple(facts)
        self._fitting: dict[str, int] = {}  # values that the facts were checked with last
        self._buffers = self._listed(held)
        self._index = {buffer: i for i, buffer in enumerate(self._buffers)}
        self._lock = threading.RLock()
        self._closed = False
        self._runner = runner(self.prepared_ops)

    # -- running -----------------------------------------------------------------------------------

    def execute(self) -> None:
        """Run once, on the plan's own buffers, with the Variables' last values.

        Raises:
            VariableError: a Variable has no value yet.
            InputError: a param was never set.
            PlanError: the buffers were released.
            CaptureError: inside a recording.
        """
        self.execute_with_vars({})

    def execute_with_vars(self, variables: VariableValues) -> None:
        """Run once with other values of Variables; those left out keep theirs.

        Args:
            variables: ``{"n": 7}``, ``{"n": n.bind(7)}`` or ``[n.bind(7)]``.

        Raises:
            VariableError: a name is unknown, a value is out of bounds, or a Variable has no value
                yet; or it is read from the device's variable block. Nothing has run or changed.
            InputError, PlanError, CaptureError: as :meth:`execute`.
        """
        self._perform(variables, self._runner.run)

    def execute_profiled(self) -> Profile:
        """As :meth:`execute`; a record for each kernel dispatch, in execution order.

        Raises:
            VariableError, InputError, PlanError, CaptureError: as :meth:`execute`.
        """
        return self.execute_with_vars_profiled({})

    def execute_with_vars_profiled(self, variables: VariableValues) -> Profile:
        """As :meth:`execute_with_vars`; a record for each kernel dispatch, in execution order.

        Raises:
            VariableError, InputError, PlanError: as :meth:`execute_with_vars`.
        """
        with self._lock:
            times = self._perform(variables, self._runner.run_profiled)
            timed = [op for op in self.prepared_ops if not isinstance(op, View)]
            return Profile(
                self._record(op, time)
                for op, time in zip(timed, times, strict=True)
                if isinstance(op, KernelCall)
            )

    def set_variables(self, variables: VariableValues) -> None:
        """Give Variables the values that later runs take.

        Raises:
            VariableError: a name is unknown, or a value is out of bounds. Nothing has changed.
        """
        with self._lock:
            resident = self._resident_values()
            self._take(self._checked(variables, resident), resident)

    def _perform(self, variables: VariableValues, run: Callable[[Sequence[int]], Any]) -> Any:
        with self._lock:
            self._check_open()
            self._refuse_while_capturing("execute waits for its run")
            with Submission(self._runner.accesses):
                resident = self._resident_values()
                values = self._checked(variables, resident)
                missing = [name for name in self._variables if name not in values]
                if missing:
                    raise VariableError(
                        f"no value yet for {', '.join(missing)}: give one to prepare or "
                        "execute_with_vars"
                    )
                self._runner.check()
                result = run([values.get(symbol.name, 0) for symbol in self._symbols])
                self._take(values, resident)
                self._sizes.update(self._runner.live_sizes)
                return result

    def _checked(self, variables: object, resident: Mapping[str, int]) -> dict[str, int]:
        """All known values, those of ``variables`` and those on the device included."""
        given = variable_values(variables, self._variables)
        if fixed := [name for name in given if name in resident]:
            raise VariableError(
                f"Variable {fixed[0]!r} is read from the variable block in dev-state mode; write "
                "it with set_decode_state"
            )
        check_values({name: self._variables[name] for name in resident}, resident)
        values = {**self._given, **given, **resident}
        if values != self._fitting:
            check_facts(self._facts, values)
            self._fitting = values
        return values

    def _resident_values(self) -> dict[str, int]:
        """The values of Variables that are on the device."""
        block = {} if self._queue is None else self._queue.resident_values
        return {name: block[name] for name in self._variables if name in block}

    def _take(self, values: Mapping[str, int], resident: Mapping[str, int]) -> None:
        self._given.update((name, v) for name, v in values.items() if name not in resident)
        self._sizes.update(values)

    def _record(self, op: KernelCall, time: StepTime) -> KernelProfile:
        elapsed, times = time if isinstance(time, TimedStep) else (time, ())
        parts = []
        for part, found in zip(op.parts if times else (), times, strict=True):
            work = part.work(self._sizes)
            parts.append(PartProfile(found.elapsed, *work, part.node_names, part.name, found))
        work, buffers = op.work(self._sizes), len(op.buffers)
        return KernelProfile(
            elapsed, *work, op.node_names, op.kernel, self.device, buffers, tuple(parts)
        )

    # -- contents ----------------------------------------------------------------------------------

    @property
    def prepared_kernels(self) -> tuple[KernelCall, ...]:
        """The prepared ops that are calls of kernels, in schedule order."""
        return tuple(op for op in self.prepared_ops if isinstance(op, KernelCall))

    @property
    def kernels(self) -> tuple[PreparedKernel, ...]:
        """The compiled kernels, one for each call, in schedule order."""
        return tuple(op.kernel for op in self.prepared_kernels)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers: inputs, then those that ops touch, in schedule order; outputs last."""
        return self._buffers

    @property
    def value_to_buffer(self) -> Mapping[int, int]:
        """By a graph value's id, the position of its buffer in :attr:`buffers`."""
        return {key: self._index[buffer] for key, buffer in self._values.by_id.items()}

    def buffer(self, value: Value | int) -> Buffer | None:
        """The buffer of an input or intermediate value, or of its id.

        Intermediate values may share memory: their contents after a run are defined only with
        ``CompileOptions(keep_intermediates=True)``.

        Returns:
            ``None`` for a value that is never in memory, because it is fused into its consumer or
            unused.

        Raises:
            PlanError: it is a value of another graph, or neither a value nor an id.
        """
        return self._values.find(value)

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return len(self.outputs)

    def output_buffer(self) -> Buffer | None:
        """The first output; ``None`` without outputs."""
        return self.output_buffer_at(0)

    def output_buffer_at(self, index: int) -> Buffer | None:
        """The output at a position; ``None`` if ``index`` is out of range."""
        outputs = self.output_buffers()
        return outputs[index] if 0 <= index < len(outputs) else None

    def output_buffers(self) -> list[Buffer]:
        """All outputs, in order."""
        return list(self.outputs.values())

    def __str__(self) -> str:
        lines = [f"plan on {self.device}: {len(self.prepared_ops)} ops a run"]
        most = {v.name: v.max for v in self._symbols}
        for op in self.prepared_ops:
            flops, nbytes = op.work(most) if isinstance(op, KernelCall) else (0, 0)
            lines.append(f"  {op.id:>4} {op.name:<40.40} {flops:>14,} flop {nbytes:>14,} B")
        return "\n".join([*lines, str(self.memory)])

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Take the memory now that the first run would take.

        Raises:
            PlanError: it was released.
            CaptureError: inside a recording.
        """
        self._refuse_while_capturing("allocate takes memory")
        for buffer in self._buffers:
            _ = buffer.storage.memory

    def release_intermediate_buffers(self) -> None:
        """Give back the memory of all but inputs, outputs, states and params.

        The plan still runs: memory is taken again by the next run. Until then, intermediate buffers
        read as zero. Recordings of the plan are dropped.

        Raises:
            CaptureError: inside a recording.
        """
        with self._lock:
            what = "release_intermediate_buffers frees memory"
            self._refuse_while_capturing(what)
            if not self._closed:
                with Submission(self._runner.held):
                    self._runner.discard()

    def release_all_buffers(self) -> None:
        """Give back all memory, for good, after a run in progress.

        Running the plan, or the compiled graph that holds it, raises :class:`PlanError` from now
        on, and so does reading or writing a buffer. Recordings of the plan are dropped.

        Raises:
            CaptureError: inside a recording.
        """
        with self._lock:
            what = "release_all_buffers frees memory"
            self._refuse_while_capturing(what)
            if not self._closed:
                with Submission(self._runner.held):
                    self._closed = True
                    self._runner.close()
                    for buffer in self._buffers:
                        buffer.storage.close()

    def _refuse_while_capturing(self, what: str) -> None:
        if self._queue is not None:
            self._queue.refuse_while_capturing(what)

    def _check_open(self) -> None:
        if self._closed:
            raise PlanError("the plan's buffers were released; prepare the graph again to run it")

    def _listed(self, held: Sequence[Buffer]) -> tuple[Buffer, ...]:
        inputs, outputs = self.inputs.values(), self.outputs.values()
        touched = [b for op in self.prepared_ops for b in (*op.reads, *op.writes)]
        aliases = [op.target for op in self.prepared_ops if isinstance(op, View)]
        others = [*touched, *aliases, *self._values.by_id.values()]
        last = set(outputs)
        first = [b for b in dict.fromkeys([*inputs, *others]) if b not in last]
        return tuple(dict.fromkeys([*first, *outputs]))


def _check_outputs(
    ops: Sequence[PreparedOp], inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]
) -> None:
    """Check that every byte of every output is written by an op or is an input's."""
    filled = [*inputs.values(), *(buffer for op in ops for buffer in op.writes)]
    for name, output in outputs.items():
        if not isinstance(output, Buffer):
            raise PlanError(f"output {name!r} is missing: expected a Buffer, got {output!r}")
        reached = output.offset
        here = sorted((b.offset, b.end) for b in filled if b.storage_id == output.storage_id)
        for start, end in here:
            if start <= reached:
                reached = max(reached, end)
        if reached < output.end:
            raise PlanError(f"output {name!r} is missing: no op writes all of {output!r}")
