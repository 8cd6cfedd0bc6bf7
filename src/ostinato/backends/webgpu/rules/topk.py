"""The kernel of ``topk``: the greatest or least elements of every row, in order.

Elements are compared as sort keys: unsigned integers in the order of the elements, NaN above all,
the zeros equal. Few elements of long rows are chosen one after the other by a workgroup per row. In
short rows every element counts the better ones, which is its rank; other rows are sorted.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.backends.webgpu.render.mapping import THREADS
from ostinato.backends.webgpu.render.sort_keys import above, is_wide, key_of, same
from ostinato.backends.webgpu.rules.sort import CHUNK, lower_sort
from ostinato.lower.rules.topk import TopK, rows_of
from ostinato.lower.rules.whole_operands import lower_whole
from ostinato.variables import bounds, ceil_div

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.whole_operands import Places

__all__ = ["WebGpuTopK", "lower_topk"]

#: Elements up to which they are chosen one after the other, from rows of at least a length.
_FEW, _LONG_ROW = 64, 256

#: Threads that choose from a row together.
_CHOOSERS = 256

_COUNT = Template("""\
    let item = i32(group * ${threads}u + thread);
    if (item < $rows * $n) {
        let row = item / $n;
        let place = item % $n;
        let start = row / $inner * $n * $inner + row % $inner;
        let mine = $key(b$x(u32(start + place * $inner)));
        var rank = 0i;
        for (var i = 0i; i < $n; i++) {
            let other = $key(b$x(u32(start + i * $inner)));
            if ($better) { rank++; }
        }
        if (rank < $k) {
            let target_ = u32(row / $inner * $k * $inner + rank * $inner + row % $inner);
            $put_values(target_, b$x(u32(start + place * $inner)));
            $put_positions(target_, widened_i32(place));
        }
    }
""")

_CHOOSE = Template("""\
    let row = i32(group);
    if (row < $rows) {
        let start = row / $inner * $n * $inner + row % $inner;
        var last: $word;
        var last_place = -1i;
        for (var rank = 0i; rank < $k; rank++) {
            var best: $word;
            var best_place = -1i;
            for (var i = i32(thread); i < $n; i += $threads) {
                let candidate = $key(b$x(u32(start + i * $inner)));
                let left = rank == 0 || $after_last;
                if (left && (best_place < 0 || $above_best)) {
                    best = candidate;
                    best_place = i;
                }
            }
            $keys[thread] = best;
            $places[thread] = best_place;
            workgroupBarrier();
            for (var step = ${half}u; step > 0u; step >>= 1u) {
                if (thread < step) {
                    let candidate = $keys[thread + step];
                    let i = $places[thread + step];
                    let best = $keys[thread];
                    let best_place = $places[thread];
                    let equal_first = $same && i < best_place;
                    if (i >= 0 && (best_place < 0 || $above_best || equal_first)) {
                        $keys[thread] = candidate;
                        $places[thread] = i;
                    }
                }
                workgroupBarrier();
            }
            last = $keys[0];
            last_place = $places[0];
            if (thread == 0u) {
                let target_ = u32(row / $inner * $k * $inner + rank * $inner + row % $inner);
                $put_values(target_, b$x(u32(start + last_place * $inner)));
                $put_positions(target_, widened_i32(last_place));
            }
            workgroupBarrier();
        }
    }
""")


class WebGpuTopK(TopK, WebGpuKernel):
    """Chooses elements of every row by rank."""

    prefix: ClassVar[str] = "topk"

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return _shader(self, target, bindings)


def lower_topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a ``topk`` node."""
    rows = rows_of(root)
    if bounds(rows.k)[1] > _FEW and bounds(rows.n)[1] > CHUNK:
        lower_sort(lowering, region, root, rows)
        return

    def make(places: Places) -> WebGpuTopK:
        (source,), (values, positions) = places.operands, places.results
        largest, variables = root.attrs["largest"], lowering.variables
        return WebGpuTopK(places.args, source, values, positions, rows, largest, variables)

    lower_whole(lowering, region, root, make)


def _shader(topk: WebGpuTopK, target: WebGpuTarget, bindings: Bindings) -> Shader:
    code = KernelCode(topk, (), target, bindings)
    dtype = topk.args[topk.x].dtype
    wide = is_wide(dtype)
    names = {
        name: code.declare("n", code.size(dim, code.outermost))
        for name, dim in topk.rows._asdict().items()
    }
    names |= {
        "x": str(topk.x),
        "put_values": code.arrays.putting(topk.values),
        "put_positions": code.arrays.putting(topk.positions),
        "key": key_of(dtype, largest=topk.largest),
    }
    one_by_one = bounds(topk.rows.k)[1] <= _FEW and bounds(topk.rows.n)[1] >= _LONG_ROW
    if not one_by_one:
        better = above("other", "mine", wide)
        equal = same("other", "mine", wide)
        text = _COUNT.substitute(
            names, threads=THREADS, better=f"{better} || ({equal} && i < place)"
        )
        code.count_iterations(topk.rows.n)
        code.writer.line(text.strip())
        return code.shader(THREADS, ceil_div(topk.rows.rows * topk.rows.n, THREADS))
    threads = min(_CHOOSERS, target.threads)
    word = "vec2<u32>" if wide else "u32"
    below, equal = above("last", "candidate", wide), same("last", "candidate", wide)
    text = _CHOOSE.substitute(
        names,
        threads=threads,
        half=threads // 2,
        word=word,
        keys=code.shared(word, threads),
        places=code.shared("i32", threads),
        after_last=f"{below} || ({equal} && i > last_place)",
        above_best=above("candidate", "best", wide),
        same=same("candidate", "best", wide),
    )
    each = ceil_div(topk.rows.n, threads) + threads.bit_length()
    code.count_iterations(topk.rows.k * (each + 1))
    code.writer.line(text.strip())
    return code.shader(threads, topk.rows.rows)
