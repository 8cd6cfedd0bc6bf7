"""Kernels that choose elements by their values: positions of true elements, boxes, and tokens.

They are the native core's, and go by sizes in memory: constants, or written by a small loop nest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.nodes import IndexValue, Store
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = [
    "DrawTokens",
    "FlatNonzero",
    "Suppress",
    "lower_draw",
    "lower_flat_nonzero",
    "lower_suppression",
]


#: Bytes of a histogram of weights: see ``weight_histogram`` in ``csrc/sampling.h``.
_HISTOGRAM_BYTES = 4096 * 16


@dataclass(frozen=True, eq=False)
class Selection(CpuKernel):
    """A kernel of the core that reads its sizes from argument 0.

    Attributes:
        args: the sizes, the operands and the result.
        items: the steps of its parallel range.
        scratch: bytes of scratch.
        variables: the graph's Variables.
    """

    args: tuple[Arg, ...]
    items: Dim
    scratch: int
    variables: tuple[Symbol, ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{self.builtin}, {text.dim(self.items)} times")
        text.head(self.args)

    @property
    def directing(self) -> Mapping[int, object]:
        return {0: None}

    @property
    def extent(self) -> Dim:
        return self.items

    @property
    def scratch_bytes(self) -> int:
        return self.scratch

    def variable_free(self) -> bool:
        return isinstance(self.items, int)


class FlatNonzero(Selection):
    """The positions of true elements; its sizes are the mask's length and the result's."""

    builtin: ClassVar[str | None] = "flat_nonzero"


class Suppress(Selection):
    """Non-maximum suppression, batch by batch and class by class.

    Its sizes are the classes, the boxes, and whether boxes are given by their centers.
    """

    builtin: ClassVar[str | None] = "suppress"


class DrawTokens(Selection):
    """A token for each row; the size is the number of tokens."""

    builtin: ClassVar[str | None] = "draw"


def lower_flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``flat_nonzero`` node."""
    (length,), (size,) = root.inputs[0].shape, root.outputs[0].shape
    sizes = _sizes(lowering, root, (length, size))
    _call(lowering, root, sizes, FlatNonzero, 1, 0)


def lower_suppression(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``non_max_suppression`` node."""
    batch, classes, boxes = root.inputs[1].shape
    sizes = _sizes(lowering, root, (classes, boxes, int(root.attrs["centered"])))
    scratch = bounds(boxes)[1] * INT64.itemsize
    _call(lowering, root, sizes, Suppress, batch * classes, scratch)


def lower_draw(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``draw`` node."""
    rows, vocabulary = root.inputs[0].shape
    sizes = _sizes(lowering, root, (vocabulary,))
    _call(lowering, root, sizes, DrawTokens, rows, _HISTOGRAM_BYTES)


def _sizes(lowering: ProgramBuilder, root: Node, dims: Sequence[Dim]) -> LoweredBuffer:
    """A buffer of the sizes; where they depend on Variables, a nest of its own writes them."""
    kind, name = TensorType(INT64, (len(dims),)), f"{root.label}.sizes"
    if all(isinstance(dim, int) for dim in dims):
        return LoweredBuffer(kind, Role.CONSTANT, name, data=np.array(dims, np.int64))
    buffer = LoweredBuffer(kind, Role.TEMP, name)
    build = lowering.helper_builder()
    position = build.argument(buffer, writes=True)
    stores = [Store(position, i, IndexValue(dim, INT64)) for i, dim in enumerate(dims)]
    lowering.helper_call(root, "sizes", build, block_nest(build, (), stores, lowering.variables))
    return buffer


def _call(
    lowering: ProgramBuilder,
    root: Node,
    sizes: LoweredBuffer,
    kind: type[Selection],
    items: Dim,
    scratch: int,
) -> None:
    build = lowering.helper_builder()
    for buffer in (sizes, *(_whole(lowering, value) for value in root.inputs)):
        build.operand(buffer)
    build.argument(lowering.store(root), writes=True)
    kernel = kind(build.args, items, scratch, lowering.variables)
    lowering.helper_call(root, root.op.name, build, kernel)


def _whole(lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
    """A buffer that holds ``value`` in C order."""
    if value not in lowering.stored or lowering.stored[value].layout is not None:
        lowering.copy(value)
    return lowering.stored[value]
