"""The rule of ``paged_attention``: rows of many sequences against blocks of keys and values.

Tables say where the keys of a sequence are, and positions how many a row attends to: kernels read
the pools where they are, as far as the rows of a run need them. The keys of few rows are divided
into parts, as those of :mod:`ostinato.backends.cuda.rules.attention`; many rows are multiplied tile
by tile on tensor cores where the pools suit these.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.render import paged_rows, paged_tiles
from ostinato.backends.cuda.rules.attention import CombineParts
from ostinato.backends.cuda.rules.attention_kernel import PointKernel
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import (
    accesses_of_scalars,
    accesses_of_statements,
    reached,
)
from ostinato.lower.loopir.nodes import Accumulator, Load, Store, extent_of, max_extent
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.paged_attention_spec import is_in_place, paged_attention_spec
from ostinato.records import dataclass
from ostinato.variables import bounds, coefficient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg, Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.paged_attention_spec import PagedAttentionSpec
    from ostinato.variables import Dim, Symbol

__all__ = ["PagedAttention", "lower_paged_attention"]

#: Blocks that fill a GPU, about.
_FILLED = 128

#: Keys of a part, at least where a sequence is full; parts at most; and rows that have parts.
_PART_KEYS, _MOST_PARTS, _FEW_ROWS = 64, 16, 16


@dataclass(frozen=True, eq=False)
class PagedAttention(PointKernel):
    """Paged attention, or what parts of the keys contribute to it.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra. Where there are several parts, the store's buffer gets their results: by
            row, head and part, sums for every column, then the greatest score and the total of the
            weights.
        splits: parts that the keys of each row are divided into.
        rounds: whether many rows of queries, and their weights, may be rounded to bfloat16.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: PagedAttentionSpec
    splits: int = 1
    rounds: bool = False
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "paged_attention"

    def describe(self, text: KernelText) -> None:
        rounded = ", rounds to bfloat16" if self.rounds else ""
        text.line(0, f"paged attention, {self.splits} parts{rounded}")
        text.head(self.args)
        self.spec.describe(text)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        return self.spec.elements(position)

    def accesses(self) -> Iterator[Access]:
        if self.splits == 1:
            yield from accesses_of_scalars(self.spec.operands)
            yield from accesses_of_statements((self.spec.store,))

    @property
    def point_axes(self) -> Sequence[Symbol]:
        return (self.spec.shared,) if max_extent(self.spec.row) == 1 else ()

    @property
    def points(self) -> Dim:
        return extent_of(self.spec.row) * max_extent(self.spec.shared)

    @property
    def read_elements(self) -> Sequence[Scalar]:
        return self.spec.operands

    @cached_property
    def head_pools(self) -> Mapping[int, int]:
        spec, found = self.spec, dict[int, int]()
        for load in reached([s for s in (spec.k, spec.v, spec.k_scale, spec.v_scale) if s]):
            if isinstance(load, Load):
                head, row = (coefficient(load.index, s) for s in (spec.shared, spec.place))
                apart = head and row and row[0] == max_extent(spec.shared) * head[0]
                if apart and head and isinstance(head[0], int):
                    found[load.buffer] = head[0]
        return found

    def items_of_point(self, target: CudaTarget) -> int:
        return paged_rows.head_blocks(self) * self.splits

    def launch(self, target: CudaTarget) -> Launch:
        if paged_tiles.fits(self, target):
            return paged_tiles.launch(self, target)
        return paged_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if paged_tiles.fits(self, target):
            return paged_tiles.source(self, target)
        return paged_rows.body(self).kernel(self.name)

    def body(self, target: CudaTarget) -> Body | None:
        return None if paged_tiles.fits(self, target) else paged_rows.body(self)


def lower_paged_attention(
    lowering: ProgramBuilder, region: Region, root: Node, *, rounds: bool = False
) -> None:
    """Lower a region around a ``paged_attention`` node; see :class:`PagedAttention`."""
    for pool in root.inputs[1:3]:
        if not is_in_place(lowering.builder(region), pool):
            lowering.copy(pool)
    outputs = lowering.region_outputs(region)
    ((result, buffer),) = outputs
    splits, build = _splits(root), lowering.builder(region)
    if splits == 1:
        spec = paged_attention_spec(build, root, result, buffer)
        kernel = PagedAttention(build.args, spec, rounds=rounds, variables=lowering.variables)
        lowering.call(region, build, kernel, outputs)
        return
    q, values = root.inputs[0], root.inputs[2]
    heads = q.shape[0] * q.shape[1]
    type_ = TensorType(q.dtype.accumulator, (heads, splits, values.shape[3] + 2))
    parts = LoweredBuffer(type_, Role.TEMP, f"{root.label}.parts")
    aside = lowering.builder(region)
    spec = paged_attention_spec(aside, root, result, parts)
    first = PagedAttention(aside.args, spec, splits, variables=lowering.variables)
    flops = root.op.flops([value.type for value in root.inputs], root.attrs)
    lowering.helper_call(root, "attention of parts", aside, first, flops)
    lowering.counted.add(root)
    scratch, target = build.argument(parts, reads=True), build.argument(buffer, writes=True)
    store = Store(target, spec.result_index(result), Accumulator(spec.acc))
    batch, variables = (spec.row, spec.shared), lowering.variables
    rest = (spec.member, spec.column, store, spec.acc, splits, scratch, variables)
    lowering.call(region, build, CombineParts(build.args, batch, *rest), outputs)


def _splits(node: Node) -> int:
    """Parts that the keys of a row are divided into: several, where there are few rows."""
    q, keys, _, table = node.inputs[:4]
    rows = bounds(q.shape[0])[1]
    if not 0 < rows <= _FEW_ROWS:
        return 1
    most = min(_MOST_PARTS, bounds(table.shape[1] * keys.shape[1])[1] // _PART_KEYS)
    return max(1, min(most, _FILLED // (rows * bounds(keys.shape[2])[1])))
