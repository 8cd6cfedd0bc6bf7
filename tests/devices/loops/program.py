"""Programs: the steps of an image, run in NumPy on blocks of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ostinato.backends.common.lowered_graph import LoweredGraph
from ostinato.dtypes import UINT8, DType
from ostinato.errors import VariableError
from ostinato.lower.control import Control, ControlKind, control_targets
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.text import kernel_text
from ostinato.lower.program import Call, Program
from ostinato.lower.rules.sizes import SizeStep
from ostinato.plan.order import Accesses
from ostinato.variables import Dim, Symbol, evaluate

from .interpreter import run_nest
from .rules import LibraryCall

__all__ = ["Compute", "LoopsCode", "LoopsProgram", "Step", "octets"]

Array = np.ndarray[Any, Any]


Compute = Callable[[Sequence[Array], dict[Symbol, int]], None]


class Step(NamedTuple):
    """A computation and its arguments.

    Attributes:
        compute: takes one-dimensional arrays, one for each argument, and the values of Variables,
            to which it may add that of a data-dependent one.
        dtypes: by argument.
        places: by argument, slot and offset; see :meth:`LoweredGraph.place`.
        sizes: by argument, its number of elements.
        control: decides which step comes next, if it does no more than that.
        target: the step that it may jump to.
    """

    compute: Compute
    dtypes: tuple[DType, ...]
    places: Sequence[tuple[int, int]]
    sizes: Sequence[Dim]
    control: Control | None = None
    target: int = 0

    @staticmethod
    def of(
        kernel: Kernel,
        places: Sequence[tuple[int, int]],
        sizes: Sequence[Dim],
        compute_of: Callable[[Kernel], Compute] | None = None,
    ) -> Step:
        """The step that runs a kernel; by default, one of this device."""
        compute = (compute_of or computation)(kernel)
        return Step(compute, tuple(arg.dtype for arg in kernel.args), places, sizes)

    @staticmethod
    def of_call(
        lowered: LoweredGraph[Program],
        call: Call,
        compute_of: Callable[[Kernel], Compute] | None = None,
    ) -> Step:
        """The step of a call of a lowered graph."""
        sizes = [buffer.type.size for buffer in call.buffers]
        if isinstance(call.kernel, Control):
            calls = lowered.program.calls
            target = control_targets(calls)[calls.index(call)]
            dtypes = tuple(arg.dtype for arg in call.kernel.args)
            places = [*map(lowered.place, call.buffers)]
            return Step(_nothing, dtypes, places, sizes, call.kernel, target)
        return Step.of(call.kernel, [*map(lowered.place, call.buffers)], sizes, compute_of)

    @staticmethod
    def copy(target: tuple[int, int], source: tuple[int, int], nbytes: int) -> Step:
        """The step that copies bytes."""
        return Step(_copy, (UINT8, UINT8), (target, source), (nbytes, nbytes))


def computation(kernel: Kernel) -> Compute:
    """Runs a kernel: a library call, or a loop nest that is interpreted."""
    if isinstance(kernel, LibraryCall):
        return kernel.run
    if isinstance(kernel, SizeStep):
        return partial(run_size_step, kernel)
    assert isinstance(kernel, LoopNest)
    return partial(run_nest, kernel)


@dataclass(frozen=True)
class LoopsCode:
    """The code of a kernel: its loop IR, which is interpreted."""

    kernel: Kernel
    assembly: None = None

    @property
    def source(self) -> str:
        return kernel_text(self.kernel)


class LoopsProgram:
    """See :class:`~ostinato.backends.common.program_runner.RunnableProgram`.

    Args:
        steps: of a run.
        variables: in the order of a run's values.
        fixed: returns the present blocks of the fixed slots.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        variables: Sequence[Symbol],
        fixed: Callable[[], list[Array]],
    ) -> None:
        self._steps = steps
        self._variables = variables
        self._fixed = fixed

    @property
    def accesses(self) -> Accesses:
        return Accesses([(id(self), 1, True)])

    def run(self, blocks: Sequence[Any], variables: Sequence[int]) -> None:
        self.run_profiled(blocks, variables)

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int]) -> Sequence[float]:
        values = dict(zip(self._variables, variables, strict=True))
        memory = dict(enumerate([*self._fixed(), *map(octets, blocks)]))
        return self.perform(self._steps, memory, values)

    @staticmethod
    def perform(
        steps: Sequence[Step], memory: Mapping[int, Array], values: Mapping[Symbol, int]
    ) -> Sequence[float]:
        """Run steps in order.

        Args:
            steps: the steps.
            memory: by slot, its bytes.
            values: of the Variables.

        Returns:
            The seconds that each step took.
        """
        loops = Loops(values)
        seconds = [0.0] * len(steps)
        position = 0
        with np.errstate(all="ignore"):
            while position < len(steps):
                step, start = steps[position], time.perf_counter()
                sizes = by_name(loops.values)
                buffers = [
                    np.ndarray(evaluate(size, sizes), dtype.numpy, memory[slot].data, offset)
                    for dtype, (slot, offset), size in zip(
                        step.dtypes, step.places, step.sizes, strict=True
                    )
                ]
                following = position + 1
                if step.control is not None:
                    following = loops.following(step.control, position, step.target, buffers)
                else:
                    step.compute(buffers, loops.values)
                seconds[position] += time.perf_counter() - start
                position = following
        return seconds


class Loops:
    """The loops that a run is in.

    Attributes:
        values: of the Variables, the iterations of loops among them.
    """

    def __init__(self, values: Mapping[Symbol, int]) -> None:
        self.values = dict(values)
        self._sizes = by_name(values)

    def following(
        self, control: Control, position: int, target: int, buffers: Sequence[Array]
    ) -> int:
        """The position of the step that comes after a control step."""
        goes_on = not control.conditional or bool(buffers[0][0])
        if control.kind in (ControlKind.LOOP, ControlKind.END_LOOP):
            begins = control.kind is ControlKind.LOOP
            assert control.iteration is not None
            iteration = 0 if begins else self.values[control.iteration] + 1
            self.values[control.iteration] = iteration
            if control.trips is not None:
                goes_on &= iteration < evaluate(control.trips, self._sizes)
            if control.counted:
                goes_on &= iteration < int(buffers[-1][0])
            return position + 1 if goes_on == begins else target
        return position + 1 if goes_on and control.kind is not ControlKind.ELSE else target


def run_size_step(step: SizeStep, buffers: Sequence[Array], values: dict[Symbol, int]) -> None:
    """Give a Variable its value, or check what follows from Variables."""
    limit = evaluate(step.limit, by_name(values))
    if step.symbol is None:
        if limit < 0:
            raise VariableError(f"{step.problem}, got {limit}")
        return
    count, kept = buffers
    if not 0 <= count[0] <= limit:
        raise VariableError(f"{step.problem}, got {count[0]}")
    kept[:] = count
    values[step.symbol] = int(count[0])


def by_name(values: Mapping[Symbol, int]) -> dict[str, int]:
    """The values of Variables by name."""
    return {symbol.name: value for symbol, value in values.items()}


def octets(block: Any) -> Array:
    """The bytes of an array, or of whatever else exports memory."""
    if isinstance(block, np.ndarray):
        return block.reshape(-1).view(np.uint8)
    return np.frombuffer(block, np.uint8)


def _nothing(buffers: Sequence[Array], values: dict[Symbol, int]) -> None:
    """A control step computes nothing."""


def _copy(buffers: Sequence[Array], values: dict[Symbol, int]) -> None:
    target, source = buffers
    target[:] = source
