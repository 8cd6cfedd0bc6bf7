"""The rule table: the way in which each kind of region becomes kernels.

A region is lowered by the rule of its root's op; a region without a root is a loop nest of its own.
:data:`SHARED_RULES` needs nothing but loop nests, so every device has it. A device adds rules for
the ops that it has templates or library calls for, or overrides those of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ostinato.lower.rules.loops import column_nest, map_nest, row_nest
from ostinato.lower.rules.matmul_spec import MatmulSpec, conv_spec, matmul_spec
from ostinato.lower.rules.sizes import lower_bind_size
from ostinato.lower.rules.updates import (
    border_nest,
    concat_nest,
    copy_nest,
    dynamic_update_nest,
    scan_nest,
    scatter_nest,
)
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import Outputs
    from ostinato.lower.memory.layouts import LayoutGains
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["SHARED_RULES", "MultiRootRule", "Rule", "RuleTable", "lower_loops"]

#: Lowers a region around its root.
Rule: TypeAlias = "Callable[[ProgramBuilder, Region, Node], None]"

#: Lowers regions that share a kernel, or one region with several roots.
MultiRootRule: TypeAlias = "Callable[[ProgramBuilder, Sequence[Region]], None]"


@dataclass(frozen=True)
class RuleTable:
    """A device's rules for the regions of one graph.

    Attributes:
        device: its name in messages, such as ``"the CPU"``.
        rules: by the op of a region's root; the shared ones are found beneath them.
        multi_root: lowers horizontally fused matmuls; ``None``: the device does not fuse them.
        layout_gains: what storing images channels last saves; ``None``: nothing.
        by_library: whether a library computes a root. Where a device has a library, the matmuls
            that it computes are those that are horizontally fused.
        library_epilogue: whether the library takes the one reader of a root; ``None``: none.
        epilogues: readers that kernels compute with a root whose op takes no other ones.
        on_host: whether the host computes a node in place of the device. It shares no kernel with
            nodes of the device then, whose results have other bits there.
    """

    device: str
    rules: Mapping[str, Rule] = field(default_factory=dict)
    multi_root: MultiRootRule | None = None
    layout_gains: LayoutGains | None = None
    by_library: Callable[[Node], bool] | None = None
    library_epilogue: Callable[[Node, Node], bool] | None = None
    epilogues: Collection[Node] = ()
    on_host: Callable[[Node], bool] | None = None

    def find(self, op: str) -> Rule | None:
        """The rule for a root's op; ``None``: the device has no kernel for it."""
        return self.rules.get(op) or SHARED_RULES.get(op)


def lower_loops(lowering: ProgramBuilder, region: Region) -> None:
    """Lower a region without a root: elementwise nodes, with or without reductions along rows."""
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    first = region.members[0]
    if lowering.placement.subviews.is_subview(first, 0):
        nest = border_nest(build, first, outputs[0][1], lowering.variables)
    elif (reduction := _reduction_across(lowering, region, outputs)) is not None:
        nest = column_nest(build, reduction, outputs, lowering.variables)
    elif region.inner is not None:
        nest = row_nest(build, region, outputs, lowering.variables)
    else:
        nest = map_nest(build, outputs, lowering.variables)
    lowering.call(region, build, nest, outputs)


def _reduction_across(lowering: ProgramBuilder, region: Region, outputs: Outputs) -> Node | None:
    """The only reduction along rows of a region, if what it reads has other rows as neighbours.

    Images with their channels last do, where positions are summed: rows are computed side by side.
    """
    rows_only = all(value.node in region.row_members for value, _ in outputs)
    if region.inner is None or len(region.reductions) != 1 or not rows_only:
        return None
    layouts = [lowering.layout(value) for node in region.members for value in node.inputs]
    across = any(layout is not None and layout.order[-1] == 1 for layout in layouts)
    return region.reductions[0] if across else None


def _lower_column(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    nest = column_nest(build, root, outputs, lowering.variables)
    lowering.call(region, build, nest, outputs)


def _lower_concat(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    target = lowering.store(root)
    for position, operand in enumerate(root.inputs):
        in_place = lowering.placement.subviews.is_subview(root, position)
        if operand.type.size != 0 and not in_place:
            build = lowering.helper_builder()
            nest = concat_nest(build, root, position, target, lowering.variables)
            lowering.helper_call(root, "concat", build, nest)


def _lower_update(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    x = root.inputs[0]
    target = lowering.store(root)
    if lowering.placement.updated_state(root) is None:
        build = lowering.helper_builder()
        nest = copy_nest(build, x, target, lowering.variables)
        lowering.helper_call(root, "copy", build, nest)
    build = lowering.helper_builder()
    update = dynamic_update_nest if root.op.name == "dynamic_update_slice" else scatter_nest
    nest = update(build, root, target, lowering.variables)
    lowering.helper_call(root, root.op.name, build, nest)


def _lower_scan(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    build = lowering.helper_builder()
    target = lowering.store(root)
    nest = scan_nest(build, root, target, lowering.variables)
    lowering.helper_call(root, root.op.name, build, nest)


def _lower_matmul(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    _lower_spec(lowering, region, matmul_spec(root))


def _lower_convolution(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    _lower_spec(lowering, region, conv_spec(root, lowering.layout(root.inputs[0])))


def _lower_spec(lowering: ProgramBuilder, region: Region, spec: MatmulSpec) -> None:
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    lowering.call(region, build, spec.loop_nest(build, outputs, lowering.variables), outputs)


_COLUMNS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "max_pool", "avg_pool")

_SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")

#: The rules that every device has, by the op of a region's root.
SHARED_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_COLUMNS, _lower_column),
    **dict.fromkeys(("dynamic_update_slice", "scatter", "scatter_nd"), _lower_update),
    **dict.fromkeys(_SCANS, _lower_scan),
    **dict.fromkeys(("matmul", "integer_matmul"), _lower_matmul),
    **dict.fromkeys(("conv", "integer_conv"), _lower_convolution),
    "concat": _lower_concat,
    "bind_size": lower_bind_size,
}
