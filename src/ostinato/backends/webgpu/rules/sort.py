"""The sort of long rows: runs of a row in order, merged two by two, and what is taken from them.

What is sorted are the positions of elements in their row. In a run that is merged with another one,
an element comes behind as many of the other's elements as are better, found by bisection.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.backends.webgpu.render.mapping import THREADS
from ostinato.backends.webgpu.render.sort_keys import above, is_wide, key_of, same
from ostinato.dtypes import INT32
from ostinato.ir.types import TensorType
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.whole_operands import lower_whole, whole
from ostinato.records import dataclass
from ostinato.variables import bounds, ceil_div

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.topk import Rows
    from ostinato.lower.rules.whole_operands import Places
    from ostinato.variables import Symbol

__all__ = ["CHUNK", "lower_sort"]

#: Elements of a run in which each counts the better ones.
CHUNK = 1024

_START = Template("""\
    let item = i32(group * ${threads}u + thread);
    if (item < $rows * $n) {
        let row = item / $n;
        let i = item % $n;
        let start = row / $inner * $n * $inner + row % $inner;
""")

_COUNT = Template("""\
        let first = i / $chunk * $chunk;
        let end = min(first + $chunk, $n);
        let mine = $key(b$x(u32(start + i * $inner)));
        var rank = first;
        for (var place = first; place < end; place++) {
            let other = $key(b$x(u32(start + place * $inner)));
            if ($better || ($equal && place < i)) { rank++; }
        }
        put$to(u32(row * $n + rank), i);
    }
""")

_MERGE = Template("""\
        let run = i / $length;
        let place = b$before(u32(item));
        let mine = $key(b$x(u32(start + place * $inner)));
        let beside = min((run ^ 1) * $length, $n);
        var low = beside;
        var high = min(beside + $length, $n);
        while (low < high) {
            let middle = (low + high) / 2;
            let there = b$before(u32(row * $n + middle));
            let other = $key(b$x(u32(start + there * $inner)));
            if ($better || ($equal && there < place)) { low = middle + 1; } else { high = middle; }
        }
        let rank = run / 2 * 2 * $length + (i - run * $length) + (low - beside);
        put$to(u32(row * $n + rank), place);
    }
""")

_TAKE = Template("""\
        if (i < $k) {
            let place = b$before(u32(item));
            let into = u32(row / $inner * $k * $inner + i * $inner + row % $inner);
            $put_values(into, b$x(u32(start + place * $inner)));
            $put_positions(into, widened_i32(place));
        }
    }
""")


@dataclass(frozen=True, eq=False)
class SortStep(WebGpuKernel):
    """A step of a sort: runs in order, two runs as one, or the first elements of what is sorted.

    Attributes:
        args: the operand; positions before and after the step, or the results.
        x: the place of the operand among the arguments.
        before: that of positions in order of their runs; ``None``: nothing is sorted yet.
        to: that of positions after the step; or those of values and positions that are taken.
        rows: the rows.
        length: of a run before the step.
        largest: whether the greatest element is the best.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    x: int
    before: int | None
    to: tuple[int, ...]
    rows: Rows
    length: int
    largest: bool
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "sort"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"sort, {'greatest' if self.largest else 'least'} first")
        text.head(self.args)
        self.rows.describe(text)
        text.line(1, f"of b{self.x}, from {self.before} to {self.to}, runs of {self.length}")

    def variable_free(self) -> bool:
        return self.rows.fixed

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        code = KernelCode(self, (), target, bindings)
        dtype = self.args[self.x].dtype
        wide = is_wide(dtype)
        names = {
            name: code.declare("n", code.size(dim, code.outermost))
            for name, dim in self.rows._asdict().items()
        }
        names |= {
            "x": str(self.x),
            "before": str(self.before),
            "to": str(self.to[0]),
            "key": key_of(dtype, largest=self.largest),
            "better": above("other", "mine", wide),
            "equal": same("other", "mine", wide),
            "length": str(self.length),
            "chunk": str(CHUNK),
            "threads": str(THREADS),
        }
        if len(self.to) == 2:
            values, positions = map(code.arrays.putting, self.to)
            names |= {"put_values": values, "put_positions": positions}
            body = _TAKE.substitute(names)
        else:
            body = (_COUNT if self.before is None else _MERGE).substitute(names)
        code.writer.line(_START.substitute(names).strip())
        code.writer.line(body.strip())
        return code.shader(THREADS, ceil_div(self.rows.rows * self.rows.n, THREADS))


def lower_sort(lowering: ProgramBuilder, region: Region, root: Node, rows: Rows) -> None:
    """Lower a region around a ``topk`` node of long rows."""
    largest, variables = root.attrs["largest"], lowering.variables
    type_ = TensorType(INT32, (rows.rows, rows.n))
    before: LoweredBuffer | None = None
    length = CHUNK
    while True:
        after = LoweredBuffer(type_, Role.TEMP, f"{root.label}.runs_of_{length}")
        build = lowering.helper_builder()
        x = build.argument(whole(lowering, root.inputs[0]), reads=True)
        read = None if before is None else build.argument(before, reads=True)
        to = build.argument(after, writes=True)
        step = SortStep(build.args, x, read, (to,), rows, length // 2, largest, variables)
        lowering.helper_call(root, "sort", build, step)
        before = after
        if length >= bounds(rows.n)[1]:
            break
        length *= 2

    def make(places: Places) -> SortStep:
        (x,), (runs,) = places.operands, places.scratch
        return SortStep(places.args, x, runs, places.results, rows, length, largest, variables)

    lower_whole(lowering, region, root, make, [before])
