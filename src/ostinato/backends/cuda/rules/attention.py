"""The rule of ``attention``: blocks of query rows against all keys, with an online softmax.

Where rows are few and keys many, as when tokens are generated, the keys are divided into parts
that are computed side by side; a second kernel adds them up in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ostinato.backends.cuda.render import (
    attention_blocks,
    attention_features,
    attention_fragments,
    attention_groups,
    attention_lanes,
    attention_parts,
    attention_rows,
    attention_tiles,
)
from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel, PartsKernel
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Store
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.attention_spec import Queries, attention_spec
from ostinato.variables import bounds, ceil_div, floor_div

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

    #: A value that is stored, and its buffer.
    Output = tuple[Value, LoweredBuffer]

__all__ = ["Attention", "CombineParts", "lower_attention"]

#: Blocks that fill a GPU, about.
_FILLED = 128

#: Keys of a part, at least, and parts at most.
_PART_KEYS, _MOST_PARTS = 64, 16


class Attention(AttentionKernel):
    """Rows of queries against all keys, or those of a part, for each block.

    16-bit floats are multiplied by tensor cores where the GPU has them.
    """

    def launch(self, target: CudaTarget) -> Launch:
        match self._way(target):
            case "groups":
                return attention_groups.launch(self, target)
            case "blocks":
                return attention_blocks.launch(self, target)
            case "tiles":
                return attention_tiles.launch(self, target)
            case "features" | "fragments":
                return attention_fragments.launch(self, target)
            case "lanes":
                return attention_lanes.launch(self, target)
        return attention_rows.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        match self._way(target):
            case "groups":
                return attention_groups.source(self, target)
            case "blocks":
                return attention_blocks.source(self, target)
            case "tiles":
                return attention_tiles.source(self)
        body = self.body(target)
        assert body is not None
        return body.kernel(self.name)

    def body(self, target: CudaTarget) -> Body | None:
        match self._way(target):
            case "rows":
                return attention_rows.body(self)
            case "features":
                return attention_features.body(self)
            case "fragments":
                return attention_fragments.body(self)
            case "lanes":
                return attention_lanes.body(self)
        return None

    def items_of_point(self, target: CudaTarget) -> int:
        match self._way(target):
            case "features" | "fragments":
                return self.splits
            case "lanes":
                return attention_lanes.row_blocks(self) * self.splits
        return attention_rows.row_blocks(self) * self.splits

    def _way(
        self, target: CudaTarget
    ) -> Literal["rows", "lanes", "features", "fragments", "tiles", "blocks", "groups"]:
        """The renderer: with tensor cores, warps divide the features or the keys of few rows."""
        if not attention_tiles.fits(self, target):
            if attention_features.fits(self, target):
                return "features"
            if attention_fragments.fits_tiles(self, target):
                return "fragments"
            return "lanes" if attention_lanes.fits(self) else "rows"
        if attention_tiles.is_few(self):
            return "tiles"
        if attention_groups.fits(self, target):
            return "groups"
        return "blocks" if attention_blocks.fits(self) else "rows"


class CombineParts(PartsKernel):
    """The results of all parts of the keys, added up by a block for each row."""

    def launch(self, target: CudaTarget) -> Launch:
        return attention_parts.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        return attention_parts.body(self)


def lower_attention(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around an ``attention`` node."""
    result = lowering.only_transpose(root.outputs[0])
    output = (result, lowering.placement.target(result))
    splits, build = _splits(root), lowering.builder(region)
    if splits == 1:
        kernel: CudaKernel = _rows(build, root, output, lowering.variables)
    else:
        parts = _parts_buffer(root, splits)
        aside = lowering.builder(region)
        rows = _rows(aside, root, output, lowering.variables, splits, parts)
        flops = root.op.flops([value.type for value in root.inputs], root.attrs)
        lowering.helper_call(root, "attention of parts", aside, rows, flops)
        lowering.counted.add(root)
        kernel = _combined(build, root, output, lowering.variables, splits, parts)
    lowering.call(region, build, kernel, [output])


def _splits(root: Node) -> int:
    """Parts that the keys are divided into."""
    q, k = root.inputs[:2]
    group = floor_div(q.shape[1], k.shape[1])
    blocks = q.shape[0] * k.shape[1] * ceil_div(group * q.shape[2], attention_rows.ROWS)
    most = min(_MOST_PARTS, bounds(k.shape[2])[1] // _PART_KEYS)
    return max(1, min(most, _FILLED // max(1, bounds(blocks)[1])))


def _parts_buffer(root: Node, splits: int) -> LoweredBuffer:
    q, v = root.inputs[0], root.inputs[2]
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    type_ = TensorType(q.dtype.accumulator, (rows, splits, v.shape[3] + 2))
    return LoweredBuffer(type_, Role.TEMP, f"{root.label}.parts")


def _rows(
    build: KernelBuilder,
    node: Node,
    output: Output,
    variables: tuple[Symbol, ...],
    splits: int = 1,
    parts: LoweredBuffer | None = None,
) -> Attention:
    """The kernel of a node.

    Args:
        build: its builder.
        node: an ``attention``.
        output: its result, or a transpose of it, and the buffer of that.
        variables: the graph's Variables.
        splits: parts that the keys are divided into.
        parts: the memory of their results, if there are several.
    """
    result, _ = output
    spec = attention_spec(build, node, [output if parts is None else (result, parts)])
    aside = None if parts is None else spec.store.buffer
    return Attention(build.args, spec, splits, aside, variables)


def _combined(
    build: KernelBuilder,
    node: Node,
    output: Output,
    variables: tuple[Symbol, ...],
    splits: int,
    parts: LoweredBuffer,
) -> CombineParts:
    """The kernel that adds up the results of parts; see :func:`_rows`."""
    result, buffer = output
    queries, acc = Queries(build, node), node.inputs[0].dtype.accumulator
    scratch, target = build.argument(parts, reads=True), build.argument(buffer, writes=True)
    store = Store(target, queries.result_index(result), Accumulator(acc))
    m, column = symbols_of((queries.m, queries.column))
    batch = symbols_of(queries.batch)
    return CombineParts(build.args, batch, m, column, store, acc, splits, scratch, variables)
