"""The parts of runs of a single stage on arrays of the host, whose outputs are new arrays.

Next to compiled code of a millisecond, whose data take the caches, each function of Python on the
way costs some microseconds. So whatever no run changes is found once, and the native core does the
rest: :class:`~ostinato.backends.array_api._fresh_runs.FreshRun`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.array_api.arrays import ArrayBlock
    from ostinato.backends.array_api.framework import ArrayFunction, Framework
    from ostinato.ir.graph import Value

__all__ = ["FreshOutput", "FreshParts", "FreshState"]


class FreshOutput(NamedTuple):
    """An output of a stage.

    Attributes:
        value: its value.
        result: the number of the stage's result.
        shared: whether another output or a state has the same result.
    """

    value: Value
    result: int
    shared: bool


class FreshState(NamedTuple):
    """A state that a stage assigns.

    Attributes:
        result: the number of the stage's result.
        place: of the state: a slot and an offset.
        shared: whether another state has the same result.
    """

    result: int
    place: tuple[int, int]
    shared: bool


class FreshParts(NamedTuple):
    """A stage whose sizes are numbers, and which is all of a program.

    Attributes:
        framework: computes.
        function: returns the compiled stage.
        inputs: the values whose arrays a run is given.
        sources: the place of each operand: a slot and an offset, or -1 and the number of an input.
        outputs: of the program.
        states: those that are assigned.
        own: whether inputs are copied first, so that results may still be under way at the end.
    """

    framework: Framework
    function: Callable[[], ArrayFunction]
    inputs: Sequence[Value]
    sources: Sequence[tuple[int, int]]
    outputs: Sequence[FreshOutput]
    states: Sequence[FreshState]
    own: bool

    def bound(self, blocks: Sequence[ArrayBlock]) -> tuple[Any, ...]:
        """The parts of a call of the native core, on the present blocks of the fixed slots."""
        framework = self.framework
        tables = [block.arrays for block in blocks]
        return (
            self.function().call,
            tuple([(None if slot < 0 else tables[slot], at) for slot, at in self.sources]),
            tuple(
                [
                    (state.result, tables[slot], at, self._copied if state.shared else None)
                    for state in self.states
                    for slot, at in (state.place,)
                ]
            ),
            tuple([self._read(output) for output in self.outputs]),
            framework.taken if self.own else framework.lent,
            framework.settings([value.dtype for value in self.inputs]),
            self._finish,
        )

    @property
    def _finish(self) -> Callable[[Sequence[Any]], None] | None:
        """A function that has the states computed: outputs are read, which waits for them."""
        if not self.states:
            return None
        if not self.own:
            return self.framework.wait
        return None if self.framework.starts_calls else self.framework.launch

    def _read(self, output: FreshOutput) -> tuple[int, Callable[..., Any], Any, Any, int]:
        """A result as an array that may be written: in its own memory, or copied."""
        framework, type_ = self.framework, output.value.type
        dtype, nbytes = type_.dtype.numpy, type_.max_bytes
        if output.shared or not framework.gives(nbytes):
            return output.result, framework.copied_out, None, None, 0
        return output.result, np.ndarray, type_.shape, dtype, nbytes

    def _copied(self, array: Any) -> Any:
        with self.framework.scope():
            return self.framework.copy(array)
