"""One run of a compiled graph: its checks, its memory, and the turns that calls take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.turns import Turn
from ostinato.errors import InputError
from ostinato.runtime.handles import Handles, output_index
from ostinato.runtime.turns import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Executable
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Live, Signature

__all__ = ["Execution", "nothing"]


class Execution:
    """What all ways to run a compiled graph share; a part of :class:`CompiledGraph`.

    There are two paths. The short one checks arrays and runs. The long one minds handles, keeps
    results that nobody wants in the arena, and waits its turn behind queued runs.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    params: Mapping[str, TensorSpec]

    def __init__(
        self,
        signature: Signature,
        executable: Executable,
        device: Device,
        options: CompileOptions,
    ) -> None:
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self.params = signature.params
        self._signature = signature
        self._executable = executable
        self._device = device
        self._cast = options.cast_inputs
        self._plan: ExecutionPlan | None = None
        self._handles = Handles(signature)
        self._turn = Turn()
        self._commits = Queue()
        self._last: tuple[Array, ...] = ()
        self._choose_path()

    def _choose_path(self) -> None:
        """Whether runs are free to take the short path."""
        self._quick = not (self._executable.unset or self._handles.active or self._commits.used)

    def _positions(self, indices: object) -> list[int]:
        if not isinstance(indices, Iterable):
            raise InputError(f"expected positions of outputs, got {indices!r:.80}")
        return [output_index(index, len(self.outputs)) for index in indices]

    def _run_aside(
        self,
        inputs: object,
        out: Any = None,
        *,
        positions: Sequence[int] | None = None,
        feed: Mapping[str, int] | None = None,
    ) -> list[Array]:
        """A run by the long path for a caller who reads all outputs, or those at ``positions``."""

        def choose(live: Live) -> Sequence[Array | None]:
            if out is not None:
                return self._signature.check_outputs(out, live)
            wanted = range(len(live.outputs)) if positions is None else positions
            return [
                np.empty(shape, dtype) if i in wanted else None
                for i, (shape, dtype) in enumerate(live.outputs)
            ]

        self._commits.settle()
        return self._perform(inputs, choose, feed)[0]

    def _perform(
        self,
        inputs: object,
        choose: Callable[[Live], Sequence[Array | None]],
        feed: Mapping[str, int] | None = None,
    ) -> tuple[list[Array], list[Array]]:
        """One run by the long path, which minds handles.

        Args:
            inputs: those that handles stand in for may be missing.
            choose: for each output, the array that the caller wants to have filled, if any.
            feed: handles that take outputs after this run alone.

        Returns:
            The outputs for the caller, and those that the run wrote: they differ where a handle
            takes what the run wrote and the caller a copy of it.
        """
        with self._turn:
            feeds = {**self._handles.feeds, **(feed or {})}
            given = self._handles.complete(inputs)
            known = None if self._executable.unset else self._signature.recognise(given)
            arrays, live = known or self._checked(given)
            chosen = choose(live)
            written = [
                room if array is None else array
                for array, room in zip(chosen, self._room(live), strict=True)
            ]
            taken = self._handles.destinations(live, feeds)
            if taken and (clash := self._signature.overlap(arrays, written)):
                raise InputError(clash)  # of arrays that the run itself may not get to see
            for position, buffer in taken.items():
                written[position] = buffer
            self._dispatch(arrays, written, live)
            self._handles.take(taken, feeds)
            self._last = tuple(written)
            if taken:
                self._choose_path()
            asked = [w if c is None else c for c, w in zip(chosen, written, strict=True)]
            for position, buffer in taken.items():
                if asked[position] is not buffer:
                    np.copyto(asked[position], buffer)
        return asked, written

    def _dispatch(self, inputs: list[Array], outputs: list[Array], live: Live) -> None:
        try:
            self._executable.run(inputs, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None

    def _room(self, live: Live) -> list[Array]:
        """For each output, its place in the arena."""
        arena, offsets = self._executable.arena, self._executable.result_offsets
        return [
            np.ndarray(shape, dtype, arena, offset)
            for offset, (shape, dtype) in zip(offsets, live.outputs, strict=True)
        ]

    def _checked(self, inputs: object, *, bound: bool = False) -> tuple[list[Array], Live]:
        if self._executable.unset:
            unset = sorted(self._executable.unset)
            names = ", ".join(str(self.params[name]) for name in unset)
            raise InputError(f"these params were never set: {names}; use set_param")
        given = {} if inputs is None else inputs
        return self._signature.check_inputs(given, cast=self._cast, bound=bound)

    def _refusal(
        self, inputs: Sequence[Array], outputs: Sequence[Array], error: ValueError
    ) -> InputError:
        """What was wrong with arrays that an executable would not run on."""
        return InputError(self._signature.overlap(inputs, outputs) or str(error))


def nothing(live: Live) -> list[None]:
    """What a caller wants who reads no output."""
    return [None] * len(live.outputs)
