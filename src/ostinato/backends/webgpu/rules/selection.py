"""The kernel of ``flat_nonzero``: the positions of true elements, in order."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.lower.rules.whole_operands import lower_whole
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.whole_operands import Places
    from ostinato.variables import Dim, Symbol

__all__ = ["FlatNonzero", "lower_flat_nonzero"]

#: Threads of the workgroup, and elements that each of them looks at in one round.
_THREADS, _ELEMENTS = 256, 8

_NONZERO = Template("""\
    var found = 0i;
    for (var start = 0i; start < $length; start += ${round}) {
        let first = start + i32(thread) * $elements;
        let end = min(first + $elements, $length);
        var count = 0i;
        for (var i = first; i < end; i++) {
            if (b$mask(u32(i))) { count++; }
        }
        $counts[thread] = count;
        workgroupBarrier();
        for (var step = 1u; step < ${threads}u; step <<= 1u) {
            var before = 0i;
            if (thread >= step) { before = $counts[thread - step]; }
            workgroupBarrier();
            $counts[thread] += before;
            workgroupBarrier();
        }
        var place = found + $counts[thread] - count;
        for (var i = first; i < end && place < $size; i++) {
            if (b$mask(u32(i))) {
                put$found(u32(place), widened_i32(i));
                place++;
            }
        }
        found += $counts[${threads}u - 1u];
        workgroupBarrier();
    }
    for (var i = found + i32(thread); i < $size; i += $threads) {
        put$found(u32(i), vec2<u32>(0u, 0u));
    }
""")


@dataclass(frozen=True, eq=False)
class FlatNonzero(WebGpuKernel):
    """Writes the positions of the true elements of a vector, in order, then zeros.

    Attributes:
        args: the mask and the positions.
        mask, found: their places among the arguments.
        length: elements of the mask.
        size: positions that are wanted.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    mask: int
    found: int
    length: Dim
    size: Dim
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "flat_nonzero"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"positions of the true of b{self.mask} to b{self.found}")
        text.head(self.args)
        text.line(1, f"length {text.dim(self.length)}, size {text.dim(self.size)}")

    def variable_free(self) -> bool:
        return isinstance(self.length, int) and isinstance(self.size, int)

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        code = KernelCode(self, (), target, bindings)
        threads = min(_THREADS, target.threads)
        body = _NONZERO.substitute(
            length=code.declare("n", code.size(self.length, code.outermost)),
            size=code.declare("n", code.size(self.size, code.outermost)),
            threads=threads,
            elements=_ELEMENTS,
            round=threads * _ELEMENTS,
            mask=self.mask,
            found=self.found,
            counts=code.shared("i32", threads),
        )
        code.writer.line(body.strip())
        return code.shader(threads, 1)


def lower_flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``flat_nonzero`` node."""
    (length,), (size,) = root.inputs[0].shape, root.outputs[0].shape

    def make(places: Places) -> FlatNonzero:
        (mask,), (found,) = places.operands, places.results
        return FlatNonzero(places.args, mask, found, length, size, lowering.variables)

    lower_whole(lowering, region, root, make)
