"""Rendering a matmul of 16-bit floats for groups of four warps, its operands copied in bulk.

As :mod:`group_tiles` has it, but that one thread of a block brings the slices of both operands: an
instruction for each, by tensor maps. Its warp is one of a group of its own, which gives its
registers to those that multiply. These wait for a slice's barrier, not for each other, and store
what they have while the next tile's slices arrive. Both operands are matrices in memory whose sizes
are numbers.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch, TensorMap
from ostinato.backends.cuda.render.frame import body_of
from ostinato.backends.cuda.render.group_tiles import PRODUCTS, GroupTile
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.backends.cuda.render.tensor_tiles import CHUNK, SLICE, Renderer, multiplies
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import extent_of
from ostinato.records import replace
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from collections.abc import Sequence

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

#: Rows and columns whose sums a warp stores together.
_PART_ROWS, _PART_COLUMNS = 16, 32

#: Floats from one of these rows to the next: neighbours are in different banks.
_PART_PITCH = 40

#: Words of four bytes of a line of shared memory.
_LINE_WORDS = 32

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
        const unsigned long long policy = ost::read_again();
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
    float* const finished =
        (float*)(ring + $stages * $stage) + (group * 4 + warp) * $part_rows * $finished_pitch;
    auto release = [&](ost::phased_barrier* barrier) {
        __syncwarp();
        if (lane == 0)
            ost::barrier_arrive(barrier);
    };
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
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
        int tile_row, tile_column;
        start_of(tile, tile_row, tile_column);
#pragma unroll
        for (int i = 0; i < $row_parts; i++) {
#pragma unroll
            for (int j = 0; j < $parts; j++) {
#pragma unroll
                for (int first = 0; first < $tiles; first += $part_tiles) {
                    __syncwarp();
#pragma unroll
                    for (int beside = 0; beside < $part_tiles; beside++) {
#pragma unroll
                        for (int e = 0; e < 4; e += 2) {
                            const int at = lane / 4 + e / 2 * 8;
                            float* const to =
                                finished + at * $finished_pitch + beside * 8 + lane % 4 * 2;
                            const float (&found)[4] = sums[i][j][first + beside];
                            *(ost::vector<float, 2>*)to = {{found[e], found[e + 1]}};
                        }
                    }
                    __syncwarp();
                    const int first_row = tile_row + (group * $row_parts + i) * 64 + warp * 16;
                    const int first_column = tile_column + (j * $tiles + first) * 8;
$finish
                }
            }
        }
    }
"""
)

#: Copies of the right operand: stored by columns, and stored by rows.
_BY_COLUMNS = """\
                ost::copy_tensor(
                    right, maps.of + 1, number * $line_words, first_column, 0, arrived + slot,
                    policy
                );"""
_BY_ROWS = """\
                for (int i = 0; i < $tile_columns / ost::panel; i++)
                    ost::copy_tensor(
                        right + i * $slice * ost::panel, maps.of + 1,
                        first_column / 2 + i * $line_words, number * $slice, 0, arrived + slot,
                        policy
                    );"""

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
    """A tile of two groups; see :class:`~ostinato.backends.cuda.render.tensor_tiles.Tile`."""
    products = rows // 2 // _ROWS, columns // 8
    return GroupTile((8, 1), products, 1, _STAGES, _FILLING, slices)


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether both operands are matrices that tensor maps describe, and there are enough tiles."""
    if not target.multiplies_in_bulk or matmul.acc != FLOAT32:
        return False
    if matmul.b.dtype != matmul.a.dtype or not multiplies(matmul.a.dtype, target):
        return False
    sizes = [extent_of(axis) for axis in (matmul.m, matmul.n, *matmul.k)]
    if matmul.batch or len(matmul.k) != 1 or not all(isinstance(s, int) and s for s in sizes):
        return False
    renderer = _Renderer(matmul, target)
    return renderer.maps is not None and renderer.suits


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

        return sorted(self.tiles, key=columns)

    @property
    def maps(self) -> tuple[TensorMap, TensorMap] | None:
        """The tensor maps of both operands; ``None``: they are no such matrices."""
        matmul, (k,) = self.matmul, self.matmul.k
        right = (k, matmul.n, SLICE) if self.by_rows else (matmul.n, k, self.tile.columns)
        left_map = _map_of(self.left_run, matmul.m, k, self.tile.rows)
        right_map = _map_of(self.right_run, *right)
        return None if left_map is None or right_map is None else (left_map, right_map)

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
        return stages * self.stage * 2 + 4 * parts

    def launch(self) -> Launch:
        grid, maps = min(self.blocks, self.target.multiprocessors), self.maps
        assert maps is not None
        return Launch(
            grid,
            self.tile.threads + _GROUP,
            self.bytes_of(self.stages),
            programmatic=self.target.starts_kernels_early,
            maps=maps,
        )

    def source(self) -> str:
        matmul, tile, maps = self.matmul, self.tile, self.maps
        assert isinstance(tile, GroupTile)
        assert maps is not None
        early = self.target.starts_kernels_early
        waits = early and matmul.fixed_right
        wait = "    ost::wait_for_earlier_kernels();" if waits else ""
        values: dict[str, object] = {
            **self.sizes,
            **tile.values(by_rows=self.by_rows),
            "groups": tile.threads // _GROUP,
            "line_words": _LINE_WORDS,
            "copying": _COPYING,
            "multiplying": _MULTIPLYING,
            "part_rows": _PART_ROWS,
            "part_tiles": _PART_COLUMNS // 8,
            "wait": wait,
        }
        text = _BODY.substitute(
            values,
            begin=Template(_EARLY).substitute(values) if waits else "",
            copy_right=Template(_BY_ROWS if self.by_rows else _BY_COLUMNS).substitute(values),
            finish=self.finish_part(
                {matmul.m: "m", matmul.n: "n"}, _PART_ROWS, _PART_COLUMNS, 32, "lane"
            ),
        )
        threads = tile.threads + _GROUP
        body = body_of(matmul, text, matmul_sizes(matmul), threads, early=early and not waits)
        headers = '#include "tensor_maps.cuh"\n#include "warpgroups.cuh"\n'
        return replace(body, includes=body.includes + headers, maps=maps).kernel(matmul.name)


def _map_of(run: Load | None, outer: Symbol, inner: Symbol, lines: int) -> TensorMap | None:
    """The tensor map of an operand, whose copies have so many lines; ``None``: it has none.

    Args:
        run: the element that chunks of the operand begin with.
        outer, inner: the axes of its rows in memory, and of the elements of these.
        lines: of a copy, with the elements of a line of shared memory each.
    """
    if run is None or run.bindings:
        return None
    along = coefficient(run.index, inner)
    across = None if along is None else coefficient(along[1], outer)
    if along is None or across is None or along[0] != 1:
        return None
    (pitch, offset), rows, elements = across, extent_of(outer), extent_of(inner)
    sizes = (pitch, offset, rows, elements)
    if not all(isinstance(size, int) for size in sizes):
        return None
    assert isinstance(pitch, int)
    assert isinstance(offset, int)
    assert isinstance(rows, int)
    assert isinstance(elements, int)
    if pitch % CHUNK or offset % CHUNK or elements % 2 or pitch < elements:
        return None
    return TensorMap(
        run.buffer, 2 * offset, elements // 2, rows, 1, 2 * pitch, _LINE_WORDS, lines, 1, True
    )
