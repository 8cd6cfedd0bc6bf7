"""Winograd's convolution: 3x3 windows by fewer multiplications.

``F(m, 3)`` computes a tile of ``m`` x ``m`` results from ``m + 2`` x ``m + 2`` elements of ``x``.
Both the elements and the weights are transformed, multiplied point by point, and the sums over
channels, of which there is one per point, transformed back: ``(m + 2)^2 / m^2`` multiplications for
a result instead of 9, so 2.25 for ``m = 4`` and 4 for ``m = 2``. The multiplications are
``(m + 2)^2`` matmuls, of tiles by filters, over panels that are made once per write of the
weights. Every step is exact in real numbers; ``docs/convolutions.md`` says how it rounds.
"""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.dtypes import FLOAT32, FLOAT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import KernelBuilder, Outputs, cast, store_at, symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Guard,
    Load,
    Number,
    Scalar,
    Stage,
    Store,
)
from ostinato.lower.loopir.views import VIEWS, Indices, linear_index
from ostinato.lower.memory.layouts import channels_last_buffer
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK, block_nest
from ostinato.lower.rules.winograd_transforms import (
    POINTS,
    TAPS,
    by_columns,
    by_rows,
    dense,
    transformed,
    transforms,
)
from ostinato.records import dataclass, replace
from ostinato.variables import Dim, Symbol, axis, bounds, ceil_div, minimum, prod

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["Winograd", "lower_winograd", "winograd_tile"]

_APART = 16
"""Elements between the matrices of two points: else they might all fall on one set of a cache."""


# -- kernels ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A kernel on the way to the sums, and what the report says of it."""

    title: str
    build: KernelBuilder
    kernel: Kernel
    flops: Dim = 0


@dataclass(frozen=True, eq=False)
class Winograd:
    """The kernels of a convolution whose padding is a node before it.

    Attributes:
        node: the ``conv`` node.
        outputs: results of a tile along each axis, ``m``.
    """

    node: Node
    outputs: int

    @property
    def size(self) -> int:
        """Elements of ``x``, and points, along each axis of a tile."""
        return self.outputs + TAPS - 1

    @property
    def points(self) -> int:
        return self.size**2

    @property
    def grid(self) -> tuple[Dim, Dim, Dim]:
        """Images, and rows and columns of tiles."""
        images, _, *spatial = self.node.outputs[0].shape
        down, across = (ceil_div(extent, self.outputs) for extent in spatial)
        return images, down, across

    @property
    def tiles(self) -> Dim:
        return prod(self.grid)

    @property
    def channels(self) -> int:
        (channels,) = self.node.inputs[1].shape[1:2]
        assert isinstance(channels, int)
        return channels

    @property
    def filters(self) -> Dim:
        return self.node.inputs[1].shape[0]

    # -- memory -------------------------------------------------------------------------------

    def packed_buffer(self, panel: int) -> LoweredBuffer:
        """Memory for the transformed weights, in panels."""
        shape = (self.points, ceil_div(self.filters, panel), self.channels, panel)
        return self._buffer(shape, "packed")

    def elements_buffer(self) -> LoweredBuffer:
        """Memory for the transformed tiles: for each point a matrix, tiles by channels."""
        return self._buffer((self.points, self.tiles * self.channels + _APART), "tiles")

    def sums_buffer(self) -> LoweredBuffer:
        """Memory for the sums: for each point a matrix, tiles by filters."""
        return self._buffer((self.points, self.tiles * self.filters + _APART), "sums")

    def _buffer(self, shape: tuple[Dim, ...], name: str) -> LoweredBuffer:
        return LoweredBuffer(TensorType(FLOAT32, shape), Role.TEMP, f"{self.node.label}.{name}")

    # -- kernels ------------------------------------------------------------------------------

    def steps(
        self,
        stored: Mapping[Value, LoweredBuffer],
        inlined: Container[Node],
        sums: LoweredBuffer,
        registers: RegisterFile,
        variables: tuple[Symbol, ...],
    ) -> Iterator[Step]:
        """The kernels before :meth:`results`: those of the weights, of ``x``, and the matmuls.

        Args:
            stored: what is in memory; ``x`` with its channels last.
            inlined: the nodes that the packing of the weights computes on the spot.
            sums: receives the sums.
        """
        tile = tile_for(registers.vector_bytes, registers.count, FLOAT32, self.tiles, self.filters)
        packed, elements = self.packed_buffer(tile[1]), self.elements_buffer()
        build = KernelBuilder(stored, inlined)
        yield Step("pack", build, self.weights(build, packed, variables))
        build = KernelBuilder(stored)
        yield Step("tiles", build, self.elements(build, elements, variables))
        build = KernelBuilder(stored)
        gemms = self.gemms(build, (elements, packed, sums), tile, registers, variables)
        flops = 2 * self.points * self.tiles * self.channels * self.filters
        yield Step("products", build, gemms, flops)

    def weights(
        self, build: KernelBuilder, packed: LoweredBuffer, variables: tuple[Symbol, ...]
    ) -> LoopNest:
        """The kernel that transforms the weights, in float64, and packs them, rounded once."""
        _, panels, channels, panel = packed.type.shape
        which, channel, lane = build.axes((panels, channels, panel))
        column = which * panel + lane
        w = self.node.inputs[1]
        beyond = not (isinstance(self.filters, int) and self.filters % panel == 0)

        def tap(i: int, j: int) -> Scalar:
            value = build.at(w, (column, channel, i, j))
            if beyond:
                value = Guard((self.filters - 1 - column,), value, Number(0, w.dtype), w.dtype)
            return cast(value, FLOAT64)

        taps = [[tap(i, j) for j in range(TAPS)] for i in range(TAPS)]
        grid = transformed(transforms(self.outputs).w, taps, dense)
        position = build.argument(packed, writes=True)
        stores = [
            Store(
                position,
                linear_index(packed.type.shape, (point, which, channel, lane)),
                cast(value, FLOAT32),
            )
            for point, value in enumerate(chain.from_iterable(grid))
        ]
        return block_nest(build, symbols_of((which, channel, lane)), stores, variables)

    def elements(
        self, build: KernelBuilder, target: LoweredBuffer, variables: tuple[Symbol, ...]
    ) -> LoopNest:
        """The kernel that transforms the tiles of ``x``, channels as lanes."""
        x = self.node.inputs[0]
        image, down, across = place = build.axes(self.grid)
        channel = build.axis(self.channels)

        def element(i: int, j: int) -> Scalar:
            row, column = (
                # Beyond the end, where no result depends on it: anything that is there.
                minimum(number * self.outputs + offset, extent - 1)
                for number, offset, extent in zip((down, across), (i, j), x.shape[2:], strict=True)
            )
            return build.at(x, (image, channel, row, column))

        tile = [[element(i, j) for j in range(self.size)] for i in range(self.size)]
        grid = transformed(transforms(self.outputs).x, tile, by_rows)
        position = build.argument(target, writes=True)
        row = linear_index(self.grid, place) * self.channels + channel
        stores = [
            Store(position, linear_index(target.type.shape, (point, row)), value)
            for point, value in enumerate(chain.from_iterable(grid))
        ]
        return self._nest(build, place, channel, stores, variables)

    def gemms(
        self,
        build: KernelBuilder,
        buffers: tuple[LoweredBuffer, LoweredBuffer, LoweredBuffer],
        tile: tuple[int, int],
        registers: RegisterFile,
        variables: tuple[Symbol, ...],
    ) -> Gemm:
        """The matmuls, one per point: of ``buffers``, the first two into the third."""
        elements, packed, sums = buffers
        rows, panel = tile
        point, m, n, k = (
            axis(name, extent)
            for name, extent in (
                ("point", self.points),
                ("m", self.tiles),
                ("n", self.filters),
                ("k0", self.channels),
            )
        )
        a = build.argument(elements, reads=True)
        b = build.argument(packed, reads=True)
        target = build.argument(sums, writes=True)
        a_index = linear_index(elements.type.shape, (point, m * self.channels + k))
        index = linear_index(sums.type.shape, (point, m * self.filters + n))
        symbols = [symbols_of([dim])[0] for dim in (point, m, n, k)]
        return Gemm(
            build.args,
            (symbols[0],),
            symbols[1],
            symbols[2],
            (symbols[3],),
            a,
            FLOAT32,
            a_index,
            b,
            point,
            panel,
            rows,
            FLOAT32,
            (Store(target, index, Accumulator(FLOAT32)),),
            variables,
            caches=registers.caches,
            # Tiles of a number that is not known would each prefetch for themselves: 1.04 times as
            # long.
            prefetch=registers.prefetch if isinstance(self.tiles, int) else None,
            items=registers.items,
        )

    def results(
        self,
        build: KernelBuilder,
        sums: LoweredBuffer,
        outputs: Outputs,
        variables: tuple[Symbol, ...],
    ) -> LoopNest:
        """The kernel that transforms the sums, and applies the region's other members."""
        place = build.axes(self.grid)
        filter_ = build.axis(self.filters)
        position = build.argument(sums, reads=True)
        row = linear_index(self.grid, place) * self.filters + filter_
        loads: list[Scalar] = [
            Load(position, linear_index(sums.type.shape, (point, row)), FLOAT32)
            for point in range(self.points)
        ]
        tile = [loads[start : start + self.size] for start in range(0, self.points, self.size)]
        grid = transformed(transforms(self.outputs).y, tile, by_columns)
        stores: list[Store] = []
        for i, j in product(range(self.outputs), repeat=2):
            stores += self._stores(build, grid[i][j], place, (i, j), filter_, outputs)
        return self._nest(build, place, filter_, stores, variables)

    def _stores(
        self,
        build: KernelBuilder,
        total: Scalar,
        place: Indices,
        offsets: tuple[int, int],
        filter_: Dim,
        outputs: Outputs,
    ) -> list[Store]:
        """The stores of one result of a tile: nothing where it lies beyond the end."""
        (out,) = self.node.outputs
        image, *numbers = place
        ends = [extent - 1 for extent in out.shape[2:]]
        wanted = [n * self.outputs + o for n, o in zip(numbers, offsets, strict=True)]
        spatial = [minimum(w, end) for w, end in zip(wanted, ends, strict=True)]
        beyond = tuple(
            end - w for w, end in zip(wanted, ends, strict=True) if bounds(end - w)[0] < 0
        )
        at = (image, filter_, *spatial)
        if len(self.node.inputs) == 3:
            bias = build.at(self.node.inputs[2], (filter_,))
            total = Apply("add", (total, bias), FLOAT32)
        build.results[out] = total
        build.forget()
        stores = [store_at(build, value, buffer, out.shape, at) for value, buffer in outputs]
        return [replace(store, conditions=beyond) for store in stores]

    def _nest(
        self,
        build: KernelBuilder,
        place: Indices,
        lane: Dim,
        stores: Sequence[Store],
        variables: tuple[Symbol, ...],
    ) -> LoopNest:
        """``stores`` for every tile, ``lane`` as lanes."""
        lanes = symbols_of([lane])
        return LoopNest(
            build.args,
            symbols_of(place),
            (Stage((), build.finish(stores)),),
            tuple(build.temps),
            inner_axis=lanes[0] if lanes else None,
            block=BLOCK,
            variables=variables,
        )


# -- when ------------------------------------------------------------------------------------------

_PER_PRODUCT = 2.4
"""Time of a multiplication and addition in small matmuls; in a plain convolution it is 2."""

_PER_POINT = 25
"""Time to transform one element there or back, in the same terms."""

_PER_FAR_POINT = 80
"""The same where the elements of all points together do not stay in a cache."""

_CACHED_BYTES = 8 << 20
"""Memory that stays in a last-level cache which others use, too."""

_PER_WEIGHT, _PER_DISTANT_WEIGHT = 16, 43
"""Time to read one float32 of the weights from beyond the second-level cache: on Zen 4, and on
Emerald Rapids, where a core reads half as many bytes and computes a third faster."""


def winograd_tile(node: Node, slow_memory: Callable[[], bool] | None = None) -> int | None:
    """The tile with which a ``conv`` node takes the least time; ``None``: plain windows do.

    It takes float32 images, 3x3 windows side by side, and weights that are params or constants.
    Sizes that are not known count as the largest that they may be.

    Args:
        node: the convolution.
        slow_memory: finds whether memory is slow next to arithmetic; asked where it matters.
    """
    if not _applies(node):
        return None
    best = _best_tile(node, _PER_WEIGHT)
    if slow_memory is None or (other := _best_tile(node, _PER_DISTANT_WEIGHT)) == best:
        return best
    return other if slow_memory() else best


def _best_tile(node: Node, per_weight: int) -> int | None:
    """The tile of the least time where reading one of the weights takes ``per_weight``."""
    filters, channels = (bounds(extent)[1] for extent in node.inputs[1].shape[:2])
    weights = channels * filters
    positions = bounds(node.outputs[0].type.size)[1] // filters
    least: float = weights * TAPS**2 * max(2 * positions, per_weight)
    best = None
    for outputs in POINTS:
        way = Winograd(node, outputs)
        tiles = bounds(way.tiles)[1]
        products = weights * max(_PER_PRODUCT * tiles, per_weight)
        elements = tiles * (channels + filters)
        near = way.points * elements * FLOAT32.itemsize <= _CACHED_BYTES
        time = way.points * (products + (_PER_POINT if near else _PER_FAR_POINT) * elements)
        if time < least:
            best, least = outputs, time
    return best


def _applies(node: Node) -> bool:
    x, w = node.inputs[:2]
    attrs = node.attrs
    return (
        x.dtype == FLOAT32
        and w.shape[2:] == (TAPS, TAPS)
        and attrs["stride"] == attrs["dilation"] == (1, 1)
        and attrs["groups"] == 1
        and attrs["padding"] == ((0, 0), (0, 0))
        and all(isinstance(extent, int) for extent in w.shape)
        and _is_known(w)
    )


def _is_known(value: Value) -> bool:
    """Whether a value is a param or constant, or a view of one."""
    while value.node.op.name in VIEWS:
        (value,) = value.node.inputs
    return value.node.op.name in ("param", "constant") and bounds(value.type.size)[0] > 0


# -- the rule --------------------------------------------------------------------------------------


def lower_winograd(
    lowering: ProgramBuilder, region: Region, way: Winograd, registers: RegisterFile
) -> None:
    """Lower a region around a convolution that is done Winograd's way."""
    stored, node = lowering.stored, way.node
    lowering.counted.add(node)
    x = node.inputs[0]
    if lowering.layout(x) is None:
        stored = {**stored, x: channels_last_buffer(x)}
        lowering.copy_into(x, stored[x])
    sums = way.sums_buffer()
    for title, build, kernel, flops in way.steps(
        stored, lowering.inlined, sums, registers, lowering.variables
    ):
        lowering.helper_call(node, title, build, kernel, flops)
    build = lowering.builder(region)
    outputs = lowering.region_outputs(region)
    lowering.call(region, build, way.results(build, sums, outputs, lowering.variables), outputs)
