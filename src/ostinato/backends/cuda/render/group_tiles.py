"""Rendering a matmul of 16-bit floats for the tensor cores of groups of four warps.

As :mod:`tensor_tiles` has it, but that tensor cores read both operands from shared memory
themselves, while copies bring the next slices: a group of warps gives them the products of a slice
at once, and waits before that slice's memory is used again. Hopper alone has these instructions.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.render.tensor_tiles import Renderer, Tile, multiplies
from ostinato.backends.cuda.render.tile_operands import SLICE
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["PRODUCTS", "GroupTile", "fits", "launch", "source"]

#: Columns of the instructions that are used, widest first.
_INSTRUCTIONS = (256, 192, 128, 64)

#: Slices in shared memory from which on the products of two of them may be under way.
_OVERLAPPING_STAGES = 4

#: Slices in shared memory, at most, and tiles for each multiprocessor that are enough.
_STAGES, _FILLING = 8, 0.7


@dataclass(frozen=True)
class GroupTile(Tile):
    """A tile of groups of four warps; its products are those of a warp, which has 16 of 64 rows."""

    @property
    def instruction(self) -> int:
        """Columns that one instruction multiplies."""
        return next(width for width in _INSTRUCTIONS if self.columns % width == 0)

    def values(self, *, by_rows: bool) -> dict[str, object]:
        """Values for the names in :data:`PRODUCTS`, and for the sums.

        Args:
            by_rows: whether the right operand is stored by rows.
        """
        columns = self.instruction
        return {
            "row_parts": self.products[0],
            "parts": self.columns // columns,
            "tiles": columns // 8,
            "part": columns * SLICE,
            "by_rows": str(by_rows).lower(),
            "step": "ost::panel" if by_rows else "1",
        }


def _tile(rows: int, columns: int, groups: int, resident: int, slices: int = 1) -> GroupTile:
    """A tile; see :class:`Tile`."""
    products = rows // groups // 64, columns // 8
    return GroupTile((4 * groups, 1), products, resident, _STAGES, _FILLING, slices)


PRODUCTS = """\
            ost::group_begin();
#pragma unroll
            for (int d = 0; d < $slice; d += 16) {
#pragma unroll
                for (int i = 0; i < $row_parts; i++) {
#pragma unroll
                    for (int j = 0; j < $parts; j++)
                        ost::multiply_group<$by_rows>(
                            sums[i][j], ost::panels(own_left + i * 64 * ost::panel, 0) + d,
                            ost::panels(right + j * $part, $slice * ost::panel) + d * $step,
                            ost::${format}_format()
                        );
                }
            }
            ost::group_commit();
"""
"""The products of a slice, of which a group has its own rows of the left operand."""

_BODY = Template(
    """\
    extern __shared__ __align__(1024) unsigned char ${name}_memory[];
    unsigned short* const stages = (unsigned short*)${name}_memory;
    float* const finished = (float*)${name}_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row_tiles = (rows + $tile_rows - 1) / $tile_rows;
    const long long column_tiles = (columns + $tile_columns - 1) / $tile_columns;
    const int slices = (int)((depth + $slice - 1) / $slice);
    for (long long tile = blockIdx.x; tile < points * row_tiles * column_tiles;
         tile += gridDim.x) {
        [[maybe_unused]] const long long point = tile / row_tiles / column_tiles;
        const int place = (int)(tile - point * row_tiles * column_tiles);
        const int band = place / ((int)row_tiles * $band) * $band;
        const int left_over = (int)column_tiles - band;
        const int across = left_over < $band ? left_over : $band;
        const int within = place - band * (int)row_tiles;
        const long long first_row = (long long)(within / across) * $tile_rows;
        const long long first_column = (long long)(band + within % across) * $tile_columns;
$batch
$left_sources
$right_sources
        auto load_left = [&](int number) {
            unsigned short* const left = stages + number % $stages * $stage;
            const long long start = (long long)number * $slice;
$load_left
        };
        auto load_right = [&](int number) {
            unsigned short* const right = stages + number % $stages * $stage + $left_elements;
            const long long start = (long long)number * $slice;
$load_right
        };
        float sums[$row_parts][$parts][$tiles][4] = {};
        for (int number = 0; number < $ahead; number++) {
            if (number < slices)
                load_right(number);
        }
$wait
        for (int number = 0; number < $ahead; number++) {
            if (number < slices)
                load_left(number);
            ost::copy_commit();
        }
        ost::group_registers(sums);
        for (int number = 0; number < slices; number++) {
            ost::copy_wait<$ahead - 1>();
            ost::group_wait<$pending>();
            ost::show_to_tensor_cores();
            __syncthreads();  // so all groups are done with the slice that the next one replaces
            const unsigned short* const left = stages + number % $stages * $stage;
            const unsigned short* const own_left =
                left + warp / 4 * $row_parts * 64 * ost::panel;
            const unsigned short* const right = left + $left_elements;
"""
    + PRODUCTS
    + """\
            if (number + $ahead < slices) {
                load_left(number + $ahead);
                load_right(number + $ahead);
            }
            ost::copy_commit();
        }
        ost::group_wait<0>();
        ost::group_registers(sums);
        ost::copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < $row_parts; i++) {
#pragma unroll
            for (int j = 0; j < $parts; j++) {
                const int first = (warp / 4 * $row_parts + i) * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
                for (int tile = 0; tile < $tiles; tile++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int at = first + e / 2 * 8;
                        const int beside = (j * $tiles + tile) * 8 + lane % 4 * 2 + e % 2;
                        finished[at * $finished_pitch + beside] = sums[i][j][tile][e];
                    }
                }
            }
        }
        __syncthreads();
$finish
        __syncthreads();
    }
"""
)


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether groups of warps multiply what a matmul does, and it has enough of their tiles."""
    if not target.multiplies_by_groups or matmul.b.dtype != matmul.a.dtype:
        return False
    if not multiplies(matmul.a.dtype, target):
        return False
    renderer = _Renderer(matmul, target)
    return renderer.left_run is not None and renderer.right_run is not None and renderer.suits


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of the greatest result, or a few waves."""
    return _Renderer(matmul, target).launch()


def source(matmul: Matmul, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a matmul."""
    return _Renderer(matmul, target).source()


class _Renderer(Renderer):
    """See :class:`~ostinato.backends.cuda.render.tensor_tiles.Renderer`."""

    tiles: ClassVar[tuple[GroupTile, ...]] = (
        _tile(256, 128, 2, 1, 5),
        _tile(128, 256, 2, 1, 5),
        _tile(128, 128, 2, 2, 5),
        _tile(128, 64, 2, 3),
        _tile(64, 64, 1, 4),
    )

    @property
    def left_pitch(self) -> int:
        return SLICE

    @property
    def right_pitch(self) -> int:
        return self.tile.columns if self.by_rows else SLICE

    @property
    def waits_itself(self) -> bool:
        return self.target.starts_kernels_early and self.matmul.fixed_right

    @property
    def resident(self) -> int:
        return min(self.tile.resident, -(-self.blocks // self.target.multiprocessors))

    @property
    def before(self) -> str:
        return '#include "warpgroups.cuh"\n'

    def slot(self, right: bool) -> str:
        if right and self.by_rows:
            first = f"place / ost::panel * {SLICE} * ost::panel"
            return f"{first} + ost::in_panel(line, place % ost::panel)"
        return "ost::in_panel(line, place)"

    def body(self, values: Mapping[str, object]) -> str:
        assert isinstance(self.tile, GroupTile)
        # Where there is a slice to spare, one is multiplied while the one before still is.
        pending = 1 if self.stages >= _OVERLAPPING_STAGES else 0
        return _BODY.substitute(
            {**values, **self.tile.values(by_rows=self.by_rows)},
            ahead=self.stages - 1 - pending,
            pending=pending,
            wait="        ost::wait_for_earlier_kernels();" if self.waits_itself else "",
        )
