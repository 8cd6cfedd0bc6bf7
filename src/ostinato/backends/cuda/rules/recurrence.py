"""All steps of one direction of a recurrent layer, as a kernel of the device has them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.lower.loopir.nodes import max_extent
from ostinato.ops.recurrent import resets_first
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.ir.op import Attr
    from ostinato.lower.loopir.nodes import Arg, Scalar, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["Recurrence", "parts_of"]


def parts_of(attrs: Mapping[str, Attr], gates: int) -> tuple[str, ...]:
    """The vectors of hidden units that a sequence needs memory for while it runs.

    ``h`` is the state, ``c`` an LSTM's cell, ``update`` and ``reset`` are what a GRU's first gates
    leave for its candidate; a ``product`` of the state with each gate's weights follows.
    """
    cell = ("c",) if attrs["kind"] == "lstm" else ()
    first = ("update", "reset") if resets_first(attrs) else ()
    return ("h", *cell, *first, *(f"product{gate}" for gate in range(gates)))


@dataclass(frozen=True, eq=False)
class Recurrence(CudaKernel):
    """All steps of a ``recurrent_scan``.

    Scalar expressions are over ``step``, ``row``, ``column`` and ``inner``; in stores,
    ``Accumulator`` is the new state.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        step: the axis of time.
        row: the axis of sequences.
        column: the axis of hidden units.
        inner: the axis of hidden units that products sum over.
        attrs: those of the op that its rules of a step need.
        x: the inputs' share of each gate.
        r: the element of each gate's weights, at ``column`` and ``inner``.
        initial: the state before the first step, ``h`` and (LSTM) ``c``.
        weights: the parts of the op's optional weights, by name.
        length: the number of steps of a sequence, an int64; ``None`` for all of them.
        y: stores ``h`` of every step.
        last: stores the last state, part by part; ``None`` for one that is not read.
        scratch: the argument with a row of all :attr:`parts` for each sequence, of dtype ``acc``.
        acc: the dtype of sums and of the state.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    step: Symbol
    row: Symbol
    column: Symbol
    inner: Symbol
    attrs: tuple[tuple[str, Attr], ...]
    x: tuple[Scalar, ...]
    r: tuple[Scalar, ...]
    initial: tuple[Scalar, ...]
    weights: tuple[tuple[str, tuple[Scalar, ...]], ...]
    length: Scalar | None
    y: Store | None
    last: tuple[Store | None, ...]
    scratch: int
    acc: DType
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "recurrent"

    def describe(self, text: KernelText) -> None:
        attrs = ", ".join(f"{name}={text.attr(value)}" for name, value in self.attrs)
        text.line(0, f"recurrent scan, {attrs}")
        text.head(self.args)
        for name in ("step", "row", "column", "inner"):
            text.line(1, f"{name} {text.axis(getattr(self, name))}")
        text.line(1, f"accumulate {self.acc.short}, state in b{self.scratch}")
        text.named("x", self.x)
        text.named("r", self.r)
        text.named("initial", self.initial)
        for name, parts in self.weights:
            text.named(name, parts)
        if self.length is not None:
            text.named("length", [self.length])
        for name, store in zip(("y", "h", "c"), (self.y, *self.last), strict=False):
            if store is not None:
                text.line(1, f"store {name}")
                text.statement(store)

    @cached_property
    def rule(self) -> Mapping[str, Attr]:
        """The attributes by name, as the op's rules take them."""
        return dict(self.attrs)

    @property
    def hidden(self) -> int:
        """Hidden units."""
        return max_extent(self.column)

    @property
    def parts(self) -> tuple[str, ...]:
        """See :func:`parts_of`."""
        return parts_of(self.rule, len(self.x))
