"""The kernels that sort long rows: tiles within blocks, then merges across the grid.

A first kernel sorts each tile of a row: every element counts the better ones of its tile. Each
kernel after it merges a few neighbouring runs into one, four times as long: every element finds its
place by a binary search in each of the other runs. So all elements move at the same time, and
``n`` of them take about ``log(n)`` searches each. Equal elements keep their order.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.frame import function, grid_of
from ostinato.backends.cuda.rules.sort_keys import bits_of, key_function, word_of
from ostinato.dtypes import INT32, INT64, UINT32, UINT64
from ostinato.ir.types import TensorType
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.whole_operands import lower_whole, whole
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.topk import Rows
    from ostinato.lower.rules.whole_operands import Places
    from ostinato.variables import Symbol

__all__ = ["MergeRuns", "SortTiles", "lower_sort"]

#: Threads of a block, and elements of a tile.
_THREADS = 256

#: Runs that a kernel merges into one.
_WAYS = 4

_TILES = Template("""\
    __shared__ $word keys[$threads];
    const long long tiles = (n + $threads - 1) / $threads;
    for (long long item = blockIdx.x; item < rows * tiles; item += gridDim.x) {
        const long long row = item / tiles, first = item % tiles * $threads;
        const long long start = row / inner * n * inner + row % inner;
        const int size = n - first < $threads ? (int)(n - first) : $threads;
        const int member = threadIdx.x;
        $word key = 0;
        if (member < size)
            key = key_of($x[start + (first + member) * inner]);
        keys[member] = key;
        __syncthreads();
        if (member < size) {
            int rank = 0;
            for (int i = 0; i < size; i++)
                rank += keys[i] > key || (keys[i] == key && i < member);
            $keys[row * n + first + rank] = key;
            $order[row * n + first + rank] = first + member;
        }
        __syncthreads();
    }
""")

_MERGE = Template("""\
    const long long stride = (long long)gridDim.x * $threads;
    for (long long item = (long long)blockIdx.x * $threads + threadIdx.x; item < rows * n;
         item += stride) {
        const long long row = item / n, base = row * n, i = item % n;
        const long long own = i / $length * $length;
        const long long group = i / ($ways * $length) * ($ways * $length);
        const $word key = $keys[item];
        long long target = group + i - own;
        for (long long begin = group; begin < group + $ways * $length && begin < n;
             begin += $length) {
            if (begin == own)
                continue;
            long long low = begin, high = begin + $length < n ? begin + $length : n;
            while (low < high) {
                const long long middle = low + (high - low) / 2;
                const $word other = $keys[base + middle];
                if (other > key || (other == key && begin < own))
                    low = middle + 1;
                else
                    high = middle;
            }
            target += low - begin;
        }
$store
    }
""")

_STORE_RUN = Template("""\
        $next_keys[base + target] = key;
        $next_order[base + target] = $order[item];""")

_STORE_RESULT = Template("""\
        if (target < k) {
            const long long place = $order[item];
            const long long at = row / inner * k * inner + target * inner + row % inner;
            $values[at] = $x[row / inner * n * inner + row % inner + place * inner];
            $positions[at] = place;
        }""")


def _launch(rows: Rows, target: CudaTarget) -> Launch:
    """A thread for each element, as far as there are."""
    elements = bounds(rows.rows)[1] * bounds(rows.n)[1]
    return Launch(grid_of(-(-elements // _THREADS), target), _THREADS)


@dataclass(frozen=True, eq=False)
class SortTiles(CudaKernel):
    """Sorts each tile of each row, the best elements first.

    Attributes:
        args: the operand, its keys and their positions.
        x, keys, order: their places among the arguments.
        rows: the rows.
        largest: whether the greatest element is the best.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    x: int
    keys: int
    order: int
    rows: Rows
    largest: bool
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "sort_tiles"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"sort of tiles, {'greatest' if self.largest else 'least'} first")
        text.head(self.args)
        self.rows.describe(text)
        text.line(1, f"of b{self.x} to b{self.keys} and b{self.order}")

    def variable_free(self) -> bool:
        return self.rows.fixed

    def launch(self, target: CudaTarget) -> Launch:
        return _launch(self.rows, target)

    def source(self, target: CudaTarget) -> str:
        dtype = self.args[self.x].dtype
        body = key_function(dtype, largest=self.largest) + _TILES.substitute(
            word=word_of(dtype),
            threads=_THREADS,
            x=f"b{self.x}",
            keys=f"b{self.keys}",
            order=f"b{self.order}",
        )
        types = {self.x: bits_of(dtype)}
        return function(self, body, self.rows._asdict(), _THREADS, types)


@dataclass(frozen=True, eq=False)
class MergeRuns(CudaKernel):
    """Merges sorted runs of each row, a few to one, or all that are left to the result.

    Attributes:
        args: keys and positions in runs, and in longer ones; or the operand and the results.
        keys, order: the places of the runs among the arguments.
        target: of the longer runs, or of the values and the positions.
        x: of the operand, at the last merge; ``None``: there are more merges.
        length: of a run.
        rows: the rows.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    keys: int
    order: int
    target: tuple[int, int]
    x: int | None
    length: int
    rows: Rows
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "merge_runs"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"merge of runs of {self.length}")
        text.head(self.args)
        self.rows.describe(text)
        text.line(1, f"of b{self.keys} and b{self.order} to b{self.target[0]}, b{self.target[1]}")
        text.line(1, f"elements {self.x}")

    def variable_free(self) -> bool:
        return self.rows.fixed

    def launch(self, target: CudaTarget) -> Launch:
        return _launch(self.rows, target)

    def source(self, target: CudaTarget) -> str:
        first, second = (f"b{position}" for position in self.target)
        names = {"keys": f"b{self.keys}", "order": f"b{self.order}"}
        types: dict[int, str] = {}
        if self.x is None:
            store = _STORE_RUN.substitute(names, next_keys=first, next_order=second)
        else:
            store = _STORE_RESULT.substitute(names, values=first, positions=second, x=f"b{self.x}")
            types = dict.fromkeys((self.x, self.target[0]), bits_of(self.args[self.x].dtype))
        body = _MERGE.substitute(
            names,
            word=word_of(self.args[self.keys].dtype),
            threads=_THREADS,
            ways=_WAYS,
            length=f"{self.length}ll",
            store=store,
        )
        return function(self, body, self.rows._asdict(), _THREADS, types)


def lower_sort(lowering: ProgramBuilder, region: Region, root: Node, rows: Rows) -> None:
    """Lower a region around a ``topk`` node that wants much of long rows."""
    (x,) = root.inputs
    variables = lowering.variables
    word = UINT64 if x.dtype.itemsize > 4 else UINT32
    place = INT32 if bounds(rows.n)[1] < 1 << 31 else INT64

    def runs() -> tuple[LoweredBuffer, LoweredBuffer]:
        shape = (rows.rows, rows.n)
        keys = LoweredBuffer(TensorType(word, shape), Role.TEMP, f"{root.label}.keys")
        return keys, LoweredBuffer(TensorType(place, shape), Role.TEMP, f"{root.label}.order")

    sorted_ = runs()
    build = lowering.helper_builder()
    source = build.argument(whole(lowering, x), reads=True)
    keys, order = (build.argument(buffer, writes=True) for buffer in sorted_)
    largest = root.attrs["largest"]
    tiles = SortTiles(build.args, source, keys, order, rows, largest, variables)
    lowering.helper_call(root, "sort of tiles", build, tiles)
    length = _THREADS
    while length * _WAYS < bounds(rows.n)[1]:
        longer = runs()
        build = lowering.helper_builder()
        keys, order = (build.argument(buffer, reads=True) for buffer in sorted_)
        target = (build.argument(longer[0], writes=True), build.argument(longer[1], writes=True))
        merge = MergeRuns(build.args, keys, order, target, None, length, rows, variables)
        lowering.helper_call(root, f"merge of {length}", build, merge)
        sorted_, length = longer, length * _WAYS

    def make(places: Places) -> MergeRuns:
        (element,), (values, positions) = places.operands, places.results
        keys, order = places.scratch
        target = (values, positions)
        return MergeRuns(places.args, keys, order, target, element, length, rows, variables)

    lower_whole(lowering, region, root, make, sorted_)
