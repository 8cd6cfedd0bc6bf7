"""The step of a language model: one graph for prompts, answers, drafts and their verification.

The rows of all sequences stand one below the other; those of one sequence in the order of their
positions. A step is compiled once, for any number of rows up to a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.dtypes import FLOAT32, INT32, INT64, UINT32, DType
from ostinato.errors import InputError, PlanError
from ostinato.llm.compiling import model_options
from ostinato.llm.device_weights import for_device
from ostinato.llm.expert_files import CheckpointExperts
from ostinato.llm.families.builder import BLOCK_TOKENS, Builder, State, StepRows
from ostinato.moe.expert_pool import ExpertPool
from ostinato.moe.policy import TidePolicy
from ostinato.moe.residency import ResidencyLoop
from ostinato.ops.builder import Graph
from ostinato.records import dataclass, field_names, replace
from ostinato.runtime.session import Session
from ostinato.variables import Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.common.experts import ExpertLayer
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import Value
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.config import ModelConfig
    from ostinato.moe.residency import ResidencyCounters
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.compiled_graph import CompiledGraph
    from ostinato.variables import Dim

__all__ = [
    "BLOCK_TOKENS",
    "TIDE",
    "StepGraph",
    "StepInputs",
    "StepLimits",
    "StepOutputs",
    "step_graph",
]

Array = np.ndarray[Any, Any]

TIDE: Final = TidePolicy(refresh_every=16)
"""The schedule by which experts in files become resident, unless another one is given."""

#: Bounds of sizes that graphs of most limits have in common.
_LEAST_BOUNDS: Final = {
    "picks": 16,
    "adjustments": 1 << 14,
    "sequences": 1 << 5,
    "pages": 1 << 11,
    "blocks": 1 << 10,
}

#: Calls that are kept, one for each combination of sizes.
_KEPT_CALLS: Final = 256


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The most that a step takes.

    Attributes:
        rows: of a step.
        sequences: that have a table of blocks.
        picks: rows of a step whose next token is chosen.
        blocks: of 64 tokens, in each pool of keys or values.
        context: tokens of a sequence.
        adjustments: of logits, in a step.
    """

    rows: int
    sequences: int
    picks: int
    blocks: int
    context: int
    adjustments: int

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.context // BLOCK_TOKENS)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepInputs:
    """The arrays that a step reads, of the largest size; a run reads their first rows.

    Attributes:
        tokens, position, sequence: of each row, int32 ``[rows]``.
        table: the blocks of each sequence, int32 ``[sequences, ceil(context / 64)]``.
        pick: the rows whose next token is chosen, int32 ``[picks]``.
        uniform: a number from 0 to 1 for each choice, float32 ``[picks]``.
        temperature, top_p, min_p: of each choice, float32 ``[picks]``; top_k, int32.
        allowed: a bit for each token that may be chosen, uint32 ``[picks, ceil(vocabulary / 32)]``.
        adjust_pick, adjust_token: a choice and a token whose logit changes, int32
            ``[adjustments]``. Each pair occurs once at most.
        adjust_bias, adjust_repetition, adjust_penalty: the change: ``l + bias``, then divided by
            ``repetition``, or if negative multiplied by it, then less ``penalty``; float32
            ``[adjustments]``. ``0, 0, 0, 1, 0`` changes nothing.
    """

    tokens: Array
    position: Array
    sequence: Array
    table: Array
    pick: Array
    uniform: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    allowed: Array
    adjust_pick: Array
    adjust_token: Array
    adjust_bias: Array
    adjust_repetition: Array
    adjust_penalty: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class StepOutputs:
    """The arrays that a step writes; a run writes their first rows.

    Attributes:
        token: chosen, int32 ``[picks]``.
        logprob: of that token in the distribution of the unadjusted logits, float32 ``[picks]``.
        logits: unadjusted, float32 ``[picks, vocabulary]``.
    """

    token: Array
    logprob: Array
    logits: Array


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes that shapes of a step are made of: numbers, or Variables of its graph.

    Attributes:
        rows, picks, adjustments, sequences, blocks: see :class:`StepLimits`.
        pages: blocks of the longest sequence.
    """

    rows: Dim
    picks: Dim
    adjustments: Dim
    sequences: Dim
    pages: Dim
    blocks: Dim

    @staticmethod
    def most(limits: StepLimits) -> _Sizes:
        """The largest."""
        return _Sizes(
            rows=limits.rows,
            picks=limits.picks,
            adjustments=limits.adjustments,
            sequences=limits.sequences,
            pages=limits.table_width,
            blocks=limits.blocks,
        )

    @staticmethod
    def of_graph(limits: StepLimits, *, shared: bool) -> _Sizes:
        """Those of a graph.

        Args:
            shared: whether all are Variables, with bounds that many limits have in common.
        """
        most = _Sizes.most(limits)
        rows = Variable("rows", 1, limits.rows)
        if not shared:
            picks = Variable("picks", 1, limits.picks)
            adjustments = Variable("adjustments", 1, limits.adjustments)
            return replace(most, rows=rows, picks=picks, adjustments=adjustments)
        bounds = {
            name: max(least, 1 << (getattr(most, name) - 1).bit_length())
            for name, least in _LEAST_BOUNDS.items()
        }
        return _Sizes(rows=rows, **{n: Variable(n, 1, bound) for n, bound in bounds.items()})

    def of_state(self, state: State) -> tuple[Dim, ...]:
        """The shape of a state with so many blocks or sequences."""
        count = self.blocks if state.kind == "block" else self.sequences
        return (count, *state.shape[1:])


def step_graph(
    checkpoint: Checkpoint,
    limits: StepLimits,
    kv_dtype: Any = "bfloat16",
    *,
    shared: bool = False,
) -> tuple[Graph, Mapping[str, State]]:
    """The graph of a step, and its states, which each run is given.

    Args:
        checkpoint: the model.
        limits: of its steps.
        kv_dtype: of keys and values in pools.
        shared: whether sequences, blocks and the length of tables are Variables, so that the graph
            is the same for other limits.

    Raises:
        InputError: a limit is no positive number, or beyond the model.
    """
    config = checkpoint.config
    _check_limits(limits, config)
    sizes = _Sizes.of_graph(limits, shared=shared)
    rows, picks = sizes.rows, sizes.picks
    g = Graph("step")
    given = {
        name: g.input(name, shape, dtype) for name, (shape, dtype) in _types(sizes, config).items()
    }
    own = g.take(given["table"], given["sequence"], axis=0)
    position = g.cast(given["position"], INT64)
    number = g.reshape(g.floor_divide(position, BLOCK_TOKENS), (rows, 1))
    block = g.take_along_axis(own, number, axis=1)
    within = g.reshape(g.remainder(position, BLOCK_TOKENS), (rows, 1))
    builder = Builder(
        g,
        config,
        checkpoint.weights,
        StepRows(
            count=rows,
            position=given["position"],
            sequence=given["sequence"],
            table=given["table"],
            place=g.concat([g.cast(block, INT64), within], axis=1),
            context=limits.context,
            blocks=sizes.blocks,
            sequences=sizes.sequences,
            kv_dtype=DType.parse(kv_dtype),
        ),
    )
    hidden = checkpoint.family.hidden(builder, given["tokens"])
    logits = checkpoint.family.logits(builder, g.take(hidden, given["pick"], axis=0))
    token = _chosen(g, logits, given)
    own_token = g.reshape(token, (picks, 1))
    logprob = g.take_along_axis(g.log_softmax(logits, axis=1), own_token, axis=1)
    g.set_outputs({"token": token, "logprob": g.reshape(logprob, (picks,)), "logits": logits})
    return g, builder.states


def _chosen(g: Graph, logits: Value, given: Mapping[str, Value]) -> Value:
    """The token that is chosen for each row of logits."""
    at = g.stack([given["adjust_pick"], given["adjust_token"]], axis=1)
    found = g.gather_nd(logits, at) + given["adjust_bias"]
    factor = given["adjust_repetition"]
    found = g.where(found > 0, found / factor, found * factor) - given["adjust_penalty"]
    adjusted = g.scatter_nd(logits, at, found)
    allowed = g.mask_tokens(adjusted, given["allowed"])
    parameters = ("uniform", "temperature", "top_k", "top_p", "min_p")
    return g.sample(allowed, *(given[name] for name in parameters))


def _types(sizes: _Sizes, config: ModelConfig) -> dict[str, tuple[tuple[Any, ...], DType]]:
    """The shapes and dtypes of the inputs of such sizes."""
    rows, picks, adjustments = sizes.rows, sizes.picks, sizes.adjustments
    mask = -(-config.vocabulary // 32)
    found: dict[str, tuple[tuple[Any, ...], DType]] = {
        "tokens": ((rows,), INT32),
        "position": ((rows,), INT32),
        "sequence": ((rows,), INT32),
        "table": ((sizes.sequences, sizes.pages), INT32),
        "pick": ((picks,), INT32),
        "uniform": ((picks,), FLOAT32),
        "temperature": ((picks,), FLOAT32),
        "top_k": ((picks,), INT32),
        "top_p": ((picks,), FLOAT32),
        "min_p": ((picks,), FLOAT32),
        "allowed": ((picks, mask), UINT32),
    }
    kinds = {"pick": INT32, "token": INT32}
    for name in ("pick", "token", "bias", "repetition", "penalty"):
        found[f"adjust_{name}"] = ((adjustments,), kinds.get(name, FLOAT32))
    return found


def _check_limits(limits: StepLimits, config: ModelConfig) -> None:
    for name in field_names(limits):
        value = getattr(limits, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} of a step is a positive number, got {value!r:.80}")
    if config.positions and limits.context > config.positions:
        raise InputError(
            f"the model has {config.positions} positions; a context of {limits.context} is beyond"
        )


class StepGraph:
    """The compiled step of a model, with its arrays and its pools of keys and values.

    A step writes the keys and values of each row to block ``table[sequence, position // 64]``,
    place ``position % 64``; then the row attends to its sequence up to itself. A row at position 0
    begins its sequence's recurrent states from zeros.

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
        checkpoint = for_device(checkpoint, session.capabilities)
        shared = session.device.kind == "CPU"
        graph, states = step_graph(checkpoint, limits, kv_dtype, shared=shared)
        compiled = session.compile(
            graph,
            options=model_options(session, options),
            progress=progress,
            experts=None if expert_budget is None else CheckpointExperts(checkpoint),
            expert_budget=expert_budget,
        )
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
        self._most = _Sizes.most(limits)
        types = _types(self._most, config)
        self.inputs = StepInputs(
            **{name: np.zeros(shape, dtype.numpy) for name, (shape, dtype) in types.items()}
        )
        self.inputs.adjust_repetition[:] = 1
        self.inputs.allowed[:] = 0xFFFFFFFF
        self.inputs.top_p[:] = 1
        self.outputs = StepOutputs(
            token=np.zeros(limits.picks, np.int32),
            logprob=np.zeros(limits.picks, np.float32),
            logits=np.zeros((limits.picks, config.vocabulary), np.float32),
        )
        self._declared = states
        self._states: dict[str, Array] = {
            name: np.zeros(self._most.of_state(state), state.dtype.numpy)
            for name, state in states.items()
        }
        self._compiled: CompiledGraph | None = compiled
        arrays = {**{name: getattr(self.inputs, name) for name in types}, **self._states}
        self._buffers = [arrays[name] for name in compiled.inputs]
        self._prepared = compiled.prepare_run([array.shape for array in self._buffers])
        self._calls: OrderedDict[tuple[int, int, int], Callable[[], None]] = OrderedDict()
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
        """The kernels of a step, in order, and their memory."""
        return self._graph.plan

    @property
    def _graph(self) -> CompiledGraph:
        if self._compiled is None:
            raise PlanError("the step was closed")
        return self._compiled

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
        key = rows, picks, adjustments
        call = self._calls.get(key)
        if call is None:
            call = self._bind(*key)
        else:
            self._calls.move_to_end(key)
        call()
        if self._residency is not None:
            self._residency.after_run()

    def _bind(self, rows: int, picks: int, adjustments: int) -> Callable[[], None]:
        """A call for sizes that are new; the one used longest ago makes room for it."""
        given = {"rows": rows, "picks": picks, "adjustments": adjustments}
        for name, value in given.items():
            most = getattr(self.limits, name)
            if not 1 <= value <= most:
                raise InputError(f"a step takes 1 to {most} {name}, got {value!r:.80}")
        graph, sizes = self._graph, replace(self._most, **given)
        results = [getattr(self.outputs, name) for name in field_names(self.outputs)]
        if (prepared := self._prepared) is not None:
            values = tuple(getattr(sizes, name) for name in prepared.names)
            call = prepared.bind([*self._buffers, *results], values)
        else:
            types = _types(sizes, self.config)
            parts = {n: getattr(self.inputs, n)[: shape[0]] for n, (shape, _) in types.items()}
            call = graph.bind({**parts, **self._states}, [array[:picks] for array in results])
        self._calls[rows, picks, adjustments] = call
        if len(self._calls) > _KEPT_CALLS:
            self._calls.popitem(last=False)
        return call

    # -- blocks and slots --------------------------------------------------------------------------

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block, in all layers.

        Raises:
            InputError: there is no such block.
        """
        self._check("block", source, self.limits.blocks)
        self._check("block", target, self.limits.blocks)
        for pool in self._pools():
            pool[target] = pool[source]

    def read_block(self, block: int) -> bytes:
        """The keys and values of a block, in all layers.

        Raises:
            InputError: there is no such block.
        """
        self._check("block", block, self.limits.blocks)
        return b"".join(pool[block].tobytes() for pool in self._pools())

    def write_block(self, block: int, data: Any) -> None:
        """Write what :meth:`read_block` has read.

        Raises:
            InputError: there is no such block, or the data is of another size. Nothing is written.
        """
        self._check("block", block, self.limits.blocks)
        self._write(self._pools(), block, data)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, in all layers."""
        return sum(pool[:1].nbytes for pool in self._pools())

    @property
    def slot_bytes(self) -> int:
        """Bytes of the recurrent states of a sequence."""
        return sum(slots[:1].nbytes for slots in self._slots())

    def save_slot(self, sequence: int) -> bytes:
        """The recurrent states of a sequence; none in most families.

        Raises:
            InputError: there is no such sequence.
        """
        self._check("sequence", sequence, self.limits.sequences)
        return b"".join(slots[sequence].tobytes() for slots in self._slots())

    def load_slot(self, sequence: int, saved: Any) -> None:
        """Write what :meth:`save_slot` has read.

        Raises:
            InputError: there is no such sequence, or the data is of another size. Nothing is
                written.
        """
        self._check("sequence", sequence, self.limits.sequences)
        self._write(self._slots(), sequence, saved)

    def _pools(self) -> list[Array]:
        return self._arrays("block")

    def _slots(self) -> list[Array]:
        return self._arrays("slot")

    def _arrays(self, kind: str) -> list[Array]:
        return [array for n, array in self._states.items() if self._declared[n].kind == kind]

    @staticmethod
    def _check(kind: str, number: int, count: int) -> None:
        if not 0 <= number < count:
            raise InputError(f"there is no {kind} {number!r:.80} among {count}")

    @staticmethod
    def _write(arrays: list[Array], position: int, data: Any) -> None:
        octets = np.frombuffer(data, np.uint8)
        wanted = sum(array[:1].nbytes for array in arrays)
        if octets.size != wanted:
            raise InputError(f"expected {wanted:,} bytes, got {octets.size:,}")
        start = 0
        for array in arrays:
            part = array[position]
            flat: Any = part.reshape(-1).view(np.uint8)
            flat[:] = octets[start : start + flat.size]
            start += flat.size

    # -- life --------------------------------------------------------------------------------------

    def clone(self) -> StepGraph:
        """A step with arrays and pools of its own, which are empty, and the same weights."""
        twin = StepGraph.__new__(StepGraph)
        twin._take(self.config, self.limits, self._declared, self._graph.clone(), self._policy)
        return twin

    def close(self) -> None:
        """Give back all memory; from now on :meth:`run` raises :class:`PlanError`."""
        self._calls.clear()
        self._states, self._buffers, self._prepared = {}, [], None
        self._compiled = self._residency = None


def _residency(compiled: CompiledGraph, policy: TidePolicy) -> ResidencyLoop | None:
    """The loop that moves experts; ``None`` where all are in memory."""
    layers = compiled.moe_layers
    slots = [layer.experts if layer.slots is None else layer.slots for layer in layers]
    if all(count == layer.experts for count, layer in zip(slots, layers, strict=True)):
        return None
    pools = [ExpertPool(layer.experts, n) for n, layer in zip(slots, layers, strict=True)]
    return ResidencyLoop(compiled, pools, policy)
