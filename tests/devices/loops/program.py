"""Programs: the steps of an image, run in NumPy on blocks of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ostinato.backends.common.lowered_graph import LoweredGraph
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.program import Call, Program
from ostinato.plan.order import Accesses
from ostinato.variables import Dim, Symbol, evaluate

from .interpreter import run_nest
from .rules import LibraryCall

__all__ = ["LoopsProgram", "Step"]

Array = np.ndarray[Any, Any]


class Step(NamedTuple):
    """A kernel and its arguments.

    Attributes:
        kernel: the kernel; this device compiles no code.
        arguments: see :meth:`LoweredGraph.place`.
        sizes: by argument, its number of elements.
    """

    kernel: Kernel
    arguments: tuple[tuple[int, int], ...]
    sizes: tuple[Dim, ...]

    @staticmethod
    def of(lowered: LoweredGraph[Program], call: Call) -> Step:
        """The step of a call."""
        places = tuple(map(lowered.place, call.buffers))
        return Step(call.kernel, places, tuple(buffer.type.size for buffer in call.buffers))


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
        steps: Iterable[Step], memory: Mapping[int, Array], values: Mapping[Symbol, int]
    ) -> Sequence[float]:
        """Run steps in order.

        Args:
            steps: the steps.
            memory: by slot, its bytes.
            values: of the Variables.

        Returns:
            The seconds that each step took.
        """
        sizes = {symbol.name: value for symbol, value in values.items()}
        seconds = []
        with np.errstate(all="ignore"):
            for kernel, arguments, counts in steps:
                start = time.perf_counter()
                buffers = [
                    np.ndarray(evaluate(count, sizes), arg.dtype.numpy, memory[slot].data, offset)
                    for arg, (slot, offset), count in zip(
                        kernel.args, arguments, counts, strict=True
                    )
                ]
                if isinstance(kernel, LibraryCall):
                    kernel.run(buffers, values)
                else:
                    assert isinstance(kernel, LoopNest)
                    run_nest(kernel, buffers, values)
                seconds.append(time.perf_counter() - start)
        return seconds


def octets(block: Any) -> Array:
    """The bytes of an array, or of whatever else exports memory."""
    if isinstance(block, np.ndarray):
        return block.reshape(-1).view(np.uint8)
    return np.frombuffer(block, np.uint8)
