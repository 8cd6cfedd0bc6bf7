"""The program of a compiled graph: its parts, run on the arrays of an executable or a plan."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.arrays import ResidentArray, host_view
from ostinato.backends.array_api.expert_calls import ExpertCalls
from ostinato.backends.array_api.run import Run
from ostinato.backends.array_api.single_stage import SingleStage
from ostinato.backends.array_api.stages import Stage
from ostinato.lower.program import Role
from ostinato.plan.order import Accesses
from ostinato.variables import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.backends.array_api.arrays import ArrayBlock
    from ostinato.backends.array_api.expert_tier import ExpertTier
    from ostinato.backends.array_api.fresh_run import FreshParts
    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.backends.array_api.lowering import StagedProgram
    from ostinato.backends.common.lowered_graph import LoweredGraph
    from ostinato.backends.common.program_image import External
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["ArrayProgram", "true_or_false"]

#: Bytes of all inputs up to which they are copied, so that a run may still read them at its end.
_SMALL = 64 << 10

#: The values of no Variables.
_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class ArrayProgram:
    """See :class:`~ostinato.backends.common.program_runner.RunnableProgram`.

    Args:
        functions: its compiled stages.
        lowered: the graph.
        externals: inputs, states in memory that each run is given, then outputs.
        fixed: returns the present blocks of the fixed slots.
        touches: further memory that every run touches.
        keeps: whether values between parts stay in memory after a run.
        tier: the experts of layers that are not all on the device.

    Attributes:
        inputs: the number of arrays that are only read.
        externals: see above.
        live_sizes: the values that the last run gave data-dependent Variables, by name.
        calls: the experts that the last run has called.
        fresh: its runs on arrays of the host, with outputs of their own; ``None``: it is not made
            for these.
    """

    def __init__(
        self,
        functions: StageFunctions,
        lowered: LoweredGraph[StagedProgram],
        externals: Sequence[External],
        fixed: Callable[[], list[ArrayBlock]],
        touches: Sequence[tuple[int, int, bool]] = (),
        *,
        keeps: bool = False,
        tier: ExpertTier | None = None,
    ) -> None:
        self._tier = tier
        program = lowered.program
        self._functions = functions
        self._framework = functions.framework
        self._program = program
        self._fixed = fixed
        self._keeps = keeps
        self.externals = tuple(externals)
        self.inputs = len(program.inputs)
        self.live_sizes: dict[str, int] = {}
        self.calls = ExpertCalls(self._framework, program.called, program.resident, tier)
        self.accesses = Accesses([(id(self), 1, True), *touches])
        self._names = [symbol.name for symbol in program.variables]
        self._bound = {symbol.name for symbol in program.variables if symbol.bound is not None}
        self._parts = program.parts
        graph = program.graph
        inouts = {name: graph.states[name] for name in program.inouts}
        self._leaves = [*graph.inputs.values(), *inouts.values()]
        places = {value: lowered.place(buffer) for value, buffer in program.values.items()}
        roles = {value: buffer.role for value, buffer in program.values.items()}
        lasting = (Role.PARAM, Role.STATE, Role.CONSTANT)
        self._kept = {
            value: place
            for value, place in places.items()
            if roles[value] in lasting and place[0] >= 0 and value not in self._leaves
        }
        self._between = [(v, place) for v, place in places.items() if roles[v] is Role.TEMP]
        self._exact = [_exact_type(value) for value in self._leaves]
        first = self.inputs + len(inouts)
        following = [(i, graph.assignments.get(n)) for i, n in enumerate(inouts, self.inputs)]
        self._written = [(number, value) for number, value in following if value is not None]
        self._written += enumerate(graph.outputs.values(), first)
        self._assigned = [
            (value, places[graph.states[name]])
            for name, value in graph.assignments.items()
            if name not in inouts
        ]
        self._inouts = range(self.inputs, first)
        self._takes_copies = sum(value.type.max_bytes for value in self._leaves) <= _SMALL
        self._single: SingleStage | None = None
        self.fresh: FreshParts | None = None
        if len(self._parts) == 1 and isinstance(stage := self._parts[0], Stage):
            results = [value for _, value in self._written]
            self._single = SingleStage(
                functions, stage, self._kept, self._leaves, results, self._assigned, self.calls
            )
            if not inouts and all(dtype is not None for _, dtype in self._exact):
                own = self._takes_copies and bool(results)
                self.fresh = self._single.fresh(self._leaves, results, own=own)

    def run(self, blocks: Sequence[Any], variables: Sequence[int]) -> None:
        self._run(blocks, variables, self._replaced(blocks) if self._inouts else ())

    def run_consuming(
        self, blocks: Sequence[Any], variables: Sequence[int], consumed: Collection[int]
    ) -> None:
        """As :meth:`run`; results may take the memory of inputs at positions ``consumed``."""
        mine = [self._leaves[number] for number in consumed]
        self._run(blocks, variables, [*mine, *self._replaced(blocks)])

    def _replaced(self, blocks: Sequence[Any]) -> list[Value]:
        """The states in given memory whose arrays are exchanged for others."""
        return [
            self._leaves[number]
            for number in self._inouts
            if isinstance(block := blocks[number], ResidentArray) and not block.memory.foreign
        ]

    def discard(self) -> None:
        """Do nothing: all memory is the executable's."""

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int]) -> Sequence[float]:
        return self._perform(blocks, variables, timed=True)

    def warm(self, variables: Sequence[int]) -> None:
        """Compile the stages that no size within a run decides."""
        sizes = self._sizes(variables)
        for stage in self._program.stages:
            if sizes.keys() >= set(stage.sizes):
                self._functions.get(stage, sizes)

    def _sizes(self, variables: Sequence[int]) -> dict[str, int]:
        pairs = zip(self._names, variables, strict=True)
        return {name: value for name, value in pairs if name not in self._bound}

    def _run(
        self, blocks: Sequence[Any], variables: Sequence[int], consumed: Collection[Value] = ()
    ) -> None:
        """A run by the shortest way."""
        if self._single is None:
            self._perform(blocks, variables, consumed)
            return
        sizes = self._sizes(variables) if variables else _NO_SIZES
        framework = self._framework
        given = []
        outputs = [blocks[number] for number, _ in self._written]
        # The copy of an output to the host waits for it, in less time than a call that waits.
        own = self._takes_copies and any(type(block) is np.ndarray for block in outputs)
        with framework.launching():
            for value, block, (shape, dtype) in zip(
                self._leaves, blocks, self._exact, strict=False
            ):
                if type(block) is np.ndarray and block.dtype is dtype and block.shape == shape:
                    given.append(
                        framework.snapshot(block) if own else framework.from_host(block, copy=False)
                    )
                else:
                    given.append(self._given(value, block, sizes, own=own))
            results = self._single.run(self._fixed(), given, outputs, sizes, consumed, own=own)
            for block, result in zip(outputs, results, strict=True):
                self._store(block, result)

    def _perform(
        self,
        blocks: Sequence[Any],
        variables: Sequence[int],
        consumed: Collection[Value] = (),
        *,
        timed: bool = False,
    ) -> Sequence[float]:
        fixed, framework = self._fixed(), self._framework
        run = Run(
            self._functions, self._sizes(variables), self._program.facts, consumed, self._tier
        )
        with framework.scope():
            values: dict[Value, Any] = {
                value: fixed[slot].arrays[offset] for value, (slot, offset) in self._kept.items()
            }
            for value, block in zip(self._leaves, blocks, strict=False):
                values[value] = self._given(value, block, run.sizes)
            seconds = run.parts(self._parts, values, timed=timed)
            states = self._next_states(values)
            outputs = [blocks[number] for number, _ in self._written]
            results = self._results(outputs, values, states)
            if called := [values[value] for value in self.calls.values]:
                self.calls.note(called)
            framework.wait([*results, *states, *called])
            for block, result in zip(outputs, results, strict=True):
                self._store(block, result)
        for (_, (slot, offset)), array in zip(self._assigned, states, strict=True):
            fixed[slot].arrays[offset] = array
        if self._keeps:
            for value, (slot, offset) in self._between:
                fixed[slot].arrays[offset] = values[value]
        self.live_sizes = {name: run.sizes[name] for name in self._bound if name in run.sizes}
        return seconds

    def _results(
        self, blocks: Sequence[Any], values: dict[Value, Any], states: Sequence[Any]
    ) -> list[Any]:
        """The arrays for memory that is written; a handle's is its own, and no state's."""
        seen = {id(array) for array in states}
        found = []
        for (_, value), block in zip(self._written, blocks, strict=True):
            array = values[value]
            if isinstance(block, ResidentArray):
                array = self._framework.copy(array) if id(array) in seen else array
                seen.add(id(array))
            found.append(array)
        return found

    def _next_states(self, values: dict[Value, Any]) -> list[Any]:
        """The arrays that states hold from now on, each one alone: it may be donated."""
        seen: set[int] = set()
        found = []
        for value, _ in self._assigned:
            array = values[value]
            found.append(self._framework.copy(array) if id(array) in seen else array)
            seen.add(id(array))
        return found

    def _given(
        self, value: Value, block: Any, sizes: Mapping[str, int], *, own: bool = False
    ) -> Any:
        """The array of an input; with ``own``, none that shares memory of the host."""
        if isinstance(block, ResidentArray):
            return block.memory.array
        shape = tuple([evaluate(dim, sizes) for dim in value.shape])
        elements = true_or_false(host_view(block, value.dtype, shape))
        if own:
            return self._framework.snapshot(elements)
        return self._framework.from_host(elements, copy=False)

    def _store(self, block: Any, result: Any) -> None:
        if isinstance(block, ResidentArray):
            block.memory.array = result
            return
        array = self._framework.to_host(result)
        if type(block) is np.ndarray and block.shape == array.shape:
            np.copyto(block, array)
            return
        octets = block.reshape(-1).view(np.uint8) if isinstance(block, np.ndarray) else block
        whole = np.frombuffer(octets, np.uint8) if octets is block else octets
        whole[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _exact_type(value: Value) -> tuple[tuple[Dim, ...], np.dtype[Any] | None]:
    """The shape and dtype of arrays that are inputs as they are; no dtype if there are none."""
    plain = not value.dtype.is_bool and all(isinstance(dim, int) for dim in value.shape)
    return value.shape, value.dtype.numpy if plain else None


def true_or_false(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array; of bools, any byte that is not 0 is a true one."""
    return array.view(np.uint8) != 0 if array.dtype == bool else array
