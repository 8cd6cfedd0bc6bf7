"""A program in the making: which values are in memory, and the calls that bring them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.builder import KernelBuilder
from ostinato.lower.loopir.views import MAX_TANGLES, VIEWS, is_tangled
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.lower.rules.updates import copy_nest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.grouping import GroupLayout, Routing
    from ostinato.lower.panels import PanelFormat
    from ostinato.lower.program import Kernel
    from ostinato.lower.rules.loops import Outputs
    from ostinato.lower.rules.matmul_spec import Product, RegisterFile
    from ostinato.lower.waves import StoredExperts
    from ostinato.variables import Dim, Symbol

__all__ = ["Emission"]


class Emission:
    """Calls in the order in which they run, and the buffers that they use.

    Args:
        nodes: all nodes, in order.
        variables: what kernels take the values of.

    Attributes:
        calls: so far.
        stored: the buffer of each value that is in memory.
        inlined: nodes that every kernel computes on the spot.
        routings: which rows go to which experts, by the experts' ids.
        stored_experts: the layers whose experts are in a file, by the table of their places.
        counted: nodes whose operations are those of calls that count themselves.
    """

    def __init__(self, nodes: Sequence[Node], variables: tuple[Symbol, ...]) -> None:
        self.variables = variables
        self.calls: list[Call] = []
        self.stored: dict[Value, LoweredBuffer] = {}
        self.inlined: set[Node] = set()
        self.routings: dict[tuple[Value, GroupLayout], Routing] = {}
        self.stored_experts: dict[LoweredBuffer, StoredExperts] = {}
        self.counted: set[Node] = set()
        self._position = {node: i for i, node in enumerate(nodes)}

    def _builder(
        self, region: Region, instead: Mapping[Value, LoweredBuffer] | None = None
    ) -> KernelBuilder:
        """Builds a kernel that computes the members of ``region``.

        Args:
            instead: where it finds values that are elsewhere for others.
        """
        stored = {**self.stored, **instead} if instead else self.stored
        return KernelBuilder(stored, _Members(set(region.members), self.inlined))

    def _helper_builder(self) -> KernelBuilder:
        """Builds a kernel that prepares something for a region's."""
        return KernelBuilder(self.stored, self.inlined)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, region: Region, build: KernelBuilder, kernel: Kernel, outputs: Outputs) -> None:
        self.stored.update(outputs)
        nodes = sorted({*region.members, *build.computed}, key=self._position.__getitem__)
        title = "+".join(dict.fromkeys(n.op.name for n in nodes))
        flops: Dim = 0
        for node in (n for n in nodes if n not in self.counted):
            flops = flops + node.op.flops([v.type for v in node.inputs], node.attrs)
        labels = tuple(dict.fromkeys(n.label for n in nodes))
        self.calls.append(Call(kernel, tuple(build.buffers), labels, title, flops))

    def _helper_call(
        self, node: Node, title: str, build: KernelBuilder, kernel: Kernel, flops: Dim = 0
    ) -> None:
        labels = tuple(dict.fromkeys(n.label for n in (node, *build.computed)))
        self.calls.append(Call(kernel, tuple(build.buffers), labels, title, flops))

    # -- copies --------------------------------------------------------------------------------

    def _pack(self, product: Product, panel: int, form: PanelFormat | None = None) -> LoweredBuffer:
        """Bring the right operand of ``product`` into panels."""
        packed = product.packed_buffer(panel, Role.TEMP, form)
        build = self._helper_builder()
        packing = product.packing(build, packed, panel, self.variables)
        self._helper_call(product.node, "pack", build, packing)
        return packed

    def _panels(self, product: Product, panel: int, registers: RegisterFile) -> list[LoweredBuffer]:
        """Bring what ``product`` reads into the form that its kernel wants; gives the panels."""
        for part in product.packings:
            if not part.reads_in_place(self._helper_builder()):
                self._copy(part.a)
        return [self._pack(part, panel, part.panel_format(registers)) for part in product.packings]

    def _untangle(self, value: Value) -> None:
        """Store views along the way to ``value`` where too many would be read through at once."""
        chain = []
        while value.node.op.name in VIEWS and value not in self.stored:
            chain.append(value)
            (value,) = value.node.inputs
        tangles = 0
        for view in reversed(chain):
            tangles += is_tangled(view.node)
            if tangles > MAX_TANGLES:
                self._copy(view)
                tangles = 0

    def _copy(self, value: Value) -> None:
        """Bring ``value``, a view of something, into memory of its own."""
        buffer = LoweredBuffer(value.type, Role.TEMP, f"{value.node.label}.copy", value)
        self._copy_into(value, buffer, self.stored)
        self.stored[value] = buffer

    def _copy_into(
        self, value: Value, buffer: LoweredBuffer, stored: Mapping[Value, LoweredBuffer]
    ) -> None:
        build = KernelBuilder(stored, self.inlined)
        kernel = copy_nest(build, value, buffer, self.variables)
        self._helper_call(value.node, "copy", build, kernel)


class _Members:
    """The nodes that a region's kernel computes: its own, and the inlined ones."""

    def __init__(self, own: set[Node], inlined: set[Node]) -> None:
        self._own, self._inlined = own, inlined

    def __contains__(self, node: object) -> bool:
        return node in self._own or node in self._inlined
