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

__all__ = ["Image", "Preparation", "Step"]


class Step(NamedTuple):
    """A kernel and its arguments.

    Attributes:
        code: the symbol of a compiled kernel, or the name of a built-in one.
        builtin: whether it is a built-in kernel of the core.
        arguments: ``(slot, offset)`` of each; of a non-retained param, ``(-1 - n, 0)``, where
            ``n`` is its position among the params.
        extent, grain, scratch_bytes, parallel: see
            :class:`~ostinato.backends.cpu.rules.kernel.CpuKernel`;
            the extent is 0 where the code has a function that gives it.
        symbolic: whether it has.
    """

    code: str
    builtin: bool
    arguments: tuple[tuple[int, int], ...]
    extent: int
    symbolic: bool
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
            if self.symbolic:
                extent_address = code.address(f"{self.code}_extent")
        launch = (self.extent, extent_address, self.grain, self.scratch_bytes, self.parallel)
        return (address, arguments, *launch)


#: Steps that run, all of them or none, when one of some params was written.
Preparation: TypeAlias = ProgramPreparation[Step]


class Image(ProgramImage[Step]):
    """A graph compiled for the CPU."""

    __slots__ = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> Step:
        return Step(*entry)

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
