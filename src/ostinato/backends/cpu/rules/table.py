"""The CPU's rule table, and the way of a graph through it.

``dispatch -> lower -> finalise``: the table sends each region to a template; the shared driver
lowers; then loop nests become the CPU's, and copies that need no code become built-in kernels.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.kernel import CpuKernel, CpuLoopNest, CpuSizeStep
from ostinato.backends.cpu.rules.matmul import MatmulRules
from ostinato.backends.cpu.rules.ordered import distinct_points_in_parallel
from ostinato.backends.cpu.rules.share_temps import share_temps
from ostinato.lazy import LazyModule
from ostinato.lower.control import CONTROL_OPS
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.lowering import LoweringOptions, live_nodes, lower
from ostinato.lower.memory.layouts import LayoutGains
from ostinato.lower.program import Call, Program
from ostinato.lower.rules.sizes import SizeStep
from ostinato.lower.rules.table import SHARED_RULES, RuleTable
from ostinato.records import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.expert_store import ExpertStore
    from ostinato.backends.cpu.rules import (
        attention,
        copy,
        depthwise,
        expert_rules,
        paged_attention,
        recurrent,
        selection,
        sequence_states,
        streaming,
        topk,
        winograd,
    )
    from ostinato.backends.cpu.rules.group_rows import Routing
    from ostinato.backends.cpu.rules.offload import StoredExperts
    from ostinato.backends.cpu.rules.packed_matmul import ChooseTiles
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.lower.fusion.regions import Refusal, Region
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.ops import convolution
    from ostinato.variables import Symbol
else:
    attention = LazyModule("ostinato.backends.cpu.rules.attention")
    copy = LazyModule("ostinato.backends.cpu.rules.copy")
    depthwise = LazyModule("ostinato.backends.cpu.rules.depthwise")
    expert_rules = LazyModule("ostinato.backends.cpu.rules.expert_rules")
    paged_attention = LazyModule("ostinato.backends.cpu.rules.paged_attention")
    recurrent = LazyModule("ostinato.backends.cpu.rules.recurrent")
    selection = LazyModule("ostinato.backends.cpu.rules.selection")
    sequence_states = LazyModule("ostinato.backends.cpu.rules.sequence_states")
    streaming = LazyModule("ostinato.backends.cpu.rules.streaming")
    topk = LazyModule("ostinato.backends.cpu.rules.topk")
    winograd = LazyModule("ostinato.backends.cpu.rules.winograd")
    convolution = LazyModule("ostinato.ops.convolution")

__all__ = ["LOWERED_OPS", "CpuLowering", "CpuProgram", "lower_for_cpu"]

_BLOCK_MATMULS = ("blockwise_matmul", "packed_block_matmul")
_MATMULS = ("matmul", "widening_matmul", "integer_matmul", *_BLOCK_MATMULS)
_CONVOLUTIONS = ("conv", "integer_conv")
_SELECTIONS = ("flat_nonzero", "non_max_suppression", "draw")
_ATTENTION = ("attention", "sink_attention")
_SEQUENCE_STATES = ("linear_attention", "causal_conv_with_state")
_OTHERS = ("paged_attention", "topk", "recurrent_scan", *_SEQUENCE_STATES)
_TEMPLATES = (*_MATMULS, *_CONVOLUTIONS, *_ATTENTION, *_OTHERS, *_SELECTIONS)
_EXPERT_OPS = ("grouped_matmul", "packed_grouped_block_matmul", "expert_mlp")

#: Ops with kernels of their own kind.
LOWERED_OPS = frozenset({*SHARED_RULES, *_TEMPLATES, *_EXPERT_OPS, *CONTROL_OPS})

#: Nanoseconds per element, about, that channels last saves what a convolution reads and writes.
_GEMM_GAINS, _WINOGRAD_GAINS, _DEPTHWISE_GAINS = (0.05, 0.2), (2.0, 2.0), (0.3, 0.0)

#: The same of a pooling; of values read or written across their order; of exchanged channels.
_WINDOW, _STRIDED, _SHUFFLED = 0.3, -1.0, -0.1

#: Fewer channels than this do not fill vectors.
_FEWEST_CHANNELS = 16


@dataclass(frozen=True)
class CpuLowering:
    """The settings of a graph's lowering for the CPU.

    Attributes:
        registers: the vector registers that matmuls are tiled for.
        shared: the optimisations that are not the CPU's alone.
        winograd: do convolutions Winograd's way where that is faster.
        builtin_copies: let the native core make copies that are made once.
        streaming_stores: store large results past the caches.
        shared_temps: let rows that a kernel keeps take the memory of earlier ones.
        choose_tiles: chooses the tile sizes of matmuls by measurement.
        experts: params that are in a file, from which experts are staged while a run goes on.
    """

    registers: RegisterFile
    shared: LoweringOptions = field(default_factory=LoweringOptions)
    winograd: bool = True
    builtin_copies: bool = True
    streaming_stores: bool = True
    shared_temps: bool = True
    choose_tiles: ChooseTiles | None = None
    experts: ExpertStore | None = None


@dataclass(eq=False)
class CpuProgram(Program):
    """A program of the CPU's kernels.

    Attributes:
        routings: the lists of rows by expert that each run leaves behind.
        stored_experts: the layers whose experts are in a file.
    """

    routings: list[Routing] = field(default_factory=list)
    stored_experts: list[StoredExperts] = field(default_factory=list)

    @property
    def kernels(self) -> list[CpuKernel]:
        """The kernels of all calls that compute, those that prepare first."""
        kernels = [call.kernel for call in (*self.prepare, *self.calls)]
        return [kernel for kernel in kernels if isinstance(kernel, CpuKernel)]


def lower_for_cpu(
    graph: BaseGraph,
    settings: CpuLowering,
    variables: Sequence[Symbol] | None = None,
    facts: Sequence[Fact] | None = None,
) -> tuple[CpuProgram, list[Refusal]]:
    """The kernels of ``graph`` on the CPU, and the fusions that were refused.

    Args:
        variables, facts: see :func:`~ostinato.lower.lowering.lower`.

    Raises:
        InputError: params in a file of experts are used for more than that, or do not fit a budget.
        UnsupportedOpError: nodes for which no kernel exists, every one listed.
    """
    rules = _CpuRules(graph, settings)
    program, refused = lower(graph, rules.table(), settings.shared, variables, facts)
    return rules.finalise(program), refused


class _CpuRules:
    """The rules for one graph, with what was decided about it."""

    def __init__(self, graph: BaseGraph, settings: CpuLowering) -> None:
        self.graph = graph
        self.settings = settings
        self._matmuls = MatmulRules(settings.registers, settings.choose_tiles)
        self._winograd: dict[Node, winograd.Winograd | None] = {}
        self._has_experts = False
        if settings.experts is not None:
            _ = self._experts  # refuses wrong uses of params before anything is lowered

    def table(self) -> RuleTable:
        """The table that the driver takes."""
        rules = {
            **dict.fromkeys(_MATMULS, self._matmuls.matmul),
            **dict.fromkeys(_CONVOLUTIONS, self._convolution),
            **dict.fromkeys(_ATTENTION, self._attention),
            "paged_attention": self._paged_attention,
            "topk": self._topk,
            "flat_nonzero": self._flat_nonzero,
            "non_max_suppression": self._suppression,
            "draw": self._draw,
            "recurrent_scan": self._recurrent,
            "linear_attention": self._linear_attention,
            "causal_conv_with_state": self._causal_convolution,
            "grouped_matmul": self._grouped_matmul,
            "packed_grouped_block_matmul": self._packed_grouped_matmul,
            "expert_mlp": self._expert_mlp,
        }
        gains = LayoutGains(self._convolution_gains, _WINDOW, _STRIDED, _SHUFFLED, _FEWEST_CHANNELS)
        return RuleTable("the CPU", rules, self._matmuls.horizontally, gains)

    def finalise(self, program: Program) -> CpuProgram:
        """The program with the CPU's own kernels."""
        prepare = [self._finalised(call) for call in program.prepare]
        if self.settings.builtin_copies:
            prepare = [copy.builtin_copy(call) for call in prepare]
        experts = self._experts if self._has_experts else None
        calls = [self._finalised(call) for call in program.calls]
        if self.settings.streaming_stores:
            calls = streaming.stream_results(calls, program, self.settings.registers.caches)
        routings = [] if experts is None else [*experts.routings.values()]
        return program.extended(
            CpuProgram,
            calls=calls,
            prepare=prepare,
            routings=[routing for routing in routings if not routing.nested],
            stored_experts=[] if experts is None else [*experts.stored_experts.values()],
        )

    def _finalised(self, call: Call) -> Call:
        """The call with a loop nest as the CPU runs it."""
        if isinstance(call.kernel, LoopNest):
            nest = distinct_points_in_parallel(call.kernel)
            if self.settings.shared_temps:
                nest = share_temps(nest)
            return replace(call, kernel=CpuLoopNest.of(nest))
        if isinstance(call.kernel, SizeStep):
            return replace(call, kernel=CpuSizeStep.of(call.kernel))
        return call

    # -- convolutions --------------------------------------------------------------------------

    def _convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        way = None if convolution.is_depthwise(root) else self._winograd_of(root)
        if way is not None:
            winograd.lower_winograd(lowering, region, way, self.settings.registers)
        elif convolution.is_depthwise(root):
            depthwise.lower_depthwise(lowering, region, root, self.settings.registers)
        else:
            self._matmuls.convolution(lowering, region, root)

    def _winograd_of(self, node: Node) -> winograd.Winograd | None:
        """The way of doing a convolution with fewer multiplications, where that is faster."""
        if node not in self._winograd:
            tile = None
            if self.settings.winograd:
                tile = winograd.winograd_tile(node, self.settings.registers.slow_memory)
            self._winograd[node] = winograd.Winograd(node, tile) if tile else None
        return self._winograd[node]

    def _convolution_gains(self, node: Node) -> tuple[float, float]:
        if convolution.is_depthwise(node):
            return _DEPTHWISE_GAINS
        return _GEMM_GAINS if self._winograd_of(node) is None else _WINOGRAD_GAINS

    # -- other templates -----------------------------------------------------------------------

    def _attention(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        attention.lower_attention(lowering, region, root, self.settings.registers)

    def _paged_attention(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        registers = self.settings.registers
        paged_attention.lower_paged_attention(lowering, region, root, registers)

    def _topk(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        topk.lower_topk(lowering, region, root)

    def _flat_nonzero(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        selection.lower_flat_nonzero(lowering, region, root)

    def _suppression(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        selection.lower_suppression(lowering, region, root)

    def _draw(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        selection.lower_draw(lowering, region, root)

    def _recurrent(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        recurrent.lower_recurrent(lowering, region, root, self.settings.registers)

    def _linear_attention(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        sequence_states.lower_linear_attention(lowering, region, root, self.settings.registers)

    def _causal_convolution(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        sequence_states.lower_causal_convolution(lowering, region, root, self.settings.registers)

    # -- experts -------------------------------------------------------------------------------

    @cached_property
    def _experts(self) -> expert_rules.ExpertRules:
        self._has_experts = True
        nodes = live_nodes(self.graph)
        settings = self.settings
        return expert_rules.ExpertRules(self.graph, nodes, settings.experts, settings.registers)

    def _grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        self._experts.grouped_matmul(lowering, region, root)

    def _packed_grouped_matmul(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        self._experts.packed_grouped_matmul(lowering, region, root)

    def _expert_mlp(self, lowering: ProgramBuilder, region: Region, root: Node) -> None:
        self._experts.expert_mlp(lowering, region, root)
