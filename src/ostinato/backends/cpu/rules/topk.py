"""The kernel of ``topk``: the greatest or least elements of every row, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import GRAIN_POINTS, CpuKernel
from ostinato.dtypes import INT64
from ostinato.lower.loopir.builder import Outputs, symbols_of
from ostinato.lower.loopir.nodes import IndexValue, Scalar, Store, extent_of, max_extent
from ostinato.lower.loopir.views import Indices, linear_index
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis, prod

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["SORT_DIGITS", "TopK", "lower_topk"]

#: Values of a digit of the radix sort.
SORT_DIGITS = 256

#: Elements of a row from which a radix sort beats a heap, if one in so many at least is chosen.
_LONG_ROW, _MOST_OF_A_ROW = 256, 8


@dataclass(frozen=True, eq=False)
class TopK(CpuKernel):
    """Chooses elements of every row by rank.

    NaN ranks as the greatest; of equal elements the one at the lower position comes first.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        axes: the outer axes, outermost first; together they are the parallel range, one row each.
        along: the axis within a row.
        rank: the axis of the chosen elements, best first; ``k`` of them.
        largest: whether the greatest element is the best.
        value: the element at ``axes`` and ``along``.
        stores: over ``axes`` and ``rank``; in them ``along`` stands for the position chosen.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    axes: tuple[Symbol, ...]
    along: Symbol
    rank: Symbol
    largest: bool
    value: Scalar
    stores: tuple[Store, ...]
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "topk"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"topk, {'greatest' if self.largest else 'least'} first")
        text.head(self.args)
        for symbol in self.axes:
            text.line(1, f"for {text.axis(symbol)}")
        text.line(1, f"among {text.axis(self.along)}")
        text.line(1, f"choose {text.axis(self.rank)}")
        text.line(1, f"by {text.scalar(self.value)}")
        for store in self.stores:
            text.statement(store)

    @property
    def k(self) -> Dim:
        """The number of elements chosen from each row."""
        return extent_of(self.rank)

    @property
    def extent(self) -> Dim:
        """The parallel range: rows."""
        return prod(map(extent_of, self.axes)) if max_extent(self.rank) else 0

    @property
    def grain(self) -> int:
        """The number of rows that are worth handing out together."""
        return max(1, GRAIN_POINTS // max(1, max_extent(self.along)))

    @property
    def key_bits(self) -> int:
        """Bits of a sort key: an element's, or a position's if those need more."""
        wide = self.value.dtype.itemsize > 4 or max_extent(self.along) >= 1 << 32
        return 64 if wide else 32

    @property
    def shortest_sorted(self) -> int | None:
        """Elements from which rows are sorted as a whole, by radix; ``None``: never.

        Shorter rows, and those of which little is chosen, keep the best elements in a heap.
        """
        most = max_extent(self.along)
        if most < _LONG_ROW or max_extent(self.rank) * _MOST_OF_A_ROW < most:
            return None
        return _LONG_ROW

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch: the best elements so far, each a sort key and a position.

        A radix sort has two of all elements, and the counts of each digit of a key.
        """
        heap = max_extent(self.rank) * self.key_bits // 4
        if self.shortest_sorted is None:
            return heap
        return 2 * max_extent(self.along) * self.key_bits // 4 + self.key_bits * SORT_DIGITS


def _topk_kernel(
    build: KernelBuilder, node: Node, outputs: Outputs, variables: tuple[Symbol, ...]
) -> TopK:
    """The kernel of a ``topk`` node that stores whichever of its two results are wanted."""
    (x,) = node.inputs
    position: int = node.attrs["axis"]
    along, rank = axis("along", x.shape[position]), axis("rank", node.attrs["k"])
    outer = build.axes((*x.shape[:position], *x.shape[position + 1 :]))

    def at(index: Dim) -> Indices:
        return (*outer[:position], index, *outer[position:])

    value = build.at(x, at(along))
    stores = []
    for result, buffer in outputs:
        target = build.argument(buffer, writes=True)
        chosen = value if result.index == 0 else IndexValue(along, INT64)
        stores.append(Store(target, linear_index(result.shape, at(rank)), chosen))
    (along_symbol,), (rank_symbol,) = symbols_of([along]), symbols_of([rank])
    return TopK(
        build.args,
        symbols_of(outer),
        along_symbol,
        rank_symbol,
        node.attrs["largest"],
        value,
        tuple(stores),
        variables,
    )


def lower_topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``topk`` node."""
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    kernel = _topk_kernel(build, root, outputs, lowering.variables)
    lowering.call(region, build, kernel, outputs)
