"""The compiled program of the CUDA device: its steps are launches of kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from ostinato.backends.common.program_image import ProgramImage
from ostinato.backends.cuda.abi import Launch
from ostinato.lower.control import ControlKind

__all__ = ["Image", "Step"]


class Step(NamedTuple):
    """A kernel and its arguments, or a decision about the step that comes next.

    Attributes:
        code: the symbol of the kernel; empty for a copy, and for a decision that needs no kernel.
        arguments: ``(slot, offset)`` of each; of a non-retained param, ``(-1 - n, 0)``, where
            ``n`` is its position among the params. Of a copy, the target and the source.
        shape: the fields of :class:`~ostinato.backends.cuda.abi.Launch`.
        failure: of a step that binds or checks a size, the code of its failure; else 0.
        problem: the words for that.
        control: the kind of decision, a :class:`~ostinato.lower.control.ControlKind`; else 0.
        target: of a decision, the step that it may jump to.
        nbytes: of a copy, its size.
        product: of a product by a library, its :class:`~ostinato.backends.cuda.product.Product` as
            plain tuples; else empty.
        reads, writes: the arguments that the kernel reads and writes, as bits by position.
    """

    code: str
    arguments: tuple[tuple[int, int], ...]
    shape: tuple[Any, ...] = (0, 0)
    failure: int = 0
    problem: str = ""
    control: int = 0
    target: int = 0
    nbytes: int = 0
    product: tuple[Any, ...] = ()
    reads: int = 0
    writes: int = 0

    @property
    def launch(self) -> Launch:
        """The launch of the kernel."""
        return Launch(*self.shape)

    def following(self, position: int, goes_on: bool) -> int:
        """The position of the step that comes after this one, a decision.

        Args:
            position: of this step.
            goes_on: what its kernel has decided, if it has one.
        """
        kind = ControlKind(self.control)
        if kind is ControlKind.ELSE:
            return self.target
        if kind is ControlKind.END_LOOP:
            return self.target if goes_on else position + 1
        return position + 1 if goes_on else self.target


class Image(ProgramImage[Step]):
    """A graph compiled for a GPU."""

    __slots__ = ()

    @classmethod
    def step_of(cls, entry: tuple[Any, ...]) -> Step:
        return Step(*entry)
