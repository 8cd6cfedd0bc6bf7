"""All steps of one direction of a recurrent layer: expressions of any kernel, and GPUs' kernels."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nodes import Accumulator, Store, max_extent
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.ops.recurrent import GATES, RECURRENT_SCAN, WEIGHT_PARTS, resets_first
from ostinato.records import dataclass
from ostinato.variables import axis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node
    from ostinato.ir.op import Attr
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.nodes import Arg, Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = ["Recurrence", "ScanOperands", "lower_recurrence", "parts_of"]


def parts_of(attrs: Mapping[str, Attr], gates: int) -> tuple[str, ...]:
    """The rows of hidden units that a sequence needs memory for while it runs.

    ``h`` is the state, ``c`` an LSTM's cell, ``update`` and ``reset`` are what a GRU's first gates
    leave for its candidate; a ``product`` of the state with each gate's weights follows.
    """
    cell = ("c",) if attrs["kind"] == "lstm" else ()
    first = ("update", "reset") if resets_first(attrs) else ()
    return ("h", *cell, *first, *(f"product{gate}" for gate in range(gates)))


@dataclass(frozen=True, eq=False)
class Recurrence(Kernel):
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


class ScanOperands:
    """The operands and results of a ``recurrent_scan`` node, as expressions of a kernel.

    The initial state is apart: a kernel may have other arguments before it.

    Args:
        build: the kernel, which gets their buffers as arguments.
        node: the node.
        outputs: the results that are wanted.

    Attributes:
        named: the operands by name.
        step: the axis of time.
        row: the axis of sequences.
        column: the axis of hidden units.
        attrs: the attributes that the op's rules of a step need.
        x: the inputs' share of each gate.
        weights: the parts of the op's optional weights, by name.
        length: the number of steps of a sequence, an int64; ``None`` for all of them.
        stores: by result, its store, in which ``Accumulator`` is the new state; ``None``: unwanted.
        acc: the dtype of sums and of the state.
    """

    def __init__(self, build: KernelBuilder, node: Node, outputs: Outputs) -> None:
        self.named = named = RECURRENT_SCAN.named(node.inputs, node.attrs)
        xproj, hidden = named["xproj"], named["r"].shape[1]
        self.acc = xproj.dtype.accumulator
        self.step, self.row = axis("step", xproj.shape[0]), axis("row", xproj.shape[1])
        self.column = axis("n", hidden)
        self.attrs = tuple(sorted((n, value) for n, value in node.attrs.items() if n != "given"))
        step, row, column = self.step, self.row, self.column
        weights = {
            name: tuple(build.at(named[name], (part * hidden + column,)) for part in range(parts))
            for name, parts in WEIGHT_PARTS.items()
            if name in named
        }
        self.weights = tuple(weights.items())
        self.length = None
        if "sequence_lens" in named:
            self.length = cast(build.at(named["sequence_lens"], (row,)), INT64)
        self.stores: list[Store | None] = [None] * len(node.outputs)
        for result, buffer in outputs:
            at = (step, row, column)[-result.ndim :]
            target = build.argument(buffer, writes=True)
            value = Accumulator(self.acc)
            self.stores[result.index] = Store(target, linear_index(result.shape, at), value)
        self.x = tuple(
            build.at(xproj, (step, row, gate * hidden + column))
            for gate in range(GATES[node.attrs["kind"]])
        )

    def initial(self, build: KernelBuilder) -> tuple[Scalar, ...]:
        """The state before the first step, ``h`` and (LSTM) ``c``."""
        states = [self.named[name] for name in ("h0", "c0") if name in self.named]
        return tuple(build.at(state, (self.row, self.column)) for state in states)


def lower_recurrence(
    lowering: ProgramBuilder, region: Region, root: Node, kind: type[Recurrence]
) -> None:
    """Lower a region around a ``recurrent_scan`` node, as a kernel of the class given."""
    build, outputs = lowering.builder(region), lowering.region_outputs(region)
    scan = ScanOperands(build, root, outputs)
    r, acc = scan.named["r"], scan.acc
    gates, hidden, inner = len(scan.x), r.shape[1], axis("k", r.shape[1])
    matrices = tuple(build.at(r, (gate * hidden + scan.column, inner)) for gate in range(gates))
    initial = scan.initial(build)
    rows = scan.named["xproj"].shape[1]
    shape = (rows, len(parts_of(root.attrs, gates)) * hidden)
    scratch = LoweredBuffer(TensorType(acc, shape), Role.TEMP, f"{root.label}.state")
    position = build.argument(scratch, reads=True, writes=True)
    step_symbol, row_symbol, column_symbol, inner_symbol = symbols_of(
        (scan.step, scan.row, scan.column, inner)
    )
    kernel = kind(
        build.args,
        step_symbol,
        row_symbol,
        column_symbol,
        inner_symbol,
        scan.attrs,
        scan.x,
        matrices,
        initial,
        scan.weights,
        scan.length,
        scan.stores[0],
        tuple(scan.stores[1:]),
        position,
        acc,
        lowering.variables,
    )
    lowering.call(region, build, kernel, outputs)
