"""The kernel of ``draw``: a few blocks choose the token of a row, without sorting its weights.

What filters keep is everything from some weight on. Histograms find it: each block has a slice of
the row, and they add up what they have counted.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import ARRIVED, Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.frame import body_of
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.whole_operands import lower_whole
from ostinato.records import dataclass, replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.whole_operands import Places
    from ostinato.variables import Dim, Symbol

__all__ = ["Draw", "lower_draw"]

_THREADS = 512

#: Blocks that share a row, at most, each of which has so many weights at least; and those of all
#: rows, where a row has several.
_ROW_BLOCKS, _SLICE, _BLOCKS = 32, 2048, 128

#: Rows that are drawn from at the same time, where each has one block.
_ROWS = 512

_BODY = Template("""\
    typedef ost::drawing<$threads, $blocks> drawing;
    static_assert(drawing::words == $words, "the memory of a row");
    __shared__ drawing::shared kept;
    drawing drawn(kept, b$scratch, (unsigned*)(vars + $arrived));
    drawn.draw(b$weights, $vocabulary, rows, b$uniform, b$top_k, b$top_p, b$min_p, b$result);
    drawn.end_of_rows();
""")


@dataclass(frozen=True, eq=False)
class Draw(CudaKernel):
    """Draws a token for each row.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        operands: the positions of the node's operands.
        result: that of the tokens.
        scratch: that of what blocks tell one another.
        blocks: those that share a row.
        together: rows that are drawn from at the same time, at most.
        rows: how many there are.
        vocabulary: weights of a row.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    operands: tuple[int, ...]
    result: int
    scratch: int
    blocks: int
    together: int
    rows: Dim
    vocabulary: int
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "draw"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"draw from {self.vocabulary} weights, rows {text.dim(self.rows)}")
        text.head(self.args)
        text.line(1, f"{self.operands} -> {self.result}, {self.scratch}")
        text.line(1, f"{self.together} rows of {self.blocks} blocks")

    def launch(self, target: CudaTarget) -> Launch:
        grid = min(self.blocks * self.together, target.multiprocessors)
        return Launch(grid, _THREADS, cooperative=self.blocks > 1)

    def source(self, target: CudaTarget) -> str:
        weights, uniform, top_k, top_p, min_p = self.operands
        text = _BODY.substitute(
            threads=_THREADS,
            blocks=self.blocks,
            words=_row_words(self.blocks),
            arrived=ARRIVED,
            weights=weights,
            uniform=uniform,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            result=self.result,
            scratch=self.scratch,
            vocabulary=self.vocabulary,
        )
        body = body_of(self, text, {"rows": self.rows}, _THREADS)
        return replace(body, includes=f'{body.includes}#include "draw.cuh"\n').kernel(self.name)


def lower_draw(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``draw`` node."""
    rows, vocabulary = root.inputs[0].shape
    assert isinstance(vocabulary, int)
    most = max(1, bounds(rows)[1])
    blocks = max(1, min(_ROW_BLOCKS, -(-vocabulary // _SLICE), _BLOCKS // most))
    together = min(most, _BLOCKS // blocks if blocks > 1 else _ROWS)
    type_ = TensorType(INT64, (together, _row_words(blocks)))
    scratch = LoweredBuffer(type_, Role.TEMP, f"{root.label}.shared")

    def make(places: Places) -> Draw:
        (result,), (memory,) = places.results, places.scratch
        return Draw(
            places.args,
            places.operands,
            result,
            memory,
            blocks,
            together,
            rows,
            vocabulary,
            lowering.variables,
        )

    lower_whole(lowering, region, root, make, [scratch])


def _row_words(blocks: int) -> int:
    """Words of the memory of a row; see ``draw.cuh``."""
    bins = (1, 1) if blocks == 1 else (2048, 1024)
    return 5 * blocks + 2 * (bins[0] + 4 * bins[1])
