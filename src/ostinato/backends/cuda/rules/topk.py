"""The kernel of ``topk``: the greatest or least elements of every row, in order.

Elements are compared as sort keys: unsigned integers in the order of the elements, NaN above all.
Three ways lead to the same result. Few elements are chosen one after the other by a block per row,
in long rows of candidates that blocks have chosen from slices before. For many, every element of a
short row counts the better ones, which is its rank; long rows are sorted.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.body import SharedArray
from ostinato.backends.cuda.render.frame import body_of
from ostinato.backends.cuda.rules.sort import lower_sort
from ostinato.backends.cuda.rules.sort_keys import bits_of, key_function, word_of
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.topk import TopK, rows_of
from ostinato.lower.rules.whole_operands import lower_whole, whole
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.topk import Rows
    from ostinato.lower.rules.whole_operands import Places

__all__ = ["CudaTopK", "lower_topk"]

#: Elements up to which they are chosen one after the other.
_FEW = 64

#: Elements of a row up to which every element looks at all others.
_LONGEST_COUNTED = 1024

#: Elements of a row from which a block of its own pays.
_LONG_ROW = 256

_THREADS = 256

#: Rows up to which slices of them are chosen from apart, at most so many of about such a length.
_FEW_ROWS, _MOST_SLICES, _SLICE_LENGTH = 16, 64, 2048

_CHOOSE = Template("""\
    for (long long item = own.x; item < rows * $slices; item += all.x) {
        const long long row = item / $slices;
        const long long start = row / inner * n * inner + row % inner;
$range
        $word last = 0;
        long long last_place = -1;
        bool exhausted = false;
        for (long long rank = 0; rank < k; rank++) {
            $word key = 0;
            long long place = -1;
            for (long long i = first + threadIdx.x; i < end; i += $threads) {
                const long long at = $place;
                if (at < 0)
                    continue;
                $word candidate = key_of($x[start + at * inner]);
                bool behind = candidate < last || (candidate == last && at > last_place);
                bool left = !exhausted && (rank == 0 || behind);
                bool better = place < 0 || candidate > key || (candidate == key && at < place);
                if (left && better) {
                    key = candidate;
                    place = at;
                }
            }
            best_keys[threadIdx.x] = key;
            best_places[threadIdx.x] = place;
            OST_SYNC();
            for (int step = $threads / 2; step > 0; step /= 2) {
                if (threadIdx.x < step) {
                    $word other = best_keys[threadIdx.x + step];
                    long long at = best_places[threadIdx.x + step];
                    long long mine = best_places[threadIdx.x];
                    bool better = other > best_keys[threadIdx.x]
                        || (other == best_keys[threadIdx.x] && at < mine);
                    if (at >= 0 && (mine < 0 || better)) {
                        best_keys[threadIdx.x] = other;
                        best_places[threadIdx.x] = at;
                    }
                }
                OST_SYNC();
            }
            last = best_keys[0];
            last_place = best_places[0];
            exhausted = last_place < 0;
            if (threadIdx.x == 0) {
$store
            }
            OST_SYNC();
        }
    }
""")

#: The places that a block looks at: all of a row, candidates of a row, or a slice of it.
_ROW = """\
        const long long first = 0, end = n;"""
_CANDIDATES = Template("""\
        const long long first = item * $candidates * k, end = first + $candidates * k;""")
_SLICE = Template("""\
        const long long length = (n + $slices - 1) / $slices, first = item % $slices * length;
        const long long end = first + length < n ? first + length : n;""")

#: Stores what is chosen: a result, or a candidate, if there is one.
_RESULT = Template("""\
                const long long target = row / inner * k * inner + rank * inner + row % inner;
                $values[target] = $x[start + last_place * inner];
                $positions[target] = last_place;""")
_CANDIDATE = Template("""\
                $positions[item * k + rank] = last_place;""")

_COUNT = Template("""\
    const long long stride = (long long)all.x * $threads;
    for (long long item = (long long)own.x * $threads + threadIdx.x; item < rows * n;
         item += stride) {
        const long long row = item / n, place = item % n;
        const long long start = row / inner * n * inner + row % inner;
        const $element x = $x[start + place * inner];
        const $word key = key_of(x);
        long long rank = 0;
        for (long long i = 0; i < n; i++) {
            $word other = key_of($x[start + i * inner]);
            rank += other > key || (other == key && i < place);
        }
        if (rank < k) {
            const long long target = row / inner * k * inner + rank * inner + row % inner;
            $values[target] = x;
            $positions[target] = place;
        }
    }
""")


@dataclass(frozen=True, eq=False)
class CudaTopK(TopK, CudaKernel):
    """Chooses elements of every row by rank, or of slices of it.

    Attributes:
        slices: parts of a row that are chosen from apart: positions are candidates then, ``k`` for
            each slice, -1 where there are no more; 1: the row is whole.
        candidates: the place of such candidates among the arguments, and the slices that they are
            from; ``None``: elements are chosen from the row, or from slices of it.
    """

    slices: int = 1
    candidates: tuple[int, int] | None = None

    prefix: ClassVar[str] = "topk"

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        text.line(1, f"slices {self.slices}, candidates {self.candidates}")

    @property
    def _one_by_one(self) -> bool:
        return bounds(self.rows.k)[1] <= _FEW and bounds(self.rows.n)[1] >= _LONG_ROW

    def launch(self, target: CudaTarget) -> Launch:
        rows, n = bounds(self.rows.rows)[1], bounds(self.rows.n)[1]
        blocks = rows * self.slices if self._one_by_one else -(-rows * n // _THREADS)
        most = target.multiprocessors * target.threads_per_multiprocessor // _THREADS
        early = target.starts_kernels_early
        return Launch(max(1, min(blocks, most)), _THREADS, programmatic=early)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        dtype = self.args[self.x].dtype
        names = {
            "element": bits_of(dtype),
            "word": word_of(dtype),
            "threads": str(_THREADS),
            "x": f"b{self.x}",
            "values": f"b{self.values}",
            "positions": f"b{self.positions}",
        }
        arrays: tuple[SharedArray, ...] = ()
        key = key_function(dtype, largest=self.largest)
        text = self._choose(names) if self._one_by_one else _COUNT.substitute(names)
        if self._one_by_one:
            keys = SharedArray(names["word"], 8, "best_keys", (_THREADS,))
            arrays = keys, SharedArray("long long", 8, "best_places", (_THREADS,))
        types = {self.x: names["element"]}
        if self.slices == 1:
            types[self.values] = names["element"]
        sizes, early = self.rows._asdict(), target.starts_kernels_early
        return body_of(self, key + text, sizes, _THREADS, types, arrays=arrays, early=early)

    def _choose(self, names: Mapping[str, str]) -> str:
        """Statements that choose elements one after the other."""
        slices, place, places, result = str(self.slices), "i", _ROW, _RESULT.substitute(names)
        if self.candidates is not None:
            found, count = self.candidates
            place, places = f"b{found}[i]", _CANDIDATES.substitute(candidates=count)
        elif self.slices > 1:
            places, result = _SLICE.substitute(slices=slices), _CANDIDATE.substitute(names)
        return _CHOOSE.substitute(names, slices=slices, place=place, range=places, store=result)


def lower_topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``topk`` node."""
    (x,) = root.inputs
    rows = rows_of(root)
    if bounds(rows.k)[1] > _FEW and bounds(rows.n)[1] > _LONGEST_COUNTED:
        lower_sort(lowering, region, root, rows)
        return
    slices, largest, variables = _slices(rows), root.attrs["largest"], lowering.variables
    scratch: list[LoweredBuffer] = []
    if slices > 1:
        type_ = TensorType(INT64, (rows.rows, slices, rows.k))
        scratch = [LoweredBuffer(type_, Role.TEMP, f"{root.label}.candidates")]
        build = lowering.helper_builder()
        source = build.argument(whole(lowering, x), reads=True)
        found = build.argument(scratch[0], writes=True)
        chosen = CudaTopK(build.args, source, found, found, rows, largest, variables, slices)
        lowering.helper_call(root, "topk of slices", build, chosen)

    def make(places: Places) -> CudaTopK:
        (source,), (values, positions) = places.operands, places.results
        candidates = (places.scratch[0], slices) if slices > 1 else None
        return CudaTopK(
            places.args, source, values, positions, rows, largest, variables, 1, candidates
        )

    lower_whole(lowering, region, root, make, scratch)


def _slices(rows: Rows) -> int:
    """The slices of a row that are chosen from apart, where rows are few and long."""
    if bounds(rows.rows)[1] > _FEW_ROWS or not 0 < bounds(rows.k)[1] <= _FEW:
        return 1
    return max(1, min(_MOST_SLICES, bounds(rows.n)[1] // _SLICE_LENGTH))
