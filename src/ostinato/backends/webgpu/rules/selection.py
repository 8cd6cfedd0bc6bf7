"""The kernel of ``flat_nonzero``: the positions of true elements, in order."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render.code import KernelCode
from ostinato.lower.rules import flat_nonzero
from ostinato.lower.rules.flat_nonzero import FlatNonzero
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["WebGpuFlatNonzero", "lower_flat_nonzero"]

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


class WebGpuFlatNonzero(FlatNonzero, WebGpuKernel):
    """The positions of true elements, found by one workgroup in rounds."""

    prefix: ClassVar[str] = "flat_nonzero"

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
        rounds = ceil_div(self.length, threads * _ELEMENTS)
        each = 2 * _ELEMENTS + threads.bit_length()
        code.count_iterations(rounds * (each + 1) + ceil_div(self.size, threads))
        code.writer.line(body.strip())
        return code.shader(threads, 1)


def lower_flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a ``flat_nonzero`` node."""
    flat_nonzero.lower_flat_nonzero(lowering, region, root, WebGpuFlatNonzero)
