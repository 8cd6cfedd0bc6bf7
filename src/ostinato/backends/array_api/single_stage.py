"""Runs of a program that is one stage, by positions of operands and results that are found once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.array_api.arrays import ResidentArray
from ostinato.backends.array_api.fresh_run import FreshOutput, FreshParts, FreshState
from ostinato.backends.array_api.run import dim_number

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ostinato.backends.array_api.arrays import ArrayBlock
    from ostinato.backends.array_api.expert_calls import ExpertCalls
    from ostinato.backends.array_api.framework import ArrayFunction
    from ostinato.backends.array_api.functions import StageFunctions
    from ostinato.backends.array_api.stages import Stage
    from ostinato.ir.graph import Value

__all__ = ["SingleStage"]


class SingleStage:
    """A stage that is all of a program.

    A run does what :class:`~ostinato.backends.array_api.run.Run` does, without a table of values:
    next to a compiled function of a millisecond, that table would be a tenth of the time.

    Args:
        functions: the compiled stages.
        stage: the stage.
        kept: the places of params, states and constants.
        inputs: the values whose arrays a run is given, in order.
        outputs: the values that go to memory which a run is given, in order.
        assigned: the values that states get, and the places of these states.
        calls: takes the ids of experts that runs call.
    """

    def __init__(
        self,
        functions: StageFunctions,
        stage: Stage,
        kept: Mapping[Value, tuple[int, int]],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        assigned: Sequence[tuple[Value, tuple[int, int]]],
        calls: ExpertCalls,
    ) -> None:
        self._functions = functions
        self._framework = functions.framework
        self._stage = stage
        self._function: ArrayFunction | None = None
        numbers = {value: (-1, number) for number, value in enumerate(inputs)}
        self._sources = [kept.get(value) or numbers[value] for value in stage.operands]
        position = {value: number for number, value in enumerate(stage.results)}
        self._outputs = [position[value] for value in outputs]
        self._states = [(position[value], place) for value, place in assigned]
        self._calls = calls
        self._called = [position[value] for value in calls.values]
        states = [number for number, _ in self._states]
        self._repeated = [i for i, number in enumerate(states) if number in states[:i]]
        self._shared = {
            i for i, number in enumerate(self._outputs) if number in (*states, *self._outputs[:i])
        }

    def fresh(
        self, inputs: Sequence[Value], outputs: Sequence[Value], *, own: bool
    ) -> FreshParts | None:
        """Runs on arrays of the host alone; ``None``: sizes vary, or calls of experts are noted.

        Args:
            inputs: the values whose arrays a run is given.
            outputs: those that go to memory which a run is given.
            own: whether to copy inputs.
        """
        stage, repeated = self._stage, set(self._repeated)
        if stage.sizes or stage.numbers or self._called:
            return None
        return FreshParts(
            self._framework,
            lambda: self._compiled({}, ()),
            inputs,
            self._sources,
            [
                FreshOutput(value, number, i in self._shared)
                for i, (value, number) in enumerate(zip(outputs, self._outputs, strict=True))
            ],
            [FreshState(n, place, i in repeated) for i, (n, place) in enumerate(self._states)],
            own,
        )

    def run(
        self,
        fixed: Sequence[ArrayBlock],
        given: Sequence[Any],
        blocks: Sequence[Any],
        sizes: Mapping[str, int],
        consumed: Collection[Value],
        *,
        own: bool,
    ) -> list[Any]:
        """Run it, and exchange the arrays of states.

        Args:
            fixed: the blocks of the fixed slots.
            given: the arrays of inputs.
            blocks: the memory that outputs go to.
            sizes: the values of Variables.
            consumed: inputs that nothing reads afterwards.
            own: whether nothing writes to the inputs' memory afterwards, so that results may still
                be under way.

        Returns:
            The outputs; for a handle, an array that is nothing else's.
        """
        framework, stage = self._framework, self._stage
        tables = [block.arrays for block in fixed]
        operands = [given[at] if slot < 0 else tables[slot][at] for slot, at in self._sources]
        if stage.numbers:
            operands += [dim_number(framework, value, sizes) for value in stage.numbers]
        results = self._compiled(sizes, consumed)(operands)
        outputs = [results[number] for number in self._outputs]
        states = [results[number] for number, _ in self._states]
        for position in self._repeated:
            states[position] = framework.copy(states[position])
        for position in self._shared:
            if isinstance(blocks[position], ResidentArray):
                outputs[position] = framework.copy(outputs[position])
        if called := [results[number] for number in self._called]:
            self._calls.note(called)
        arrays = [*outputs, *states, *called]
        if own:
            framework.launch(arrays)
        else:
            framework.wait(arrays)
        for (_, (slot, offset)), array in zip(self._states, states, strict=True):
            tables[slot][offset] = array
        return outputs

    def _compiled(self, sizes: Mapping[str, int], consumed: Collection[Value]) -> ArrayFunction:
        if consumed or self._stage.sizes:
            return self._functions.get(self._stage, sizes, consumed)
        if self._function is None:
            self._function = self._functions.get(self._stage, sizes)
        return self._function
