"""Rendering a large matmul of 16-bit floats by weights that are in order for it.

A group of four warps brings slices of both operands into shared memory, and two others give them to
the tensor cores, so that neither waits for the other's instructions. The weights of a tile lie as
the tensor cores read them: bulk copies bring its slices, a half from each of two blocks with the
same columns, to both. The rows of the left operand are copied by chunks of 16 bytes. Blocks stay,
and go on to other tiles: the next slices arrive while the sums of a tile are stored.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.frame import Frame, function
from ostinato.backends.cuda.render.packed_stores import Results, packed_stores
from ostinato.lower.loopir.nodes import Load, extent_of
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.wide import WideMatmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["launch", "source"]

#: Rows of a block's tile, and products of a slice.
_ROWS, _SLICE = 128, 64

#: Blocks that share weights, and threads of a block: one group of four warps that copies, two that
#: multiply 64 rows each.
_BLOCKS, _THREADS = 2, 384

#: Registers of a thread that copies, and of one that multiplies.
_FEW_REGISTERS, _MANY_REGISTERS = 40, 232

#: Slices in shared memory, at most, and those of the left operand on their way behind the newest.
_STAGES, _LAG = 6, 2

#: Columns of sums that a warp stores at a time, floats between its rows in shared memory, and
#: columns of a thread.
_PART, _PITCH, _LANES = 32, 36, 8

_BODY = Template("""\
    extern __shared__ __align__(1024) unsigned char ${name}_memory[];
    ost::phased_barrier* const arrived = (ost::phased_barrier*)(${name}_memory + $barriers);
    ost::phased_barrier* const emptied = arrived + $stages;
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const unsigned rank = blockIdx.x % $blocks;
    if (threadIdx.x == 0) {
        for (int i = 0; i < $stages; i++) {
            ost::barrier_start(arrived + i, 129);
            ost::barrier_start(emptied + i, 8 * ost::blocks_at_once<$blocks>);
        }
        ost::barriers_started();
    }
    ost::cluster_sync<$blocks>();
    const int row_tiles = (int)((rows + $blocks * $tile_rows - 1) / ($blocks * $tile_rows));
    const int column_tiles = (int)(columns / $tile_columns), slices = (int)(depth / $slice);
    const int first_tile = blockIdx.x / $blocks, tiles = row_tiles * column_tiles;
    if (group == 0) {
        ost::leave_registers<$few>();
        const int line = threadIdx.x / 8, place = threadIdx.x % 8 * 8;
        const unsigned short* const weights = b$weights;
        int slot = 0, late = 0, under_way = 0;
        unsigned parity = 1;
        bool waits = true;
        for (int tile = first_tile; tile < tiles; tile += gridDim.x / $blocks) {
            const long long m = (tile % row_tiles * $blocks + rank) * $tile_rows + line, k = place;
            const unsigned short* left_from;
            {
$left
            }
            const unsigned short* right_from =
                weights + (long long)(tile / row_tiles) * slices * $right_elements;
            for (int number = 0; number < slices; number++) {
                unsigned short* const left =
                    (unsigned short*)(${name}_memory + slot * $stage_bytes);
                unsigned short* const right = left + $left_elements;
                ost::wait_for_cluster<$blocks>(emptied + slot, parity);
                if (threadIdx.x == 0) {
                    ost::barrier_expect(arrived + slot, $right_elements * 2);
                    ost::copy_everywhere<$blocks>(
                        (unsigned char*)right, (const unsigned char*)right_from,
                        $right_elements * 2, arrived + slot, rank
                    );
                }
                if (waits) {
$wait
                    waits = false;
                }
#pragma unroll
                for (int i = 0; i < $tile_rows / 16; i++)
                    ost::copy_chunk(
                        left + ost::in_panel(line + i * 16, place), left_from + i * $left_step,
                        m + i * 16 < rows
                    );
                ost::copy_commit();
                if (under_way == $lag) {
                    ost::copy_wait<$lag>();
                    ost::show_to_tensor_cores();
                    ost::barrier_arrive(arrived + late);
                    if (++late == $stages) late = 0;
                } else {
                    under_way++;
                }
                left_from += $slice;
                right_from += $right_elements;
                if (++slot == $stages) slot = 0, parity ^= 1;
            }
        }
        ost::copy_wait<0>();
        ost::show_to_tensor_cores();
        for (; under_way > 0; under_way--) {
            ost::barrier_arrive(arrived + late);
            if (++late == $stages) late = 0;
        }
    } else {
        ost::take_registers<$many>();
        const int warp = threadIdx.x / 32 % 4, half = group - 1;
        float* const finished =
            (float*)(${name}_memory + $finished) + (half * 4 + warp) * 16 * $pitch;
        int slot = 0;
        unsigned parity = 0;
        for (int tile = first_tile; tile < tiles; tile += gridDim.x / $blocks) {
            float sums[$tile_columns / 8][4];
            int before = 0;
            for (int number = 0; number < slices; number++) {
                const unsigned short* const left =
                    (const unsigned short*)(${name}_memory + slot * $stage_bytes);
                const unsigned short* const right = left + $left_elements;
                ost::wait_for_cluster<$blocks>(arrived + slot, parity);
                ost::group_registers(sums);
                ost::group_begin();
#pragma unroll
                for (int d = 0; d < $slice; d += 16)
                    ost::multiply_chunks(
                        sums, left + half * 64 * ost::panel, right, d, number + d != 0,
                        ost::${format}_format()
                    );
                ost::group_commit();
                ost::group_registers(sums);
                ost::group_wait<1>();  // so the slice before this one is done with
                if (number > 0)
                    ost::arrive_everywhere<$blocks>(emptied + before);
                before = slot;
                if (++slot == $stages) slot = 0, parity ^= 1;
            }
            ost::group_wait<0>();
            ost::group_registers(sums);
            ost::arrive_everywhere<$blocks>(emptied + before);
            const int first_row =
                (tile % row_tiles * $blocks + (int)rank) * $tile_rows + half * 64 + warp * 16;
            const int first_column = tile / row_tiles * $result_columns;
#pragma unroll
            for (int part = 0; part < $result_columns / $part; part++) {
$finish
            }
        }
    }
    ost::cluster_sync<$blocks>();  // the other block writes to this one's memory
""")

#: Takes the sums of a part to the threads that store them: by number, of several right operands.
_EXCHANGE = Template("""\
                __syncwarp();
#pragma unroll
                for (int j = 0; j < $part / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        finished[(lane / 4 + e / 2 * 8) * $pitch + j * 8 + lane % 4 * 2 + e % 2] =
                            sums[part * ($part / 8) + j$behind][e];
                }
                __syncwarp();
                ost::pack<float, $lanes> found$number[$part / 16];
#pragma unroll
                for (int i = 0; i < $part / 16; i++)
                    found$number[i] = ost::pack<float, $lanes>::load(
                        finished + (i * 32 + lane) / ($part / $lanes) * $pitch
                        + (i * 32 + lane) % ($part / $lanes) * $lanes
                    );
""")

_STORE = Template("""\
#pragma unroll
                for (int i = 0; i < $part / 16; i++) {
                    const int m = first_row + (i * 32 + lane) / ($part / $lanes);
                    const int n = first_column + part * $part
                        + (i * 32 + lane) % ($part / $lanes) * $lanes;
                    if (m < rows) {
$totals
$store
                    }
                }""")


def launch(matmul: WideMatmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: as many blocks as are resident, or fewer."""
    return _Renderer(matmul, target).launch()


def source(matmul: WideMatmul, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a matmul."""
    return _Renderer(matmul, target).source()


class _Renderer:
    def __init__(self, matmul: WideMatmul, target: CudaTarget) -> None:
        self.matmul, self.target = matmul, target
        self.frame = Frame(matmul, matmul.operands, matmul.stores)

    @property
    def _columns(self) -> int:
        """Columns of a tile: those of all right operands."""
        return self.matmul.tile_columns

    @property
    def _tiles(self) -> int:
        """Tiles of all blocks of a cluster."""
        rows, columns = map(extent_of, (self.matmul.m, self.matmul.n))
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        return -(-rows // (_ROWS * _BLOCKS)) * (columns // self._result_columns)

    @property
    def _result_columns(self) -> int:
        return self._columns // len(self.matmul.right)

    @property
    def _stage_bytes(self) -> int:
        return 2 * _SLICE * (_ROWS + self._columns)

    @property
    def _finished_bytes(self) -> int:
        """Bytes of the sums that are on their way to other threads."""
        return 8 * 16 * _PITCH * 4

    @property
    def _stages(self) -> int:
        room = self.target.shared_bytes_per_block - self._finished_bytes
        return min(_STAGES, room // (self._stage_bytes + 16))

    def launch(self) -> Launch:
        clusters = min(self._tiles, max(1, self.target.multiprocessors // _BLOCKS))
        shared = self._stages * (self._stage_bytes + 16) + self._finished_bytes
        early = self.target.starts_kernels_early
        return Launch(clusters * _BLOCKS, _THREADS, shared, programmatic=early)

    def source(self) -> str:
        matmul, stages = self.matmul, self._stages
        names = {matmul.m: "m", matmul.n: "n"}
        load = matmul.a
        assert isinstance(load, Load)
        step = coefficient(load.index, matmul.m)
        assert step is not None
        point = self.frame.point(4, {**names, matmul.k[0]: "k"})
        point.writer.line(f"left_from = b{load.buffer} + {point.index(load.index)};")
        early = self.target.starts_kernels_early
        values = {
            "name": matmul.name,
            "blocks": _BLOCKS,
            "stages": stages,
            "barriers": stages * self._stage_bytes + self._finished_bytes,
            "finished": stages * self._stage_bytes,
            "tile_rows": _ROWS,
            "tile_columns": self._columns,
            "result_columns": self._result_columns,
            "slice": _SLICE,
            "few": _FEW_REGISTERS,
            "many": _MANY_REGISTERS,
            "weights": matmul.right[0].buffer,
            "left": point.text,
            "left_step": f"{step[0] * 16}ll",
            "left_elements": _ROWS * _SLICE,
            "right_elements": self._columns * _SLICE,
            "stage_bytes": self._stage_bytes,
            "lag": min(_LAG, stages - 2),
            "pitch": _PITCH,
            "part": _PART,
            "format": matmul.a.dtype.name,
            "wait": "                    ost::wait_for_earlier_kernels();" if early else "",
            "finish": self._finish(),
        }
        sizes = {"rows": extent_of(matmul.m), "columns": self._columns * self._column_tiles}
        return function(
            matmul,
            _BODY.substitute(values),
            {**sizes, "depth": matmul.depth},
            _THREADS,
            before='#include "clusters.cuh"\n',
            cluster=_BLOCKS,
        )

    @property
    def _column_tiles(self) -> int:
        columns = extent_of(self.matmul.n)
        assert isinstance(columns, int)
        return columns // self._result_columns

    def _finish(self) -> str:
        """Statements that store a part of the sums."""
        matmul, names = self.matmul, {self.matmul.m: "m", self.matmul.n: "n"}
        results = Results(matmul.args, matmul.stores, matmul.n, matmul.acc)
        common = {"part": _PART, "pitch": _PITCH, "lanes": _LANES}
        lines = [
            _EXCHANGE.substitute(
                common,
                number=number or "",
                behind=f" + {number * self._result_columns // 8}" if number else "",
            )
            for number in range(len(matmul.right))
        ]
        totals = [
            f"                        const ost::pack<float, {_LANES}>& totals{number or ''} = "
            f"found{number or ''}[i];"
            for number in range(len(matmul.right))
        ]
        store = packed_stores(self.frame, results, _LANES, 6, names, "totals")
        lines.append(_STORE.substitute(common, totals="\n".join(totals), store=store))
        return "".join(lines)
