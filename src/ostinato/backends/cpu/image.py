"""The CPU's compiled program: its steps are launches of the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation, Slot
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.llvm.toolchain import LinkedCode
from ostinato.backends.cpu.loader.link import load
from ostinato.cache.objects import process_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AnyStep", "Image", "Preparation", "SizeStep", "Step"]


class Step(NamedTuple):
    """A kernel and its arguments.

    Attributes:
        code: the symbol of a compiled kernel, or the name of a built-in one.
        builtin: whether it is a built-in kernel of the core.
        arguments: ``(slot, offset)`` of each; of a non-retained param, ``(-1 - n, 0)``, where
            ``n`` is its position among the params.
        extent, grain, scratch_bytes, parallel: see
            :class:`~ostinato.backends.cpu.rules.kernel.CpuKernel`;
            the extent is 0 where a function gives it.
        extent_of: the symbol of that function; empty for a constant.
    """

    code: str
    builtin: bool
    arguments: tuple[tuple[int, int], ...]
    extent: int
    extent_of: str
    grain: int
    scratch_bytes: int
    parallel: bool

    def native(self, code: LinkedCode | None, given: Mapping[int, int]) -> _core.Step:
        """The core's form of it.

        Args:
            code: of the compiled kernels.
            given: the slots of non-retained params, by position.
        """
        arguments = [(s, o) if s >= 0 else (given[-1 - s], o) for s, o in self.arguments]
        extent_address = 0
        if self.builtin:
            address: int = getattr(_core, self.code)
        else:
            assert code is not None
            address = code.address(self.code)
        if self.extent_of:
            assert code is not None
            extent_address = code.address(self.extent_of)
        launch = (self.extent, extent_address, self.grain, self.scratch_bytes, self.parallel)
        return (address, arguments, *launch)


class SizeStep(NamedTuple):
    """A step that gives a data-dependent size its value, or checks what follows from sizes.

    Attributes:
        arguments: of one that binds: where the value is, and where a copy of it goes.
        variable: the number of the Variable; -1: the step checks.
        greatest: the greatest value; of a check, the number that is to be at least 0.
        greatest_of: the symbol of the function that returns that; empty for a constant.
        problem: the words for a number out of bounds.
    """

    arguments: tuple[tuple[int, int], ...]
    variable: int
    greatest: int
    greatest_of: str
    problem: str

    def native(self, code: LinkedCode | None, given: Mapping[int, int]) -> _core.SizeStep:
        """See :meth:`Step.native`."""
        address = 0
        if self.greatest_of:
            assert code is not None
            address = code.address(self.greatest_of)
        arguments = [(s, o) if s >= 0 else (given[-1 - s], o) for s, o in self.arguments]
        return None, arguments, self.variable, 0, self.greatest, address, self.problem


class ControlStep(NamedTuple):
    """A step that decides which step comes next.

    Attributes:
        arguments: the condition and the trip count, as far as there are such.
        trips: the most iterations of a loop.
        trips_of: the symbol of the function that returns that; empty for a constant.
        jump: the kind, the step that it may jump to, and the variable that counts iterations.
        flags: whether there is a condition, and whether there is a trip count.
    """

    arguments: tuple[tuple[int, int], ...]
    trips: int
    trips_of: str
    jump: tuple[int, int, int]
    flags: tuple[bool, bool]

    def native(self, code: LinkedCode | None, given: Mapping[int, int]) -> _core.Step:
        """See :meth:`Step.native`."""
        address = 0
        if self.trips_of:
            assert code is not None
            address = code.address(self.trips_of)
        arguments = [(s, o) if s >= 0 else (given[-1 - s], o) for s, o in self.arguments]
        return (0, arguments, self.trips, address, 1, 0, False, (*self.jump, *self.flags))


#: A step of a run.
AnyStep: TypeAlias = Step | SizeStep | ControlStep

#: Steps that run, all of them or none, when one of some params was written.
Preparation: TypeAlias = ProgramPreparation[AnyStep]


class Image(ProgramImage[AnyStep]):
    """A graph compiled for the CPU."""

    __slots__ = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> AnyStep:
        if len(entry) == len(Step._fields):
            return Step(*entry)
        # The last field of a size's step is its problem.
        return SizeStep(*entry) if isinstance(entry[-1], str) else ControlStep(*entry)

    def prepacking(self) -> object:
        """The form of the weights, and how they are brought into it: equal if both are the same.

        Constants that the steps read, such as the strides of a copy, count by their contents.
        """
        keys = {symbol: code.key for code in self.objects for symbol in code.symbols}
        constants = {offset: bytes(data) for offset, data in self.constants}
        steps = [
            (
                part.params,
                step._replace(arguments=()),
                keys.get(step.code),
                [constants.get(o, o) if s == Slot.CONSTANTS else (s, o) for s, o in step.arguments],
            )
            for part in self.preparations
            for step in part.steps
            if isinstance(step, Step)  # as all are: sizes are bound by runs
        ]
        return self.sizes[Slot.WEIGHTS], self.params, steps

    def code(self) -> LinkedCode | None:
        """The code of the kernels; ``None`` if some of it is no longer in the cache."""
        found = []
        for key, symbols in self.objects:
            data = process_cache().find(key)
            if data is None:
                return None
            found.append((data, symbols))
        return load(found) if found else LinkedCode({}, ())
