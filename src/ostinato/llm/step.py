"""The step of a language model: one graph for prompts, answers, drafts and their verification.

The rows of all sequences stand one below the other; those of one sequence in the order of their
positions. A step is compiled once, for any number of rows up to a limit; on devices that are much
faster with known sizes, for a few sizes, each when a step first needs it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ostinato.errors import InputError, PlanError
from ostinato.llm.compiling import model_options
from ostinato.llm.device_weights import for_device
from ostinato.llm.expert_files import CheckpointExperts
from ostinato.llm.step_graph import step_graph
from ostinato.llm.step_padding import StepPadding
from ostinato.llm.step_pools import StepPools
from ostinato.llm.step_sizes import StepInputs, StepLimits, StepOutputs, StepSizes, input_types
from ostinato.moe.expert_pool import ExpertPool
from ostinato.moe.policy import TidePolicy
from ostinato.moe.residency import ResidencyLoop
from ostinato.plan.device_array import DeviceArray
from ostinato.records import field_names, replace
from ostinato.runtime.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.common.experts import ExpertLayer
    from ostinato.backends.options import CompileOptions
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.config import ModelConfig
    from ostinato.llm.families.builder import State
    from ostinato.moe.residency import ResidencyCounters
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["TIDE", "StepGraph"]

TIDE: Final = TidePolicy(refresh_every=16)
"""The schedule by which experts in files become resident, unless another one is given."""

#: The sizes that differ from step to step.
_SIZES: Final = ("rows", "picks", "adjustments")

#: Calls that are kept, one for each combination of sizes.
_KEPT_CALLS: Final = 256


@runtime_checkable
class _StartableCall(Protocol):
    """A bound call of a device that computes while the host goes on."""

    def __call__(self) -> None: ...
    def start(self) -> bool: ...
    def finish(self) -> None: ...


class _Call(NamedTuple):
    """A step of some sizes.

    Attributes:
        run: runs it.
        start: starts it, if it can be started; whether it could this time.
        finish: waits for it.
    """

    run: Callable[[], None]
    start: Callable[[], bool] = lambda: False
    finish: Callable[[], None] = lambda: None


class _Started:
    """The step that was started, until it is finished; its pools wait for it, too."""

    def __init__(self) -> None:
        self.call: _Call | None = None

    def finish(self) -> None:
        """Wait for it, if there is one."""
        call, self.call = self.call, None
        if call is not None:
            call.finish()


class StepGraph:
    """The compiled step of a model, with its arrays and its pools of keys and values.

    A step writes the keys and values of each row to block ``table[sequence, position // 64]``,
    place ``position % 64``, and to that of ``window_table`` in layers with a window if they have
    blocks of their own; then the row attends to its sequence up to itself. No two rows have the
    same place. A row at position 0 begins its sequence's recurrent states from zeros.

    Args:
        checkpoint: the model.
        limits: the most that a step takes.
        session: that compiles it; by default, one for the CPU.
        kv_dtype: of keys and values.
        options: of the compiler, instead of the session's.
        progress: called with ``(done, total)`` as kernels are compiled.
        expert_budget: bytes of memory for experts, the others of which stay in their files; by
            default all are in memory.
        expert_policy: the schedule by which those that are called most become resident; ``None``:
            the first ones stay resident.

    Raises:
        InputError: limits are out of range, or a dtype is not; or experts have to stay in files
            that do not hold them as they are.
        UnsupportedOpError: the device has no way to compute it.

    Attributes:
        config: of the model.
        limits: as given.
        inputs, outputs: the arrays of its runs.
        pools: blocks of keys and values, and recurrent states.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        limits: StepLimits,
        *,
        session: Session | None = None,
        kv_dtype: Any = "bfloat16",
        options: CompileOptions | None = None,
        progress: Progress | None = None,
        expert_budget: int | None = None,
        expert_policy: TidePolicy | None = TIDE,
    ) -> None:
        session = session or Session("cpu")
        checkpoint = for_device(checkpoint, session.capabilities, session.context.free_memory)
        shared = session.device.kind == "CPU"
        known = session.capabilities.known_sizes and expert_budget is None
        self._padding = StepPadding(limits=limits) if known else None
        most = limits if self._padding is None else self._padding.padded
        graph, states = step_graph(checkpoint, most, kv_dtype, shared=shared)
        chosen = model_options(session, options)
        if known:
            # Weights of several matmuls side by side would be a copy of them for large steps.
            chosen = replace(chosen, specialize="always", joint_weights=False)
        compiled = session.compile(
            graph,
            options=chosen,
            progress=progress,
            experts=None if expert_budget is None else CheckpointExperts(checkpoint),
            expert_budget=expert_budget,
        )
        if known:
            compiled.warm({"rows": 1, "picks": 1, "adjustments": 1})
        self._take(checkpoint.config, limits, states, compiled, expert_policy)

    def _take(
        self,
        config: ModelConfig,
        limits: StepLimits,
        states: Mapping[str, State],
        compiled: CompiledGraph,
        policy: TidePolicy | None,
    ) -> None:
        """Allocate the arrays of a compiled step."""
        self.config, self.limits = config, limits
        padding = self._padding
        most = limits if padding is None else padding.padded
        self._most = StepSizes.most(most)
        types = input_types(self._most, config)
        given = {name: np.zeros(shape, dtype.numpy) for name, (shape, dtype) in types.items()}
        shown = given
        if padding is not None:
            tables = {name: given[name] for name in ("table", "window_table") if name in given}
            padding.tables(given["table"], given.get("window_table"))
            shown = given | {name: table[: limits.sequences] for name, table in tables.items()}
        self.inputs = StepInputs(**shown)
        self.inputs.adjust_repetition[:] = 1
        self.inputs.allowed[:] = 0xFFFFFFFF
        self.inputs.top_p[:] = 1
        self._started = _Started()
        self.outputs = StepOutputs(
            token=np.zeros(limits.picks, np.int32),
            logprob=np.zeros(limits.picks, np.float32),
            logits=compiled.zeros((limits.picks, config.vocabulary), "float32"),
        )
        self._states = states
        self.pools = StepPools(states, limits, compiled.zeros, most, self._started.finish)
        self._compiled: CompiledGraph | None = compiled
        arrays = {**given, **self.pools.arrays}
        self._buffers = [arrays[name] for name in compiled.inputs]
        self._prepared = compiled.prepare_run([array.shape for array in self._buffers])
        self._calls: OrderedDict[tuple[int, int, int], _Call] = OrderedDict()
        self._last: tuple[int, int, int] | None = None
        self._policy = policy
        self._residency = None if policy is None else _residency(compiled, policy)

    @property
    def expert_layers(self) -> Sequence[ExpertLayer]:
        """The layers that choose among experts, with their slots if experts stay in files."""
        return self._graph.moe_layers

    @property
    def expert_counters(self) -> ResidencyCounters | None:
        """Calls and transfers of experts; ``None`` where all are in memory, or without a policy."""
        return None if self._residency is None else self._residency.counters

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a step, in order, and their memory; of the last sizes, if of several."""
        if self._padding is not None and self._last is not None:
            self._bind(self._padding.sizes(*self._last))  # a plan is that of the last bound call
        return self._graph.plan

    @property
    def _graph(self) -> CompiledGraph:
        if self._compiled is None:
            raise PlanError("the step was closed")
        return self._compiled

    @property
    def runs_ahead(self) -> bool:
        """Whether the device computes a step that was started while the host goes on."""
        return self._padding is not None

    def run(self, rows: int, picks: int, adjustments: int) -> None:
        """Run on the first rows of the inputs, and write the first rows of the outputs.

        Args:
            rows: how many tokens there are.
            picks: how many rows are picked.
            adjustments: how many logits are adjusted; one that changes nothing counts.

        Raises:
            InputError: a number is beyond the limits.
            ModelFormatError: experts could not be read from their files.
            PlanError: the step was closed.
        """
        self.finish()
        self._of_sizes(rows, picks, adjustments).run()
        if self._residency is not None:
            self._residency.after_run()

    def start(self, rows: int, picks: int, adjustments: int) -> None:
        """Have the device run as :meth:`run` does; outputs are written by :meth:`finish`.

        Inputs may be written again at once. Where the device does not run ahead, or the sizes are
        new, it runs here.

        Raises:
            OstinatoError: as :meth:`run`.
        """
        self.finish()
        call = self._of_sizes(rows, picks, adjustments)
        if self._residency is None and call.start():
            self._started.call = call
        else:
            self.run(rows, picks, adjustments)

    def finish(self) -> None:
        """Wait for the step that was started, if one was; what uses its memory does that.

        Raises:
            OstinatoError: the device failed.
        """
        self._started.finish()

    def _of_sizes(self, *key: int) -> _Call:
        """The call for a number of rows, picks and adjustments."""
        rows, picks, adjustments = key
        sizes = self._last = rows, picks, adjustments
        call = self._calls.get(sizes)
        if call is None:
            return self._call(sizes)
        self._calls.move_to_end(sizes)
        return call

    def _call(self, key: tuple[int, int, int]) -> _Call:
        """A call for sizes that are new; the one used longest ago makes room for it."""
        for name, value in zip(_SIZES, key, strict=True):
            most = getattr(self.limits, name)
            if not 1 <= value <= most:
                raise InputError(f"a step takes 1 to {most} {name}, got {value!r:.80}")
        padding = self._padding
        sizes = key if padding is None else padding.sizes(*key)
        call = self._calls.get(sizes) or self._bind(sizes)
        if padding is not None and sizes != key:
            given = self.inputs, key, sizes
            run = partial(padding.run, call.run, *given)
            call = _Call(run, partial(padding.run, call.start, *given), call.finish)
        self._calls[key] = call
        if len(self._calls) > _KEPT_CALLS:
            self._calls.popitem(last=False)
        return call

    def _bind(self, wanted: tuple[int, int, int]) -> _Call:
        """A call for sizes that the graph is compiled for."""
        graph = self._graph
        sizes = replace(self._most, **dict(zip(_SIZES, wanted, strict=True)))
        results = [getattr(self.outputs, name) for name in field_names(self.outputs)]
        if (prepared := self._prepared) is not None:
            values = tuple(getattr(sizes, name) for name in prepared.names)
            return _Call(prepared.bind([*self._buffers, *results], values))
        types = input_types(sizes, self.config)
        given = dict(zip(graph.inputs, self._buffers, strict=True))
        given |= {name: given[name][: shape[0]] for name, (shape, _) in types.items()}
        call = graph.bind(given, [_first_rows(array, wanted[1]) for array in results])
        if isinstance(call, _StartableCall):
            return _Call(call, call.start, call.finish)
        return _Call(call)

    # -- life --------------------------------------------------------------------------------------

    def clone(self) -> StepGraph:
        """A step with arrays and pools of its own, which are empty, and the same weights."""
        twin = StepGraph.__new__(StepGraph)
        twin._padding = self._padding
        twin._take(self.config, self.limits, self._states, self._graph.clone(), self._policy)
        return twin

    def close(self) -> None:
        """Give back all memory; from now on :meth:`run` raises :class:`PlanError`."""
        self.finish()
        self._calls.clear()
        self.pools.release()
        self._buffers, self._prepared = [], None
        self._compiled = self._residency = None


def _first_rows(array: Any, count: int) -> Any:
    """The first rows of an array, in its memory."""
    if isinstance(array, DeviceArray):
        return DeviceArray(array.device, array.memory, (count, *array.shape[1:]), array.dtype)
    return array[:count]


def _residency(compiled: CompiledGraph, policy: TidePolicy) -> ResidencyLoop | None:
    """The loop that moves experts; ``None`` where all are in memory."""
    layers = compiled.moe_layers
    slots = [layer.experts if layer.slots is None else layer.slots for layer in layers]
    if all(count == layer.experts for count, layer in zip(slots, layers, strict=True)):
        return None
    pools = [ExpertPool(layer.experts, n) for n, layer in zip(slots, layers, strict=True)]
    return ResidencyLoop(compiled, pools, policy)
