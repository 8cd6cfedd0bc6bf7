"""The CUDA device's rule table, and the way of a graph through it.

``dispatch -> lower -> finalise``: the table sends each region to a rule; the shared driver lowers;
then loop nests and size steps become the device's kernels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.common.called_experts import ExpertProgram, with_origins
from ostinato.backends.common.lazy_expert_rules import LazyExpertRules
from ostinato.backends.cuda.kernel import CudaLoopNest, CudaSizeStep
from ostinato.backends.cuda.rules.split_reductions import split_reduction
from ostinato.backends.cuda.rules.unread import without_unread
from ostinato.lazy import LazyModule
from ostinato.lower.control import CONTROL_OPS
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.lowering import LoweringOptions, live_nodes, lower
from ostinato.lower.memory.layouts import LayoutGains
from ostinato.lower.program import Role
from ostinato.lower.rules.gpu_nest import with_scratch
from ostinato.lower.rules.sizes import SizeStep
from ostinato.lower.rules.table import SHARED_RULES, RuleTable
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.backends.common.expert_rules import ExpertRules
    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.cuda.rules import (
        activated,
        attention,
        column_order,
        draw,
        early_operands,
        expert_rules,
        library,
        paged_attention,
        paired_products,
        recurrent,
        scaled_products,
        segments,
        selection,
        topk,
        weight_rules,
    )
    from ostinato.backends.cuda.rules.library import LibrarySettings
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.lower.fusion.regions import Refusal, Region
    from ostinato.lower.program import Call, LoweredBuffer, Program
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules import matmul_spec, sums_of_products
    from ostinato.lower.rules.table import Rule
    from ostinato.ops import convolution
    from ostinato.variables import Symbol
else:
    activated = LazyModule("ostinato.backends.cuda.rules.activated")
    attention = LazyModule("ostinato.backends.cuda.rules.attention")
    column_order = LazyModule("ostinato.backends.cuda.rules.column_order")
    draw = LazyModule("ostinato.backends.cuda.rules.draw")
    early_operands = LazyModule("ostinato.backends.cuda.rules.early_operands")
    expert_rules = LazyModule("ostinato.backends.cuda.rules.expert_rules")
    library = LazyModule("ostinato.backends.cuda.rules.library")
    paged_attention = LazyModule("ostinato.backends.cuda.rules.paged_attention")
    paired_products = LazyModule("ostinato.backends.cuda.rules.paired_products")
    recurrent = LazyModule("ostinato.backends.cuda.rules.recurrent")
    scaled_products = LazyModule("ostinato.backends.cuda.rules.scaled_products")
    segments = LazyModule("ostinato.backends.cuda.rules.segments")
    selection = LazyModule("ostinato.backends.cuda.rules.selection")
    matmul_spec = LazyModule("ostinato.lower.rules.matmul_spec")
    sums_of_products = LazyModule("ostinato.lower.rules.sums_of_products")
    topk = LazyModule("ostinato.backends.cuda.rules.topk")
    weight_rules = LazyModule("ostinato.backends.cuda.rules.weight_rules")
    convolution = LazyModule("ostinato.ops.convolution")

__all__ = ["LOWERED_OPS", "CudaLowering", "lower_for_cuda"]


@dataclass(frozen=True)
class CudaLowering:
    """The settings of a graph's lowering for a GPU.

    Attributes:
        shared: the optimisations that are not the device's alone.
        templates: multiply with tiles and vector loads; without, by plain loop nests.
        segments: run small kernels that follow one another as one.
        stream_weights: fetch the weights of a segment's products ahead of their use.
        exchange: pass values from part to part of a segment without barriers where there is a way.
        segment_experts: let segments have products by chosen matrices.
        one_block: let a single block run segments that are short enough.
        layers: loop over the code of a segment's parts that repeat.
        join: let a segment's short parts be one where they do not wait for each other.
        wide_rings: whether blocks of a segment have rings, whatever else they have in shared
            memory.
        split_reductions: reduce many elements to few results by two kernels.
        bulk_tiles: whether the device's own kernels copy the operands of large products in bulk:
            such products have their activations, and may be two at once.
        rounds: let attention of many rows to bfloat16 round these to bfloat16.
        library: the use of a library for large products; ``None``: none.
        experts: params whose experts do not all stay on the device.
        keep_ids: keep the ids of the experts that a run has called.
    """

    shared: LoweringOptions = field(default_factory=LoweringOptions)
    templates: bool = True
    segments: bool = False
    stream_weights: bool = True
    exchange: bool = True
    segment_experts: bool = False
    one_block: bool = True
    layers: bool = True
    join: bool = True
    wide_rings: bool = False
    split_reductions: bool = True
    bulk_tiles: bool = False
    rounds: bool = False
    library: LibrarySettings | None = None
    experts: ExpertStore | None = None
    keep_ids: bool = False


def lower_for_cuda(
    graph: BaseGraph,
    settings: CudaLowering,
    variables: Sequence[Symbol] | None = None,
    facts: Sequence[Fact] | None = None,
) -> tuple[ExpertProgram, list[Refusal]]:
    """The kernels of ``graph`` on a GPU, and the fusions that were refused.

    Args:
        graph: has only ops of the device.
        settings: the optimisations that are on.
        variables, facts: see :func:`~ostinato.lower.lowering.lower`.

    Raises:
        InputError: params in a file of experts are used for more than that, or do not fit a budget.
        UnsupportedOpError: nodes for which no kernel exists, every one listed.
    """
    columns = column_order.ColumnOrder() if settings.templates else None
    layers = LazyExpertRules(
        partial(_expert_rules, graph, settings, columns), at_once=settings.experts is not None
    )
    rules = {**_RULES, "expert_mlp": layers.expert_mlp, "grouped_matmul": layers.grouped_matmul}
    rules["paged_attention"] = partial(_paged_attention, rounds=settings.rounds)
    if columns is not None:
        rules |= weight_rules.weight_rules(columns, splits=settings.split_reductions)
    nodes = live_nodes(graph)
    epilogues: frozenset[Node] = frozenset()
    if settings.shared.fusion.epilogue and any(n.op.name == "paged_attention" for n in nodes):
        epilogues = paged_attention.narrowed_results(graph, nodes)
    gains = LayoutGains(_convolution_gains, _WINDOW, _STRIDED, _SHUFFLED, _FEWEST_CHANNELS)
    gained = gains if settings.templates else None
    table = RuleTable(_DEVICE, rules, layout_gains=gained, epilogues=epilogues)
    if settings.library is not None:
        table = _with_library(table, settings, graph, columns)
    program, refused = lower(graph, table, settings.shared, variables, facts)
    of_experts = {layer.ids for layer in layers.called}
    read = without_unread(program.calls, _needed(program) | of_experts)
    calls = [done for call in read for done in _finalised(call, settings, Role.TEMP)]
    prepare = [c for call in program.prepare for c in _finalised(call, settings, Role.PREPARED)]
    prepare = _by_params(prepare)
    called = with_origins(layers.called, replace(program, calls=calls))
    kept = _needed(program)
    if settings.bulk_tiles and settings.shared.fusion.products:
        calls = paired_products.with_pairs(calls, kept)
    if settings.segments:
        found = segments.SegmentSettings(
            settings.stream_weights,
            settings.exchange,
            settings.segment_experts,
            settings.one_block,
            settings.layers,
            settings.join,
            settings.wide_rings,
        )
        calls = segments.form_segments(calls, kept, found)
    if settings.templates:
        calls = early_operands.with_early_operands(calls)
    return ExpertProgram.of(program, calls, prepare, called, layers.resident), refused


def _by_params(prepare: Sequence[Call]) -> list[Call]:
    """Calls in the order of the params that they follow from, whatever the sizes of a model.

    So weights lie at the same places, and graphs of several sizes share them. Calls that use what
    one of them writes stay in their order.
    """
    written = {buffer for call in prepare for buffer in call.writes()}
    latest: dict[LoweredBuffer, str] = {}
    names: dict[Call, str] = {}
    for call in prepare:
        own = written.intersection(call.buffers)
        params = [buffer.name for buffer in call.reads() if buffer.role is Role.PARAM]
        names[call] = max([*params, *(latest.get(buffer, "") for buffer in own)], default="")
        latest |= dict.fromkeys(own, names[call])
    return sorted(prepare, key=names.__getitem__)


def _needed(program: Program) -> frozenset[LoweredBuffer]:
    """The buffers that are read after the program's calls."""
    leaves = (program.outputs, program.states, program.next_states, program.live_sizes)
    return program.kept.union(*(found.values() for found in leaves))


def _expert_rules(
    graph: BaseGraph, settings: CudaLowering, columns: column_order.ColumnOrder | None
) -> ExpertRules:
    nodes, store, keep = live_nodes(graph), settings.experts, settings.keep_ids
    pairs = settings.shared.fusion.products and not settings.segment_experts
    return expert_rules.CudaExpertRules(graph, nodes, store, columns, keep=keep, pairs=pairs)


def _convolution_gains(node: Node) -> tuple[float, float]:
    """The gains of what a convolution reads and writes."""
    return _DEPTHWISE_GAINS if convolution.is_depthwise(node) else _GAINS


def _with_library(
    table: RuleTable,
    settings: CudaLowering,
    graph: BaseGraph,
    columns: column_order.ColumnOrder | None,
) -> RuleTable:
    """The rule table with a library for the products that suit it."""
    used = settings.library
    assert used is not None
    otherwise = table.find("matmul")
    assert otherwise is not None
    fuses = settings.shared.fusion.epilogue
    spared: Collection[Node] = ()
    if fuses:
        spared = activated.best_activated(
            graph,
            live_nodes(graph),
            large=settings.bulk_tiles,
            pairs=settings.shared.fusion.products,
        )
    products = library.LibraryRules(used, otherwise, spared)
    rules = {**table.rules, **dict.fromkeys(library.MATMULS, products.matmul)}
    if used.float8 and columns is not None:
        scaled = scaled_products.ScaledRules(used, columns, table.rules["scaled_matmul"])
        rules["scaled_matmul"] = scaled.matmul
    return replace(
        table,
        rules=rules,
        multi_root=products.horizontally if used.joint and settings.shared.in_place else None,
        by_library=lambda node: products.takes(node) or scaled_products.suits_scaled(node, used),
        library_epilogue=library.adds_bias,
    )


def _finalised(call: Call, settings: CudaLowering, helper: Role) -> list[Call]:
    """The call with a kernel of the device, or two; memory that they need has the role given."""
    if isinstance(call.kernel, LoopNest):
        calls = split_reduction(call, helper) if settings.split_reductions else [call]
        return [_on_gpu(part, helper) for part in calls]
    if isinstance(call.kernel, SizeStep):
        return [replace(call, kernel=CudaSizeStep.of(call.kernel))]
    return [call]


def _on_gpu(call: Call, scratch: Role) -> Call:
    """The call of a loop nest, with memory for temps that are too long for shared memory."""
    assert isinstance(call.kernel, LoopNest)
    return with_scratch(call, CudaLoopNest.of(call.kernel), scratch)


# -- the rules, whose modules are loaded by the first graph that needs them ------------------------


def _attention(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    attention.lower_attention(lowering, region, root)


def _paged_attention(lowering: ProgramBuilder, region: Region, root: Node, *, rounds: bool) -> None:
    paged_attention.lower_paged_attention(lowering, region, root, rounds=rounds)


def _draw(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    draw.lower_draw(lowering, region, root)


def _topk(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    topk.lower_topk(lowering, region, root)


def _flat_nonzero(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    selection.lower_flat_nonzero(lowering, region, root)


def _suppression(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    selection.lower_suppression(lowering, region, root)


def _recurrent(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    recurrent.lower_recurrent(lowering, region, root)


def _widening_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    build, outputs = lowering.builder(region), lowering.region_outputs(region)
    nest = matmul_spec.matmul_spec(root).loop_nest(build, outputs, lowering.variables)
    lowering.call(region, build, nest, outputs)


def _blockwise_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    sums_of_products.lower_blockwise_matmul(lowering, region, root)


def _scaled_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    build, outputs = lowering.builder(region), lowering.region_outputs(region)
    nest = matmul_spec.scaled_spec(root).loop_nest(build, outputs, lowering.variables)
    lowering.call(region, build, nest, outputs)


_DEVICE = "the CUDA device"

#: Gains of channels last, in the time that a strided access of an element costs.
_GAINS, _DEPTHWISE_GAINS = (1.0, 0.5), (0.0, 0.0)

#: Those of a pooling; of values read or written across their order; of exchanged channels.
_WINDOW, _STRIDED, _SHUFFLED = 0.0, -0.5, -0.1

#: Chunks of an asynchronous copy are as many channels.
_FEWEST_CHANNELS = 8

#: The rules that every graph needs: there is no other way to compute these.
_RULES: dict[str, Rule] = {
    "attention": _attention,
    "draw": _draw,
    "topk": _topk,
    "flat_nonzero": _flat_nonzero,
    "non_max_suppression": _suppression,
    "recurrent_scan": _recurrent,
    "widening_matmul": _widening_matmul,
    "blockwise_matmul": _blockwise_matmul,
    "scaled_matmul": _scaled_matmul,
}

_OTHERS = ("expert_mlp", "grouped_matmul", "paged_attention")

#: Ops with rules of their own.
LOWERED_OPS = frozenset({*SHARED_RULES, *_RULES, *_OTHERS, *CONTROL_OPS})
