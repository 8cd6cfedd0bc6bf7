"""Kernels that choose elements by their values: positions of true elements, and boxes."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.frame import function
from ostinato.dtypes import UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules import flat_nonzero
from ostinato.lower.rules.flat_nonzero import FlatNonzero
from ostinato.lower.rules.whole_operands import lower_whole
from ostinato.records import dataclass
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

__all__ = ["CudaFlatNonzero", "Suppress", "lower_flat_nonzero", "lower_suppression"]

# -- positions of true elements --------------------------------------------------------------------

#: Threads of the block, and elements that each of them looks at in one round.
_SCAN_THREADS, _SCAN_ELEMENTS = 1024, 8

_NONZERO = Template("""\
    __shared__ int counts[$threads];
    long long found = 0;
    for (long long start = 0; start < length && found < size; start += $threads * $elements) {
        const long long first = start + (long long)threadIdx.x * $elements;
        int count = 0;
        for (long long i = first; i < first + $elements && i < length; i++)
            count += $mask[i] != 0;
        counts[threadIdx.x] = count;
        __syncthreads();
        for (int step = 1; step < $threads; step *= 2) {
            int before = threadIdx.x >= step ? counts[threadIdx.x - step] : 0;
            __syncthreads();
            counts[threadIdx.x] += before;
            __syncthreads();
        }
        long long place = found + counts[threadIdx.x] - count;
        for (long long i = first; i < first + $elements && i < length && place < size; i++) {
            if ($mask[i] != 0)
                $found[place++] = i;
        }
        found += counts[$threads - 1];
        __syncthreads();
    }
    for (long long i = found + threadIdx.x; i < size; i += $threads)
        $found[i] = 0;
""")


class CudaFlatNonzero(FlatNonzero, CudaKernel):
    """The positions of true elements, found by one block in rounds."""

    prefix: ClassVar[str] = "flat_nonzero"

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(1, _SCAN_THREADS)

    def source(self, target: CudaTarget) -> str:
        body = _NONZERO.substitute(
            threads=_SCAN_THREADS,
            elements=_SCAN_ELEMENTS,
            mask=f"b{self.mask}",
            found=f"b{self.found}",
        )
        sizes = {"length": self.length, "size": self.size}
        return function(self, body, sizes, _SCAN_THREADS)


def lower_flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``flat_nonzero`` node."""
    flat_nonzero.lower_flat_nonzero(lowering, region, root, CudaFlatNonzero)


# -- boxes -----------------------------------------------------------------------------------------

_BOX_THREADS = 256

_BOX = Template("""\
struct ${name}_box {
    double low[2], high[2];
};

static __device__ inline ${name}_box ${name}_read(const float* numbers) {
    ${name}_box found;
    for (int side = 0; side < 2; side++) {
        double first = numbers[side], second = numbers[side + 2];
$sides
    }
    return found;
}

static __device__ inline double ${name}_area(const ${name}_box& box) {
    return (box.high[0] - box.low[0]) * (box.high[1] - box.low[1]);
}

static __device__ inline bool ${name}_overlaps(
    const ${name}_box& a, const ${name}_box& b, double limit
) {
    double common = 1;
    for (int side = 0; side < 2; side++) {
        double high = a.high[side] < b.high[side] ? a.high[side] : b.high[side];
        double low = a.low[side] > b.low[side] ? a.low[side] : b.low[side];
        common *= high - low > 0 ? high - low : 0;
    }
    const double first = ${name}_area(a), second = ${name}_area(b);
    const bool shared = common > 0 && first > 0 && second > 0;
    return (shared ? common / (first + second - common) : 0) > limit;
}

""")

#: The two sides of a box of two opposite corners, and of one given by its center.
_CORNERS = """\
        found.low[side] = first < second ? first : second;
        found.high[side] = first > second ? first : second;"""
_CENTERED = """\
        found.low[side] = first - second / 2;
        found.high[side] = first + second / 2;"""

_SUPPRESS = Template("""\
    __shared__ float best_scores[$threads];
    __shared__ long long best_boxes[$threads];
    const long long most = $most[0];
    const double overlap = $overlap[0];
    const float least = $least[0];
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {
        const float* boxes = $boxes + item / classes * n * 4;
        const float* scores = $scores + item * n;
        long long* chosen = $chosen + item * n;
        unsigned char* gone = $gone + item * n;
        for (long long i = threadIdx.x; i < n; i += $threads)
            gone[i] = !(scores[i] > least);
        long long count = 0;
        while (count < most) {
            long long best = -1;
            for (long long i = threadIdx.x; i < n; i += $threads) {
                if (!gone[i] && (best < 0 || scores[i] > scores[best]))
                    best = i;
            }
            best_boxes[threadIdx.x] = best;
            best_scores[threadIdx.x] = best < 0 ? 0 : scores[best];
            __syncthreads();
            for (int step = $threads / 2; step > 0; step /= 2) {
                if (threadIdx.x < step) {
                    const long long mine = best_boxes[threadIdx.x];
                    const long long other = best_boxes[threadIdx.x + step];
                    const float score = best_scores[threadIdx.x + step];
                    const float own = best_scores[threadIdx.x];
                    if (other >= 0
                        && (mine < 0 || score > own || (score == own && other < mine))) {
                        best_boxes[threadIdx.x] = other;
                        best_scores[threadIdx.x] = score;
                    }
                }
                __syncthreads();
            }
            best = best_boxes[0];
            __syncthreads();
            if (best < 0)
                break;
            if (threadIdx.x == 0)
                chosen[count] = best;
            count++;
            const ${name}_box box = ${name}_read(boxes + 4 * best);
            for (long long i = threadIdx.x; i < n; i += $threads) {
                const ${name}_box other = ${name}_read(boxes + 4 * i);
                if (!gone[i])
                    gone[i] = i == best || ${name}_overlaps(box, other, overlap);
            }
        }
        for (long long i = count + threadIdx.x; i < n; i += $threads)
            chosen[i] = -1;
    }
""")


@dataclass(frozen=True, eq=False)
class Suppress(CudaKernel):
    """Non-maximum suppression: a block for each class of each batch.

    Attributes:
        args: boxes, scores, the three limits, the chosen boxes, and a byte for each score.
        operands: the places of the first five among the arguments.
        chosen, gone: those of the others.
        batch, classes, boxes: sizes.
        centered: whether boxes are given by their centers.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    operands: tuple[int, ...]
    chosen: int
    gone: int
    batch: Dim
    classes: Dim
    boxes: Dim
    centered: bool
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "suppress"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"non-maximum suppression, centered={self.centered}")
        text.head(self.args)
        text.line(1, f"of {self.operands} to b{self.chosen} with b{self.gone}")
        sizes = (self.batch, self.classes, self.boxes)
        text.line(1, f"batch, classes, boxes = {', '.join(map(text.dim, sizes))}")

    def variable_free(self) -> bool:
        return all(isinstance(dim, int) for dim in (self.batch, self.classes, self.boxes))

    def launch(self, target: CudaTarget) -> Launch:
        items = bounds(self.batch * self.classes)[1]
        most = target.multiprocessors * target.threads_per_multiprocessor // _BOX_THREADS
        return Launch(max(1, min(items, most)), _BOX_THREADS)

    def source(self, target: CudaTarget) -> str:
        operands = ("boxes", "scores", "most", "overlap", "least")
        places = {n: f"b{i}" for n, i in zip(operands, self.operands, strict=True)}
        body = _SUPPRESS.substitute(
            places,
            name=self.name,
            threads=_BOX_THREADS,
            chosen=f"b{self.chosen}",
            gone=f"b{self.gone}",
        )
        sizes = {"items": self.batch * self.classes, "classes": self.classes, "n": self.boxes}
        head = _BOX.substitute(name=self.name, sides=_CENTERED if self.centered else _CORNERS)
        return function(self, body, sizes, _BOX_THREADS, before=head)


def lower_suppression(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``non_max_suppression`` node."""
    batch, classes, boxes = root.inputs[1].shape

    def make(places: Places) -> Suppress:
        (chosen,), (gone,) = places.results, places.scratch
        return Suppress(
            places.args,
            places.operands,
            chosen,
            gone,
            batch,
            classes,
            boxes,
            root.attrs["centered"],
            lowering.variables,
        )

    type_ = TensorType(UINT8, root.outputs[0].shape)
    scratch = LoweredBuffer(type_, Role.TEMP, f"{root.label}.gone")
    lower_whole(lowering, region, root, make, [scratch])
