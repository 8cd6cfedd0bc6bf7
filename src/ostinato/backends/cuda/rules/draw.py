"""The kernel of ``draw``: a block chooses the token of a row, without sorting its weights.

What filters keep is everything from some weight on. A block finds that weight bit by bit: it counts
and sums up the weights that are at least so great, of the few that matter, which it has listed.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.frame import body_of
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

_THREADS = 1024

#: Weights that a block lists, at most.
_LISTED = 8 << 10

_BODY = Template("""\
    typedef ost::drawing<$threads, $listed> drawing;
    __shared__ drawing::shared kept;
    for (long long row = own.x; row < rows; row += all.x) {
        drawing drawn = {b$weights + row * $vocabulary, $vocabulary, kept};
        const int token =
            drawn.draw(b$uniform[row], b$top_k[row], b$top_p[row], b$min_p[row]);
        if (threadIdx.x == 0) b$result[row] = token;
        __syncthreads();
    }
""")


@dataclass(frozen=True, eq=False)
class Draw(CudaKernel):
    """Draws a token for each row.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        operands: the positions of the node's operands.
        result: that of the tokens.
        rows: how many there are.
        vocabulary: weights of a row.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    operands: tuple[int, ...]
    result: int
    rows: Dim
    vocabulary: int
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "draw"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"draw from {self.vocabulary} weights, rows {text.dim(self.rows)}")
        text.head(self.args)
        text.line(1, f"{self.operands} -> {self.result}")

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(max(1, min(bounds(self.rows)[1], target.multiprocessors)), _THREADS)

    def source(self, target: CudaTarget) -> str:
        weights, uniform, top_k, top_p, min_p = self.operands
        text = _BODY.substitute(
            threads=_THREADS,
            listed=_LISTED,
            weights=weights,
            uniform=uniform,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            result=self.result,
            vocabulary=self.vocabulary,
        )
        body = body_of(self, text, {"rows": self.rows}, _THREADS)
        return replace(body, includes=f'{body.includes}#include "draw.cuh"\n').kernel(self.name)


def lower_draw(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``draw`` node."""
    rows, vocabulary = root.inputs[0].shape
    assert isinstance(vocabulary, int)

    def make(places: Places) -> Draw:
        (result,) = places.results
        return Draw(places.args, places.operands, result, rows, vocabulary, lowering.variables)

    lower_whole(lowering, region, root, make)
