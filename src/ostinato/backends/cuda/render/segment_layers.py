"""Layers of a segment, parts that repeat with other arguments, as a loop over their code.

A part that is run by its record costs a jump to its function and back, and loads of all that is in
the record. The code of a layer has its functions in place, and what is the same in all layers as
constants: the addresses of values in shared memory, above all. Arguments and packets are at the
same distance from those of one layer to those of the next, or in the record.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.repetition import Repetition, repetition
from ostinato.backends.cuda.render.segment_calls import call
from ostinato.backends.cuda.render.segment_records import ARGUMENTS, PLACE, working_blocks
from ostinato.backends.cuda.rules.joint_products import products_of
from ostinato.backends.cuda.rules.product import BlockwiseProduct
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ostinato.backends.cuda.render.segment_functions import SegmentFunction
    from ostinato.backends.cuda.render.segment_layout import SegmentLayout

__all__ = ["SegmentLayers"]


class SegmentLayers:
    """The layers of a segment, if it has some.

    Attributes:
        layout: of the segment.
        name: the symbol of its kernel.
        found: the parts that repeat.
    """

    def __init__(self, layout: SegmentLayout, name: str) -> None:
        self.layout = layout
        self.name = name
        self.found = None
        segment = layout.segment
        if segment.layers and not segment.alone and not layout.independent:
            found = repetition([self._kind(number) for number in range(len(layout.parts))])
            self.found = None if found is None else self._with_whole_groups(found)

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """By part, the first block that has work, and the number of those that do."""
        return working_blocks(self.layout)

    @cached_property
    def in_place(self) -> set[SegmentFunction]:
        """The functions whose code is that of the layers."""
        found = self.found
        return set() if found is None else set(self.layout.functions[found.begin : found.end])

    @cached_property
    def by_record(self) -> list[SegmentFunction]:
        """The functions of the parts in front of the layers and behind them."""
        found, functions = self.found, self.layout.functions
        if found is None:
            return self.layout.distinct
        return list(dict.fromkeys(functions[: found.begin] + functions[found.end :]))

    @cached_property
    def multiply_in_place(self) -> bool:
        """Whether the code of a layer has that of its products, too, instead of calls.

        So it is where weights are codes of 4 bits: decode steps take 0.96 of the time on an H100.
        For others that is 0.99 to 1.003, and the kernel takes a third longer to compile.
        """
        if self.found is None:
            return False
        parts = self.layout.parts
        products = (m for n in self.found.first for m, _ in products_of(parts[n].kernel))
        return any(isinstance(matmul, BlockwiseProduct) for matmul in products)

    def _kind(self, number: int) -> Hashable:
        """The properties of a part that are constants of the code of a layer."""
        layout, part = self.layout, self.layout.parts[number]
        offsets = []
        for position in self._positions(number):
            space = layout.segment.space(position)
            held = space is not None and space.kind is SpaceKind.BLOCK
            offsets.append(space.offset if space is not None and held else None)
        function, (_, working) = layout.functions[number], self.blocks[number]
        return function, self._waits(number), working, layout.pool_start(part), *offsets

    def _positions(self, number: int) -> list[int]:
        """The positions of the arguments of a part, and of the packets of those it receives."""
        packets = self.layout.packets[number]
        arguments = self.layout.parts[number].arguments
        return [*arguments, *(packets[argument] for argument in sorted(packets))]

    def _waits(self, number: int) -> bool:
        """Whether there is a barrier of the grid in front of a part."""
        parts = self.layout.parts
        return number > 0 and parts[number - 1].level != parts[number].level

    def _with_whole_groups(self, found: Repetition) -> Repetition | None:
        """The runs of these parts that begin and end where attention repeats no part."""
        functions = self.layout.functions
        inside: set[int] = set()  # the parts in front of which a group goes on
        for number in range(found.begin, found.end + 1):
            repeated = functions[number].repeated if number < len(functions) else 0
            inside.update(range(number - repeated + 1, number + 1))
        if any(map(self._waits, inside)):
            return None
        begin, end = found.begin, found.end
        while begin in inside:
            begin += 1
        while end in inside:
            end -= 1
        whole = Repetition(begin, end, found.length)
        return whole if end - begin >= 2 * found.length else None

    def _groups(self, found: Repetition) -> list[list[int]]:
        """The parts of the first layer: those together that attention repeats for each item."""
        groups: list[list[int]] = []
        for number in found.first:
            first = len(groups) - self.layout.functions[number].repeated
            groups[first:] = [[*(n for group in groups[first:] for n in group), number]]
        return groups

    def lines(self) -> list[str]:
        """Statements of the loop over the parts ``i``: all layers, if the first one is next."""
        found, streams = self.found, self.layout.streams
        if found is None:
            return []
        groups = self._groups(found)
        of_all = [g for g in groups if g[0] - found.begin < found.last_length]
        body = [line for group in of_all for line in self._group(found, group)]
        if rest := groups[len(of_all) :]:  # which the last layer does not have
            body += [f"if (layer == {found.count - 1}) break;"]
            body += [line for group in rest for line in self._group(found, group)]
        head = [
            f"const int first = {found.begin} + layer * {found.length};",
            f"const unsigned short* const record = records + first * {self.layout.width};",
        ]
        loop = [
            "unsigned block = blockIdx.x;",
            f"for (int layer = 0; layer < {found.count}; layer++) {{",
            *(f"    {line}" for line in [*head, *body]),
            f"    block = ost::counted_from({self._common_rotation(found)}, block);",
            "}",
        ]
        if streams:  # in registers: no function that is called has its address
            loop = ["auto ring = shared_ring;", *loop, "shared_ring = ring;"]
            loop = ["auto& shared_ring = ring;", "{", *(f"    {line}" for line in loop), "}"]
        last = found.end == len(self.layout.parts)
        return [
            f"        if (i == {found.begin}) {{",
            *(f"            {line}" for line in loop),
            "            break;" if last else f"            i = {found.end};",
            "        }",
        ]

    def _group(self, found: Repetition, group: Sequence[int]) -> list[str]:
        """Statements of parts that are on the same blocks, for the same items of attention."""
        layout, first = self.layout, group[0]
        part, last = layout.parts[first], layout.functions[group[-1]]
        _, working = self.blocks[first]
        whole = working >= layout.launch.grid
        own, together = self._own(found, first), f"ost::sharing({working})"
        if part.everywhere and part.shares_of is None:
            own, together = ("0" if whole else own), "1"
        lines = []
        if self._waits(first):
            lines += ["ost::arrive_and_wait(arrived, awaited);", "awaited += gridDim.x;"]
        lines.append("{")
        lines.append(f"    const ost::place all = {{{together}}}, own = {{{own}}};")
        if last.repeated:
            lines.append(
                f"    for (unsigned item = own.x; item < {last.shares[0]}; item += all.x) {{"
            )
        else:
            lines.append("    {" if whole else "    if (own.x < all.x) {")
        if last.shares and not last.repeated:
            lines.append("        const unsigned item = own.x;")
        for number in group:
            lines.append("        {")
            lines += [f"            {line}" for line in self._part(found, number)]
            lines.append("        }")
        lines.append("    }")
        if layout.stamped and self._waits(first) and not whole:
            lines.append(
                f"    if (own.x >= all.x) log.end_part(numbers[first + {first - found.begin}]);"
            )
        return [*lines, "}"]

    def _own(self, found: Repetition, number: int) -> str:
        """The block's place in a part: counted from its first block, or by its record."""
        (first, working), part = self.blocks[number], self.layout.parts[number]
        if self._rotation(found, number) != self._common_rotation(found):
            return f"record[{(number - found.begin) * self.layout.width + PLACE + 1}]"
        own = f"ost::counted_from({first}, block)"
        alone = part.everywhere and part.shares_of is None
        return f"{own} >= {working}" if alone else own

    def _rotation(self, found: Repetition, number: int) -> int | None:
        """The blocks from the first one of a part to that of the next layer, if all agree."""
        grid = self.layout.launch.grid
        firsts = [self.blocks[other][0] for other in found.like(number)]
        steps = {(after - before) % grid for before, after in pairwise(firsts)}
        return steps.pop() if len(steps) == 1 else None

    def _common_rotation(self, found: Repetition) -> int:
        """The blocks from the first one of most parts to that of the next layer."""
        rotations = (self._rotation(found, number) for number in found.first)
        counts = Counter(rotation for rotation in rotations if rotation is not None)
        return max(counts, key=lambda rotation: counts[rotation], default=0)

    def _part(self, found: Repetition, number: int) -> list[str]:
        """Statements of a part."""
        layout, function = self.layout, self.layout.functions[number]
        name = f"{self.name}_{function.number}"
        arrays = f"memory + {layout.pool_start(layout.parts[number])}"
        addresses = self._addresses(found, number)
        lines = call(layout, function, name, arrays, addresses)
        if not self._have_met(found, number):
            lines.insert(0, "OST_SYNC();")
        if layout.stamped:
            lines += ["OST_SYNC();", f"log.end_part(numbers[first + {number - found.begin}]);"]
        return lines

    def _have_met(self, found: Repetition, number: int) -> bool:
        """Whether a block's threads have met when it comes to a part: the one before it ends so."""
        layout, before = self.layout, number - 1
        if before < found.begin or layout.parts[number].shares_of is not None:
            return False
        if layout.brought(layout.functions[before]) is None:
            return False
        return all(
            self._working(other) <= self._working(previous)
            for other, previous in zip(found.like(number), found.like(before), strict=False)
        )

    def _working(self, number: int) -> set[int]:
        """The blocks that have work of a part."""
        first, count = self.blocks[number]
        grid = self.layout.launch.grid
        return {(first + i) % grid for i in range(count)}

    def _addresses(self, found: Repetition, number: int) -> list[str]:
        """Those of the arguments of a part, then of the packets of those that it receives.

        A part finds its own when it needs them: a layer has no registers to keep them in, and
        what goes to memory instead takes as long to read as what other blocks have written.
        """
        segment, copied, addresses = self.layout.segment, self.layout.copied, []
        brought = self.layout.functions[number].brought
        of_layers = zip(*map(self._positions, found.like(number)), strict=True)
        for place, positions in enumerate(of_layers):
            if place in brought:
                addresses.append("nullptr")
                continue
            spaces = [space for space in map(segment.space, positions) if space is not None]
            held = bool(spaces) and spaces[0].kind is SpaceKind.BLOCK
            apart = _step([space.offset for space in spaces])
            offset = spaces[0].offset if len(spaces) == len(positions) else 0
            if held:  # at the same place in all layers
                addresses.append(f"(memory + {self.layout.value_start + offset})")
            elif positions[0] in copied and len(set(positions)) == 1:
                addresses.append(f"(memory + {copied[positions[0]][0]})")
            elif len(spaces) == len(positions) and apart is not None:
                packets = f"(unsigned char*)b{segment.packets} + {offset}"
                addresses.append(f"({packets} + (long long)ost::opaque(layer) * {apart})")
            else:
                step = _step(positions)
                index = f"{positions[0]} + layer * {step}"
                if step is None:
                    at_record = (number - found.begin) * self.layout.width + ARGUMENTS + place
                    index = f"record[{at_record}]"
                address = f"at[ost::opaque({index})]"
                if not copied.keys() & positions:
                    address = f"ost::in_global_memory({address})"
                addresses.append(address)
        return addresses


def _step(numbers: Sequence[int]) -> int | None:
    """The difference of neighbours, where it is the same for all."""
    steps = {after - before for before, after in pairwise(numbers)}
    return steps.pop() if len(steps) == 1 else None
