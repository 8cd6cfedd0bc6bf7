"""Rendering a matmul of 16-bit floats for groups of four warps, its operands copied in bulk.

As :mod:`group_tiles` has it, but that one thread of a block brings the slices of both operands: an
instruction for each, by tensor maps. Its warp is one of a group of its own, which gives its
registers to those that multiply. These wait for a slice's barrier, not for each other, and store
what they have while the next tile's slices arrive. Operands are matrices in memory whose sizes are
numbers. There may be two right ones: a tile has the sums of its columns with both.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch, TensorMap
from ostinato.backends.cuda.render.bulk_operands import LINE_WORDS, are_matrices, matrices_of
from ostinato.backends.cuda.render.frame import body_of
from ostinato.backends.cuda.render.group_tiles import PRODUCTS, GroupTile
from ostinato.backends.cuda.render.packed_stores import (
    pack_type,
    packed_loads,
    packed_values,
    varies_by_element,
)
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.backends.cuda.render.tensor_tiles import Renderer
from ostinato.backends.cuda.render.tile_operands import CHUNK, SLICE
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.render.tensor_tiles import Tile
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Load
    from ostinato.variables import Symbol

__all__ = ["fits", "launch", "source"]

#: Threads of a group, and rows of its tensor cores' tile.
_GROUP, _ROWS = 128, 64

#: Registers of a thread that copies, and of one that multiplies.
_COPYING, _MULTIPLYING = 40, 232

#: Slices in shared memory, at most, and tiles for each multiprocessor that are enough.
_STAGES, _FILLING = 8, 0.7

#: Rows of results and columns of sums that a warp stores together.
_PART_ROWS, _PART_COLUMNS = 16, 32

#: Floats from one of these rows to the next: neighbours are in different banks.
_PART_PITCH = 40

#: Parts of a block's only tile that one pass of a loop stores: it takes longer to fetch code that
#: runs once.
_PARTS_AT_ONCE = 2

#: Registers of a thread that have sums, and what is read beside them, at most.
_SUMS_AND_READ = 144

#: Elements of a line of shared memory: see ``ost::panel``.
_PANEL = 64

_BODY = Template(
    """\
    extern __shared__ __align__(1024) unsigned char ${name}_memory[];
    __shared__ ost::phased_barrier arrived[$stages], emptied[$stages];
    unsigned short* const ring = (unsigned short*)${name}_memory;
    if (threadIdx.x == 0) {
        for (int i = 0; i < $stages; i++) {
            ost::barrier_start(arrived + i, 1);
            ost::barrier_start(emptied + i, 4 * $groups);
        }
        ost::barriers_started();
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
    const int row_tiles = (int)((rows + $tile_rows - 1) / $tile_rows);
    const int column_tiles = (int)((columns + $tile_columns - 1) / $tile_columns);
    const int tiles = row_tiles * column_tiles, slices = (int)((depth + $slice - 1) / $slice);
    // The first row and the first column of a tile: those of a band of columns follow each other.
    auto start_of = [&](int tile, int& row, int& column) {
        const int band = tile / (row_tiles * $band) * $band, rest = column_tiles - band;
        const int across = rest < $band ? rest : $band, within = tile - band * row_tiles;
        row = within / across * $tile_rows;
        column = (band + within % across) * $tile_columns;
    };
    // No call may stand beside the products of groups, or ptxas has each of them waited for.
    auto await = [](ost::phased_barrier* barrier, unsigned phase) {
        if (!ost::barrier_await(barrier, phase))
            __trap();
        __syncwarp();
    };
    int slot = 0;
    unsigned parity = 0;
    auto advance = [&]() {
        if (++slot == $stages) {
            slot = 0;
            parity ^= 1;
        }
    };
    if (group == $groups) {
        ost::give_registers<$copying>();
        if (warp > 0)
            return;
        const bool chosen = ost::is_chosen();
        const unsigned long long policy = ost::read_once();
        auto copy_left = [&](int first_row, int number) {
            unsigned short* const left = ring + slot * $stage;
            if (chosen)
                ost::copy_tensor(
                    left, maps.of, number * $line_words, first_row, 0, arrived + slot, policy
                );
        };
        auto copy_right = [&](int first_column, int number) {
            unsigned short* const right = ring + slot * $stage + $left_elements;
            if (chosen) {
                ost::barrier_expect(arrived + slot, 2 * $stage);
$copy_right
            }
        };
        int first_row, first_column, begun = 0;
$begin
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            start_of(tile, first_row, first_column);
            for (int number = 0; number < slices; number++) {
                if (begun > 0)
                    begun--;
                else {
                    await(emptied + slot, parity ^ 1);
                    copy_right(first_column, number);
                }
                copy_left(first_row, number);
                advance();
            }
        }
        return;
    }
    ost::take_registers<$multiplying>();
$wait
    auto release = [&](ost::phased_barrier* barrier) {
        __syncwarp();
        if (lane == 0)
            ost::barrier_arrive(barrier);
    };
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int tile_row, tile_column;
        start_of(tile, tile_row, tile_column);
$hold
        float sums[$row_parts][$parts][$tiles][4] = {};
        ost::group_registers(sums);
        for (int number = 0; number < slices; number++) {
            await(arrived + slot, parity);
            const unsigned short* const left = ring + slot * $stage;
            const unsigned short* const own_left = left + group * $row_parts * 64 * ost::panel;
            const unsigned short* const right = left + $left_elements;
"""
    + PRODUCTS
    + """\
            ost::group_wait<1>();
            if (number > 0)  // the products of the slice before are there
                release(emptied + (slot == 0 ? $stages - 1 : slot - 1));
            advance();
        }
        ost::group_wait<0>();
        ost::group_registers(sums);
        release(emptied + (slot == 0 ? $stages - 1 : slot - 1));
        const int first_row = tile_row + group * 64 + warp * 16;
$store
    }
"""
)

#: Stores the sums by way of shared memory: a thread's elements are neighbours.
_BY_MEMORY = Template("""\
        float* const finished =
            (float*)(ring + $stages * $stage) + (group * 4 + warp) * $part_rows * $finished_pitch;
#pragma unroll 1
        for (int part = 0; part < $result_tiles; part += $part_tiles) {
            __syncwarp();
#pragma unroll
            for (int tile = 0; tile < $tiles; tile++) {
                const int right = tile / $result_tiles, place = tile % $result_tiles;
                if (place / $part_tiles != part / $part_tiles)
                    continue;
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    const int at = lane / 4 + e / 2 * 8;
                    const int beside = (right * $part_tiles + place % $part_tiles) * 8;
                    float* const to = finished + at * $finished_pitch + beside + lane % 4 * 2;
                    const float (&found)[4] = sums[0][0][tile];
                    *(ost::vector<float, 2>*)to = {{found[e], found[e + 1]}};
                }
            }
            __syncwarp();
            const int first_column = tile_column + part * 8;
$finish
        }""")

#: Stores results of 16 bits by way of the other lanes that have parts of these rows.
_BY_LANES = Template("""\
#pragma unroll $unroll
        for (int part = 0; part < $result_tiles; part += 4) {
            float taken[$rights][4][4];
$own
#pragma unroll
            for (int tile = 0; tile < $tiles; tile++) {
                const int right = tile / $result_tiles, place = tile % $result_tiles;
                if (place / 4 != part / 4)
                    continue;
#pragma unroll
                for (int e = 0; e < 4; e++)
                    taken[right][place % 4][e] = sums[0][0][tile][e];
$take
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const $index row = ($index)first_row + lane / 4 + half * 8;
                unsigned words[4];
#pragma unroll
                for (int tile = 0; tile < 4; tile++) {
                    const $index column =
                        ($index)tile_column + (part + tile) * 8 + lane % 4 * 2;
                    [[maybe_unused]] const $index m = row < ($index)rows ? row : 0;
                    [[maybe_unused]] const $index n = column < ($index)columns ? column : 0;
$totals
$values
                }
                ost::exchange_words(words);
                const $index m = row, n = ($index)tile_column + (part + lane % 4) * 8;
                if (m < ($index)rows && n < ($index)columns) {
$place
                }
            }
        }""")

#: Operands of columns that results read: in registers before there are sums, since nothing else
#: brings them into a cache. And those of a part's columns.
_HOLD = Template("""\
        $type held$number[$result_tiles];
#pragma unroll
        for (int tile = 0; tile < $result_tiles; tile++) {
            const $index column = ($index)tile_column + tile * 8 + lane % 4 * 2;
            const $index n = column < ($index)columns ? column : 0;
$place
        }""")
_OWN = Template("            $type own$number[4];")
_TAKE = Template("                own$number[place % 4] = held$number[place];")

#: A pair of neighbouring sums.
_PAIR_OF_SUMS = Template("""\
                    const ost::pack<float, 2> total$right = {
                        {taken[$right][tile][half * 2], taken[$right][tile][half * 2 + 1]}
                    };""")

#: Copies of a right operand: stored by columns, and stored by rows.
_BY_COLUMNS = Template("""\
                ost::copy_tensor(
                    right + $right * $tile_columns * ost::panel, maps.of + 1 + $right,
                    number * $line_words, first_column, 0, arrived + slot, policy
                );""")
_BY_ROWS = Template("""\
                for (int i = 0; i < $tile_columns / ost::panel; i++)
                    ost::copy_tensor(
                        right + ($right * $tile_columns + i * ost::panel) * $slice,
                        maps.of + 1 + $right, first_column / 2 + i * $line_words,
                        number * $slice, 0, arrived + slot, policy
                    );""")

#: Waits for the kernels in front; what none of them writes is on its way before.
_EARLY = """\
        if ((int)blockIdx.x < tiles) {
            start_of(blockIdx.x, first_row, first_column);
            for (; begun < slices && begun < $stages; begun++) {
                copy_right(first_column, begun);
                slot++;
            }
            slot = 0;
        }
        ost::wait_for_earlier_kernels();"""


def _tile(rows: int, columns: int, slices: int = 1) -> GroupTile:
    """A tile of two groups: its columns are those of the right operand, or of both."""
    products = rows // 2 // _ROWS, columns // 8
    return GroupTile((8, 1), products, 1, _STAGES, _FILLING, slices)


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether all operands are matrices that tensor maps describe, and there are enough tiles."""
    return target.multiplies_in_bulk and are_matrices(matmul) and _Renderer(matmul, target).suits


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile, or as many as stay."""
    return _Renderer(matmul, target).launch()


def source(matmul: Matmul, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a matmul."""
    return _Renderer(matmul, target).source()


class _Renderer(Renderer):
    """See :class:`~ostinato.backends.cuda.render.tensor_tiles.Renderer`."""

    tiles: ClassVar[tuple[GroupTile, ...]] = (
        _tile(128, 256, 4),
        _tile(128, 192, 4),
        _tile(128, 128),
    )

    def candidates(self) -> Sequence[Tile]:
        """The tiles, those first that leave the fewest columns to a multiprocessor."""

        def columns(tile: Tile) -> int:
            return -(-self.blocks_of(tile) // self.target.multiprocessors) * tile.columns

        grain = len(self.matmul.rights) * (_PANEL if self.by_rows else self.part_columns)
        return sorted((tile for tile in self.tiles if tile.columns % grain == 0), key=columns)

    @property
    def suits(self) -> bool:
        """See the base class; nothing else computes two products at once, whatever their sizes."""
        room = self.bytes_of(self.fewest_stages) <= self.target.shared_bytes_per_block
        return super().suits if self.matmul.beside is None else room

    def columns_of(self, tile: Tile) -> int:
        return tile.columns // len(self.matmul.rights)

    @property
    def part_columns(self) -> int:
        """Columns of results that a warp stores together."""
        return _PART_COLUMNS // len(self.matmul.rights)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps of the operands."""
        matrices = matrices_of(self.matmul)
        assert matrices is not None
        left, *rights = matrices
        lines = SLICE if self.by_rows else self.columns_of(self.tile)
        return (left.map(self.tile.rows), *(each.map(lines) for each in rights))

    @property
    def left_pitch(self) -> int:
        return SLICE

    @property
    def right_pitch(self) -> int:
        return self.tile.columns if self.by_rows else SLICE

    @property
    def finished_pitch(self) -> int:
        return _PART_PITCH

    def bytes_of(self, stages: int) -> int:
        parts = self.tile.threads // 32 * _PART_ROWS * _PART_PITCH
        return stages * self.stage * 2 + (0 if self.stores_by_lanes else 4 * parts)

    @property
    def stores_by_lanes(self) -> bool:
        """Whether results are neighbours of 16 bits that need no elements beside the sums."""
        results = self.results
        halves = [results.dtypes[store.buffer].itemsize for store in results.stores] == [2]
        return halves and self.lanes == CHUNK and not varies_by_element(results, self.matmul.m)

    @property
    def has_one_tile(self) -> bool:
        """Whether no block has two tiles."""
        return self.blocks <= self.target.multiprocessors

    def launch(self) -> Launch:
        return Launch(
            min(self.blocks, self.target.multiprocessors),
            self.tile.threads + _GROUP,
            self.bytes_of(self.stages),
            programmatic=self.target.starts_kernels_early,
            maps=self.maps,
        )

    def source(self) -> str:
        matmul, tile = self.matmul, self.tile
        assert isinstance(tile, GroupTile)
        early = self.target.starts_kernels_early
        waits = early and matmul.fixed_right
        wait = "    ost::wait_for_earlier_kernels();" if waits else ""
        columns, copy = self.columns_of(tile), _BY_ROWS if self.by_rows else _BY_COLUMNS
        values: dict[str, object] = {
            **self.sizes,
            **tile.values(by_rows=self.by_rows),
            "tile_columns": columns,
            "result_tiles": columns // 8,
            "part_tiles": self.part_columns // 8,
            "groups": tile.threads // _GROUP,
            "line_words": LINE_WORDS,
            "copying": _COPYING,
            "multiplying": _MULTIPLYING,
            "part_rows": _PART_ROWS,
            "wait": wait,
        }
        copies = (copy.substitute(values, right=number) for number in range(len(matmul.rights)))
        store = self.store_by_lanes if self.stores_by_lanes else self.store_by_memory
        text = _BODY.substitute(
            values,
            hold="\n".join(self.hold(values, *each) for each in enumerate(self.held)),
            begin=Template(_EARLY).substitute(values) if waits else "",
            copy_right="\n".join(copies),
            store=store(values),
        )
        threads = tile.threads + _GROUP
        body = body_of(matmul, text, matmul_sizes(matmul), threads, early=early and not waits)
        headers = '#include "tensor_maps.cuh"\n#include "warpgroups.cuh"\n'
        return replace(body, includes=body.includes + headers, maps=self.maps).kernel(matmul.name)

    def store_by_memory(self, values: Mapping[str, object]) -> str:
        """See :data:`_BY_MEMORY`."""
        finish = self.finish_part(self.names, _PART_ROWS, self.part_columns, 32, "lane")
        return _BY_MEMORY.substitute(values, finish=finish)

    @property
    def held(self) -> Sequence[Load]:
        """Operands of columns of a block's only tile, if registers have room for them."""
        if not self.stores_by_lanes or not self.has_one_tile:
            return ()
        loads, sums = packed_loads(self.results, 2), self.tile.products[1] * 4
        words = sum(self.results.dtypes[load.buffer].itemsize for load in loads) // 2
        room = words * self.columns_of(self.tile) // 8 + sums <= _SUMS_AND_READ
        return loads if room else ()

    def hold(self, values: Mapping[str, object], number: int, load: Load) -> str:
        """See :data:`_HOLD`."""
        point, type_ = self.frame.point(3, self.names), self.type_of(load)
        at = f"b{load.buffer} + {point.index(load.index)}"
        point.writer.line(f"held{number}[tile] = {type_}::load({at});")
        return _HOLD.substitute(
            values, type=type_, number=number, index=self.index_type, place=point.text
        )

    def type_of(self, load: Load) -> str:
        """The type of what a lane reads beside a pair of sums."""
        return pack_type(self.results.dtypes[load.buffer], 2)

    def store_by_lanes(self, values: Mapping[str, object]) -> str:
        """See :data:`_BY_LANES`."""
        rights, names, (store,) = len(self.matmul.rights), self.names, self.results.stores
        point, held = self.frame.point(5, names), list(enumerate(self.held))
        totals = (f"total{number}" for number in range(rights))
        own = {load: f"own{number}[tile]" for number, load in held}
        (pack,) = packed_values(point, self.results, 2, *totals, held=own)
        point.writer.line(f"words[tile] = ost::bits_as<unsigned>({pack});")
        place = self.frame.point(5, names)
        to = f"(unsigned*)(b{store.buffer} + {place.index(store.index)})"
        place.writer.line(
            f"ost::pack<unsigned, 4>{{words[0], words[1], words[2], words[3]}}.store({to});"
        )
        return _BY_LANES.substitute(
            values,
            rights=rights,
            unroll=_PARTS_AT_ONCE if self.has_one_tile else "",
            index=self.index_type,
            own="\n".join(_OWN.substitute(type=self.type_of(load), number=n) for n, load in held),
            take="\n".join(_TAKE.substitute(number=number) for number, _ in held),
            totals="\n".join(_PAIR_OF_SUMS.substitute(values, right=n) for n in range(rights)),
            values=point.text,
            place=place.text,
        )

    @property
    def names(self) -> dict[Symbol, str]:
        """The variables that have the values of axes."""
        return {self.matmul.m: "m", self.matmul.n: "n"}
