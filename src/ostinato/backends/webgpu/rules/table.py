"""The WebGPU device's rule table, and the way of a graph through it.

``dispatch -> lower -> finalise``: the table sends each region to a rule; the shared driver lowers;
then loop nests become the device's kernels. What WGSL has no types for, float64, is lowered by the
CPU's rules: the runtime runs kernels of other devices on the CPU.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import ExpertProgram, with_origins
from ostinato.backends.common.lazy_expert_rules import LazyExpertRules
from ostinato.backends.webgpu.rules.nest import WebGpuLoopNest
from ostinato.dtypes import FLOAT64
from ostinato.lazy import LazyModule
from ostinato.lower.control import CONTROL_OPS
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.lowering import LoweringOptions, live_nodes, lower
from ostinato.lower.program import Role
from ostinato.lower.rules.gpu_nest import with_scratch
from ostinato.lower.rules.table import SHARED_RULES, RuleTable
from ostinato.ops.base import Elementwise
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.expert_rules import ExpertRules
    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.cpu.rules import selection as cpu_selection
    from ostinato.backends.cpu.rules import topk as cpu_topk
    from ostinato.backends.webgpu.rules import (
        attention,
        expert_rules,
        matmul,
        recurrent,
        selection,
        topk,
    )
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.lower.fusion.regions import Refusal, Region
    from ostinato.lower.program import Call
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules import sums_of_products
    from ostinato.lower.rules.table import Rule
    from ostinato.variables import Symbol
else:
    cpu_selection = LazyModule("ostinato.backends.cpu.rules.selection")
    cpu_topk = LazyModule("ostinato.backends.cpu.rules.topk")
    attention = LazyModule("ostinato.backends.webgpu.rules.attention")
    expert_rules = LazyModule("ostinato.backends.webgpu.rules.expert_rules")
    matmul = LazyModule("ostinato.backends.webgpu.rules.matmul")
    recurrent = LazyModule("ostinato.backends.webgpu.rules.recurrent")
    selection = LazyModule("ostinato.backends.webgpu.rules.selection")
    topk = LazyModule("ostinato.backends.webgpu.rules.topk")
    sums_of_products = LazyModule("ostinato.lower.rules.sums_of_products")

__all__ = ["LOWERED_OPS", "WebGpuLowering", "lower_for_webgpu"]


@dataclass(frozen=True)
class WebGpuLowering:
    """The settings of a graph's lowering for the device.

    Attributes:
        shared: the optimisations that are not the device's alone.
        templates: multiply with tiles in workgroup memory; without, by plain loop nests.
        keep_ids: keep the ids of the experts that a run has called.
        experts: params whose experts do not all stay on the device; ``None``: there are none.
    """

    shared: LoweringOptions = field(default_factory=LoweringOptions)
    templates: bool = True
    keep_ids: bool = False
    experts: ExpertStore | None = None


def lower_for_webgpu(
    graph: BaseGraph,
    settings: WebGpuLowering,
    variables: Sequence[Symbol] | None = None,
    facts: Sequence[Fact] | None = None,
) -> tuple[ExpertProgram, list[Refusal]]:
    """The kernels of ``graph`` on the device, and the fusions that were refused.

    Args:
        graph: has only ops of the device.
        settings: the optimisations that are on.
        variables, facts: see :func:`~ostinato.lower.lowering.lower`.

    Raises:
        InputError: params in a file of experts are used for more than that, or do not fit a budget.
        UnsupportedOpError: nodes for which no kernel exists, every one listed.
    """
    layers = LazyExpertRules(
        partial(_expert_rules, graph, settings), at_once=settings.experts is not None
    )
    rules = {**_RULES, "expert_mlp": layers.expert_mlp, "grouped_matmul": layers.grouped_matmul}
    if settings.templates:
        rules |= _TEMPLATES
    table = RuleTable("the WebGPU device", rules, on_host=_needs_float64)
    program, refused = lower(graph, table, settings.shared, variables, facts)
    calls = [_finalised(call, Role.TEMP) for call in program.calls]
    prepare = [_finalised(call, Role.PREPARED) for call in program.prepare]
    called = with_origins(layers.called, replace(program, calls=calls))
    return ExpertProgram.of(program, calls, prepare, called, layers.resident), refused


def _needs_float64(node: Node) -> bool:
    """Whether a node reads, gives or computes with float64."""
    dtypes = [value.dtype for value in (*node.inputs, *node.outputs)]
    if isinstance(node.op, Elementwise):
        dtypes += node.op.operand_dtypes(*(v.dtype for v in node.inputs), **node.attrs)
    return FLOAT64 in dtypes


def _finalised(call: Call, scratch: Role) -> Call:
    """The call of a loop nest, with memory for temps that are too long for workgroup memory."""
    if not isinstance(call.kernel, LoopNest):
        return call
    return with_scratch(call, WebGpuLoopNest.of(call.kernel), scratch)


# -- the rules, whose modules are loaded by the first graph that needs them ------------------------


def _matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    matmul.lower_matmul(lowering, region, root)


def _convolution(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    matmul.lower_convolution(lowering, region, root)


def _attention(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    attention.lower_attention(lowering, region, root)


def _recurrent(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    recurrent.lower_recurrent(lowering, region, root)


def _topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    rule = cpu_topk if root.inputs[0].dtype == FLOAT64 else topk
    rule.lower_topk(lowering, region, root)


def _flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    selection.lower_flat_nonzero(lowering, region, root)


def _suppression(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    # Boxes overlap by fractions that are computed in float64.
    cpu_selection.lower_suppression(lowering, region, root)


def _blockwise_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    sums_of_products.lower_blockwise_matmul(lowering, region, root)


def _expert_rules(graph: BaseGraph, settings: WebGpuLowering) -> ExpertRules:
    nodes, store = live_nodes(graph), settings.experts
    return expert_rules.WebGpuExpertRules(graph, nodes, store, keep=settings.keep_ids)


#: The rules that every graph needs: there is no other way to compute these.
_RULES: dict[str, Rule] = {
    "attention": _attention,
    "recurrent_scan": _recurrent,
    "topk": _topk,
    "flat_nonzero": _flat_nonzero,
    "non_max_suppression": _suppression,
    "blockwise_matmul": _blockwise_matmul,
}

#: Those that only make graphs faster.
_TEMPLATES: dict[str, Rule] = {
    **dict.fromkeys(("matmul", "integer_matmul"), _matmul),
    **dict.fromkeys(("conv", "integer_conv"), _convolution),
}

#: Ops with rules of their own.
LOWERED_OPS = frozenset({*SHARED_RULES, *_RULES, "expert_mlp", "grouped_matmul", *CONTROL_OPS})
