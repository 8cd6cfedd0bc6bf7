"""``Graph -> Program``: every region becomes kernels over buffers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ostinato.errors import UnsupportedOpError
from ostinato.lazy import LazyModule
from ostinato.lower.copying import copying
from ostinato.lower.emission import Emission
from ostinato.lower.fusion.horizontal import side_by_side
from ostinato.lower.fusion.inline import inline_regions
from ostinato.lower.fusion.reads import is_transparent
from ostinato.lower.fusion.regions import (
    REDUCTIONS,
    FusionOptions,
    Refusal,
    Region,
    form_regions,
    values_between,
)
from ostinato.lower.joint import joint_product, stripe_of
from ostinato.lower.loopir.builder import KernelBuilder
from ostinato.lower.memory.in_place import UPDATES, reads_state, update_chain
from ostinato.lower.memory.layouts import Images, channels_last_buffer, choose_images
from ostinato.lower.memory.subviews import Parts, border_nest, find_parts
from ostinato.lower.prepack import split_prepared
from ostinato.lower.program import LoweredBuffer, Program, Role
from ostinato.lower.rules.loops import Outputs, column_nest, map_nest, row_nest
from ostinato.lower.rules.matmul_spec import (
    Product,
    RegisterFile,
    conv_product,
    cut_of,
    matmul_product,
)
from ostinato.lower.rules.updates import (
    concat_nest,
    copy_nest,
    dynamic_update_nest,
    scan_nest,
    scatter_nest,
)
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.lower import (
        attention,
        depthwise,
        expert_lowering,
        integer_products,
        recurrent,
        topk,
    )
    from ostinato.lower.fusion.horizontal import Together
    from ostinato.lower.program import Layout
    from ostinato.lower.rules.matmul_spec import Tiling
    from ostinato.lower.waves import ExpertStore
    from ostinato.lower.winograd import Winograd
    from ostinato.ops import convolution
    from ostinato.variables import Symbol
else:
    attention = LazyModule("ostinato.lower.attention")
    depthwise = LazyModule("ostinato.lower.depthwise")
    expert_lowering = LazyModule("ostinato.lower.expert_lowering")
    integer_products = LazyModule("ostinato.lower.integer_products")
    recurrent = LazyModule("ostinato.lower.recurrent")
    topk = LazyModule("ostinato.lower.topk")
    convolution = LazyModule("ostinato.ops.convolution")

__all__ = ["LOWERED_OPS", "Lowering", "LoweringOptions", "lower"]

#: Lowers a region around a node that needs a kernel of its own kind.
Rule: TypeAlias = "Callable[[Any, Region, Node], None]"

_EXPERT_OPS = frozenset({"grouped_matmul", "expert_mlp"})


@dataclass(frozen=True)
class LoweringOptions:
    """What lowering needs to know of the device, and what it may do.

    Attributes:
        registers: the vector registers that contractions are tiled for.
        fusion: which fusions are on.
        channels_last: store images with their channels last where that is faster.
        winograd: do convolutions Winograd's way where that is faster.
        in_place: write what concatenations and paddings are made of where it stands in them.
        ready_copies: have the device's runtime make copies that are made once.
        tiling: how to cut a product, where somebody knows better than the rule of thumb.
        experts: params that are in a file, from which experts are fetched while a run goes on.
    """

    registers: RegisterFile
    fusion: FusionOptions = field(default_factory=FusionOptions)
    channels_last: bool = True
    winograd: bool = True
    in_place: bool = True
    ready_copies: bool = True
    tiling: Tiling | None = None
    experts: ExpertStore | None = None


def lower(
    graph: BaseGraph, options: LoweringOptions, variables: Sequence[Symbol] | None = None
) -> tuple[Program, list[Refusal]]:
    """Kernels and buffers for ``graph``, and the fusions that were refused.

    Kernels take the values of ``variables``, by default of all that the graph mentions.

    Raises:
        UnsupportedOpError: nodes for which no kernel exists, every one listed.
    """
    mentioned = graph.variables.values() if variables is None else variables
    experts = options.experts is not None or any(n.op.name in _EXPERT_OPS for n in graph.nodes)
    make = expert_lowering.ExpertLowering if experts else Lowering
    lowering = make(graph, options, tuple(mentioned))
    return lowering.program(), lowering.refused


class Lowering(Emission):
    """The lowering of one graph; see :func:`lower`."""

    def __init__(
        self, graph: BaseGraph, options: LoweringOptions, variables: tuple[Symbol, ...]
    ) -> None:
        self.nodes = _live(graph)
        super().__init__(self.nodes, variables)
        self.graph = graph
        self.options = options
        self.refused: list[Refusal] = []
        self.outputs: dict[str, LoweredBuffer] = {}
        self._claimed: dict[Value, tuple[str, Value]] = {}
        self._needed: set[Value] = set()
        self._in_place: dict[Node, LoweredBuffer] = {}
        self._images = Images()
        self._parts = Parts(self._images)

    def program(self) -> Program:
        self._store_leaves()
        results = self.graph.results()
        regions, self.refused = form_regions(self.nodes, results, self.options.fusion)
        if self.options.fusion.elementwise:
            most = self.options.fusion.max_members
            self.inlined = inline_regions(regions, self.nodes, results, most)
        self._check_supported(regions)
        self._needed = values_between(regions, self.nodes, results)
        self._claim_outputs()
        self._find_in_place_updates()
        self._images = choose_images(self.nodes, regions, results, self.options)
        self._parts = Parts(self._images)
        if self.options.in_place:
            free = self._needed - self._claimed.keys() - {n.outputs[0] for n in self._in_place}
            self._parts = find_parts(self.nodes, regions, free, self.inlined, self._images)
        alone = [[region] for region in regions]
        for together in side_by_side(regions) if self.options.fusion.products else alone:
            if together[0].members[0] not in self.inlined:
                self._lower_together(together)
        self._finish_outputs()
        next_states = self._finish_states()
        told = [routing.groups for routing in self.routings.values()]
        prepare, calls = split_prepared(self.calls, self.variables, told)
        by_role = {
            role: {b.name: b for b in self.stored.values() if b.role is role}
            for role in (Role.INPUT, Role.PARAM, Role.STATE)
        }
        return Program(
            calls,
            [copying(call) for call in prepare] if self.options.ready_copies else prepare,
            by_role[Role.INPUT],
            by_role[Role.PARAM],
            by_role[Role.STATE],
            {name: self.outputs[name] for name in self.graph.outputs},
            next_states,
            self.variables,
            list(self.routings.values()),
            list(self.stored_experts.values()),
        )

    # -- what is in memory ---------------------------------------------------------------------

    def _store_leaves(self) -> None:
        graph = self.graph
        for role, leaves in (
            (Role.INPUT, graph.inputs),
            (Role.PARAM, graph.params),
            (Role.STATE, graph.states),
        ):
            for name, value in leaves.items():
                self.stored[value] = LoweredBuffer(value.type, role, name, value)
        for node in self.nodes:
            if node.op.name == "constant" and node.attrs["array"].size != 1:
                (value,) = node.outputs
                data = node.attrs["array"]
                self.stored[value] = LoweredBuffer(
                    value.type, Role.CONSTANT, node.label, value, data
                )

    def _claim_outputs(self) -> None:
        """Let computed values be written straight into the output that they become.

        A reshape in between does not matter: the elements are in the same order.
        """
        for name, output in self.graph.outputs.items():
            value = output
            while value.node.op.name == "reshape":
                (value,) = value.node.inputs
            if not is_transparent(value.node) and value not in self._claimed:
                self._claimed[value] = (name, output)

    def _find_in_place_updates(self) -> None:
        """Updates of a state that nothing else reads are made in the state's own memory."""
        readers = Counter(value for node in self.nodes for value in node.inputs)
        readers.update(self.graph.outputs.values())
        readers.update(self.graph.assignments.values())
        for name, value in self.graph.assignments.items():
            state = self.graph.states[name]
            chain = update_chain(value, state)
            links = [node.inputs[0] for node in chain]
            if all(readers[link] == 1 for link in links) and value not in self._claimed:
                self._in_place.update(dict.fromkeys(chain, self.stored[state]))

    def _target(self, value: Value) -> LoweredBuffer:
        """The buffer that ``value`` is to be written to."""
        if value.node in self._in_place:
            return self._in_place[value.node]
        if value not in self._claimed:
            return self._parts.buffer(value)
        name, output = self._claimed[value]
        self.outputs[name] = LoweredBuffer(output.type, Role.OUTPUT, name, value)
        return self.outputs[name]

    def _store(self, node: Node) -> LoweredBuffer:
        """The buffer of a node's only result, which is in memory from here on."""
        (value,) = node.outputs
        self.stored[value] = buffer = self._target(value)
        return buffer

    # -- regions -------------------------------------------------------------------------------

    def _check_supported(self, regions: Iterable[Region]) -> None:
        missing = [
            node
            for region in regions
            if (node := region.anchor) is not None
            and node.op.name not in self.rules
            and not _is_column_reduction(node)
        ]
        if missing:
            listed = "\n".join(f"  {node} {node.source}".rstrip() for node in missing)
            raise UnsupportedOpError(f"the CPU has no kernel for these nodes:\n{listed}")

    def _lower_together(self, regions: Together) -> None:
        members = (node for region in regions for node in region.members)
        for value in dict.fromkeys(v for node in members for v in node.inputs):
            self._untangle(value)
        anchors = [(region, region.anchors) for region in regions]
        if sum(len(some) for _, some in anchors) <= 1:
            self._lower_region(regions[0])
        else:
            self._lower_products(
                [(region, [_product(a) for a in some]) for region, some in anchors]
            )

    def _lower_region(self, region: Region) -> None:
        anchor = region.anchor
        if anchor is None:
            build = self._builder(region)
            outputs = self._region_outputs(region)
            first = region.members[0]
            if self._parts.is_placed(first, 0):
                nest = border_nest(build, first, outputs[0][1], self.variables)
                self._call(region, build, nest, outputs)
            elif region.inner is not None:
                self._call(region, build, row_nest(build, region, outputs, self.variables), outputs)
            else:
                self._call(region, build, map_nest(build, outputs, self.variables), outputs)
            return
        rule = self.rules.get(anchor.op.name, Lowering._lower_column)
        rule(self, region, anchor)

    def _region_outputs(self, region: Region) -> Outputs:
        """The values that the region stores, with their buffers."""
        values = [v for n in region.members for v in n.outputs if v in self._needed]
        return [(value, self._target(value)) for value in values]

    # -- anchors -------------------------------------------------------------------------------

    def _lower_column(self, region: Region, anchor: Node) -> None:
        build = self._builder(region)
        outputs = self._region_outputs(region)
        self._call(region, build, column_nest(build, anchor, outputs, self.variables), outputs)

    def _lower_conv(self, region: Region, anchor: Node) -> None:
        if convolution.is_depthwise(anchor):
            self._lower_depthwise(region, anchor)
        elif anchor in self._images.winograd:
            self._lower_winograd(region, self._images.winograd[anchor])
        else:
            self._lower_product(region, conv_product(anchor, self._layout(anchor.inputs[0])))

    def _lower_depthwise(self, region: Region, anchor: Node) -> None:
        build, w = self._builder(region), anchor.inputs[1]
        if anchor.outputs[0] in self._images.channels_last:
            packed = depthwise.filters_last_buffer(w)
            self._copy_into(w, packed, self.stored)
            build = self._builder(region, {w: packed})
        outputs = self._region_outputs(region)
        nest = depthwise.depthwise_nest(build, anchor, outputs, self.variables)
        self._call(region, build, nest, outputs)

    def _lower_winograd(self, region: Region, winograd: Winograd) -> None:
        stored, node = self.stored, winograd.node
        self.counted.add(node)
        x = node.inputs[0]
        if self._layout(x) is None:
            stored = {**stored, x: channels_last_buffer(x)}
            self._copy_into(x, stored[x], self.stored)
        sums = winograd.sums_buffer()
        steps = winograd.steps(stored, self.inlined, sums, self.options.registers, self.variables)
        for title, build, kernel, flops in steps:
            self._helper_call(node, title, build, kernel, flops)
        build = self._builder(region)
        outputs = self._region_outputs(region)
        self._call(region, build, winograd.results(build, sums, outputs, self.variables), outputs)

    def _layout(self, value: Value) -> Layout | None:
        return self.stored[value].layout if value in self.stored else None

    def _lower_matmul(self, region: Region, anchor: Node) -> None:
        product = _product(anchor)
        if product.n == 1 and anchor.op.name == "matmul":
            build = self._builder(region)
            outputs = self._region_outputs(region)
            self._call(region, build, product.dots(build, outputs, self.variables), outputs)
        else:
            self._lower_product(region, product)

    def _lower_product(self, region: Region, product: Product) -> None:
        self._lower_products([(region, [product])])

    def _lower_products(self, stripes: Sequence[tuple[Region, Sequence[Product]]]) -> None:
        """One kernel for products of the same rows; those of one region share its epilogue."""
        products = [product for _, some in stripes for product in some]
        registers = self.options.registers
        cut = cut_of(products, registers, self.options.tiling)
        panels = {p: self._panels(p, cut.tile[1], registers) for p in products}
        whole = Region([node for region, _ in stripes for node in region.members], 0)
        build = self._builder(whole)
        outputs = [self._region_outputs(region) for region, _ in stripes]
        made = [
            stripe_of(build, some, panels, cut, results, self.variables, registers)
            for (_, some), results in zip(stripes, outputs, strict=True)
        ]
        alone = len(products) == 1
        kernel = made[0][0] if alone else joint_product(made, build.args, self.variables)
        self._call(whole, build, kernel, [pair for results in outputs for pair in results])

    def _lower_concat(self, region: Region, anchor: Node) -> None:
        target = self._store(anchor)
        for position, operand in enumerate(anchor.inputs):
            if operand.type.size != 0 and not self._parts.is_placed(anchor, position):
                build = KernelBuilder(self.stored, self.inlined)
                kernel = concat_nest(build, anchor, position, target, self.variables)
                self._helper_call(anchor, "concat", build, kernel)

    def _lower_update(self, region: Region, anchor: Node) -> None:
        x = anchor.inputs[0]
        target = self._store(anchor)
        if anchor not in self._in_place:
            build = KernelBuilder(self.stored, self.inlined)
            kernel = copy_nest(build, x, target, self.variables)
            self._helper_call(anchor, "copy", build, kernel)
        build = KernelBuilder(self.stored, self.inlined)
        nest = dynamic_update_nest if anchor.op.name == "dynamic_update_slice" else scatter_nest
        kernel = nest(build, anchor, target, self.variables)
        self._helper_call(anchor, anchor.op.name, build, kernel)

    def _lower_scan(self, region: Region, anchor: Node) -> None:
        build = KernelBuilder(self.stored, self.inlined)
        target = self._store(anchor)
        kernel = scan_nest(build, anchor, target, self.variables)
        self._helper_call(anchor, anchor.op.name, build, kernel)

    def _lower_topk(self, region: Region, anchor: Node) -> None:
        build = self._builder(region)
        outputs = self._region_outputs(region)
        kernel = topk.topk_kernel(build, anchor, outputs, self.variables)
        self._call(region, build, kernel, outputs)

    def _lower_recurrent(self, region: Region, anchor: Node) -> None:
        tile = recurrent.recurrent_tile(anchor, self.options.registers)
        packed = self._pack(recurrent.recurrent_product(anchor), tile[1])
        build = self._builder(region)
        outputs = self._region_outputs(region)
        kernel = recurrent.recurrent_kernel(build, anchor, packed, tile, outputs, self.variables)
        self._call(region, build, kernel, outputs)

    def _lower_attention(self, region: Region, anchor: Node) -> None:
        if not attention.Queries(self._builder(region), anchor).in_place:
            self._copy(anchor.inputs[0])
        tiles = attention.attention_tiles(anchor, self.options.registers)
        build = self._builder(region)
        result = self._only_view(anchor.outputs[0])
        outputs = [(result, self._target(result))]
        kernel = attention.attention_kernel(build, anchor, tiles, outputs, self.variables)
        self._call(region, build, kernel, outputs)

    def _only_view(self, value: Value) -> Value:
        """The transpose of ``value`` that is all that anything reads of it, else ``value``.

        Stored in its place, it is in the order in which the next kernel goes over it.
        """
        readers = {node for node in self.nodes if value in node.inputs}
        if len(readers) == 1 and value not in self.graph.results():
            (reader,) = readers
            if reader.op.name == "permute_dims":
                return reader.outputs[0]
        return value

    # -- results -------------------------------------------------------------------------------

    def _finish_outputs(self) -> None:
        """Outputs that no kernel writes directly: leaves, views, and values listed twice."""
        for name, value in self.graph.outputs.items():
            if name not in self.outputs:
                self._untangle(value)
                buffer = LoweredBuffer(value.type, Role.OUTPUT, name, value)
                self.outputs[name] = buffer
                self._copy_into(value, buffer, self.stored)

    def _finish_states(self) -> dict[str, LoweredBuffer]:
        """Copy each new value over its state, after everything that reads the old one."""
        buffers = {name: self.stored[state] for name, state in self.graph.states.items()}
        moved: list[tuple[Value, Mapping[Value, LoweredBuffer], LoweredBuffer]] = []
        for name, value in self.graph.assignments.items():
            done = self._in_place.get(value.node) is buffers[name]
            if done or value is self.graph.states[name]:
                continue
            if reads_state(value):  # which may hold its own new value when its turn comes
                aside = LoweredBuffer(value.type, Role.TEMP, f"{name}.new", value)
                self._copy_into(value, aside, self.stored)
                moved.append((value, {value: aside}, buffers[name]))
            else:
                moved.append((value, self.stored, buffers[name]))
        for value, stored, buffer in moved:
            self._copy_into(value, buffer, stored)
        return {name: buffers[name] for name in self.graph.assignments}

    # -- rules ---------------------------------------------------------------------------------

    #: What lowers a region, by the op of its anchor.
    rules: ClassVar[Mapping[str, Rule]] = {
        **dict.fromkeys(("matmul", "integer_matmul", "blockwise_matmul"), _lower_matmul),
        "conv": _lower_conv,
        "max_pool": _lower_column,
        "avg_pool": _lower_column,
        "concat": _lower_concat,
        "cumsum": _lower_scan,
        "cumprod": _lower_scan,
        "attention": _lower_attention,
        "topk": _lower_topk,
        "recurrent_scan": _lower_recurrent,
        **dict.fromkeys(UPDATES, _lower_update),
    }


#: Ops with kernels of their own kind.
LOWERED_OPS = frozenset(Lowering.rules) | _EXPERT_OPS


def _product(node: Node) -> Product:
    match node.op.name:
        case "integer_matmul":
            return integer_products.integer_product(node)
        case "blockwise_matmul":
            return integer_products.blockwise_product(node)
    return matmul_product(node)


def _is_column_reduction(node: Node) -> bool:
    return node.op.name in REDUCTIONS


def _live(graph: BaseGraph) -> list[Node]:
    """The nodes that the results depend on, in order."""
    needed: set[Node] = set()
    stack = [value.node for value in graph.results()]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(value.node for value in node.inputs)
    return [node for node in graph.nodes if node in needed]
