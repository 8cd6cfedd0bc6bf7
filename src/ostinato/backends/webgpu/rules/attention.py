"""The rule of ``attention``: rows of queries against all keys, with an online softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.webgpu.kernel import WebGpuKernel
from ostinato.backends.webgpu.render import attention
from ostinato.lower.rules.attention_spec import attention_spec
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.backends.webgpu.kernel import Bindings, Shader
    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.kernel import Access
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.attention_spec import AttentionSpec
    from ostinato.variables import Symbol

__all__ = ["Attention", "lower_attention"]


@dataclass(frozen=True, eq=False)
class Attention(WebGpuKernel):
    """Rows of queries against all keys, some rows for each workgroup.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        spec: its algebra.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    spec: AttentionSpec
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "attention"

    def describe(self, text: KernelText) -> None:
        text.line(0, "attention, all keys")
        text.head(self.args)
        self.spec.describe_axes(text)
        self.spec.describe_elements(text)

    def accesses(self) -> Iterator[Access]:
        return self.spec.accesses()

    def shader(self, target: WebGpuTarget, bindings: Bindings) -> Shader:
        return attention.shader(self, self.spec, target, bindings)


def lower_attention(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around an ``attention`` node."""
    result = lowering.only_transpose(root.outputs[0])
    output = (result, lowering.placement.target(result))
    build = lowering.builder(region)
    spec = attention_spec(build, root, [output])
    kernel = Attention(build.args, spec, lowering.variables)
    lowering.call(region, build, kernel, [output])
