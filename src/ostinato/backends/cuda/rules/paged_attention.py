"""The rule of ``paged_attention``: rows of many sequences against blocks of keys and values.

Tables say where the keys of a sequence are, and positions how many a row attends to: kernels read
the pools where they are, as far as the rows of a run need them. The keys of few rows are divided
into parts, as those of :mod:`ostinato.backends.cuda.rules.attention`; many rows are multiplied tile
by tile on tensor cores where the pools suit these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render import (
    paged_fragments,
    paged_groups,
    paged_rows,
    paged_tiles,
)
from ostinato.backends.cuda.rules.attention import CombineParts
from ostinato.backends.cuda.rules.paged_attention_kernel import PagedAttentionKernel
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.ir.types import TensorType
from ostinato.lower.fusion.reads import sole_readers
from ostinato.lower.loopir.nodes import Accumulator, Store
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.paged_attention_spec import is_in_place, paged_attention_spec
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["PagedAttention", "lower_paged_attention", "narrowed_results"]

#: Blocks that fill a GPU, about.
_FILLED = 128

#: Keys of a part, at least where a sequence is full; parts at most; and rows that have parts.
_PART_KEYS, _MOST_PARTS, _FEW_ROWS = 64, 16, 16


class PagedAttention(PagedAttentionKernel):
    """Rows of queries against the keys that tables name, or parts of them, for each block."""

    def items_of_point(self, target: CudaTarget) -> int:
        if paged_fragments.fits(self, target):
            return paged_fragments.head_blocks(self) * self.splits
        return paged_rows.head_blocks(self) * self.splits

    def launch(self, target: CudaTarget) -> Launch:
        if paged_groups.fits(self, target):
            return paged_groups.launch(self, target)
        if paged_tiles.fits(self, target):
            return paged_tiles.launch(self, target)
        if paged_fragments.fits(self, target):
            return paged_fragments.launch(self, target)
        return paged_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        if paged_groups.fits(self, target):
            return paged_groups.source(self, target)
        if paged_tiles.fits(self, target):
            return paged_tiles.source(self, target)
        return self._few_rows(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body | None:
        many = paged_groups.fits(self, target) or paged_tiles.fits(self, target)
        return None if many else self._few_rows(target)

    def _few_rows(self, target: CudaTarget) -> Body:
        in_fragments = paged_fragments.fits(self, target)
        return paged_fragments.body(self) if in_fragments else paged_rows.body(self)


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


def narrowed_results(graph: BaseGraph, nodes: Sequence[Node]) -> frozenset[Node]:
    """The casts to 16 bits that the kernels of many rows compute: they alone read the results.

    Args:
        graph: theirs.
        nodes: all that are computed.
    """
    readers = sole_readers(graph, nodes)
    found: set[Node] = set()
    for root in nodes:
        if root.op.name != "paged_attention" or not _has_many_rows(root):
            continue
        (value,) = root.outputs
        while (reader := readers.get(value)) is not None and reader.op.name == "reshape":
            (value,) = reader.outputs
        if reader is None or reader.op.name != "cast" or value.dtype != FLOAT32:
            continue
        if reader.outputs[0].dtype in (FLOAT16, BFLOAT16):
            found.add(reader)
    return frozenset(found)


def _has_many_rows(node: Node) -> bool:
    """Whether a node has more rows than those whose keys are divided into parts."""
    return bounds(node.inputs[0].shape[0])[1] > _FEW_ROWS


def _splits(node: Node) -> int:
    """Parts that the keys of a row are divided into: several, where there are few rows."""
    q, keys, _, table = node.inputs[:4]
    rows = bounds(q.shape[0])[1]
    if not 0 < rows <= _FEW_ROWS:
        return 1
    most = min(_MOST_PARTS, bounds(table.shape[1] * keys.shape[1])[1] // _PART_KEYS)
    return max(1, min(most, _FILLED // (rows * bounds(keys.shape[2])[1])))
