"""Rendering a matmul of 16-bit floats for tensor cores.

A block computes a tile of the result, warp by warp, from slices of both operands that pass through
shared memory. Several slices are on their way while one is multiplied: copies of 16 bytes run
asynchronously where elements are next to one another in memory; other elements are computed and
stored one by one. As with register tiles, the finished sums go through shared memory to the
epilogue.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.frame import Frame, function, grid_of
from ostinato.backends.cuda.render.packed_stores import Results, packed_stores, store_lanes
from ostinato.backends.cuda.render.sums import matmul_sizes, stores_along_rows
from ostinato.backends.cuda.render.tile_operands import CHUNK, SLICE, TileOperand, chunks_along
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.lower.loopir.nodes import max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.dtypes import DType
    from ostinato.variables import Symbol

__all__ = ["Renderer", "Tile", "fits", "launch", "multiplies", "source"]

#: The first architecture with these instructions.
_CAPABILITY = 80

#: The least number that an int does not hold, and places of a tile past the end of the result.
_INT32, _PAST = 1 << 31, 256

#: Floats of shared memory that an access of several begins at a multiple of.
_ALIGNED = 4

#: Elements whose epilogues a thread computes together.
_UNROLL = 8

#: Tiles side by side whose rows are gone over together, so that what they share stays in caches.
_BAND = 8


@dataclass(frozen=True)
class Tile:
    """A tile of the result.

    Attributes:
        warps: of a block, along rows and along columns.
        products: tiles of 16 rows, and tiles of 8 columns, that a warp computes.
        resident: blocks that a multiprocessor runs at a time.
        stages: slices in shared memory, at most: what hides the latency of memory.
        filling: tiles for each multiprocessor from which a smaller tile gains nothing.
        slices: of a sum, at least, for which the tile's registers are worth having one block.
    """

    warps: tuple[int, int]
    products: tuple[int, int]
    resident: int
    stages: int
    filling: float
    slices: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def rows(self) -> int:
        return self.warps[0] * self.products[0] * 16

    @property
    def columns(self) -> int:
        return self.warps[1] * self.products[1] * 8


#: The tiles that there are, largest first.
_TILES = (
    Tile((2, 4), (4, 8), 1, 4, 0.7, 5),
    Tile((2, 4), (4, 4), 2, 4, 0.7),
    Tile((4, 2), (2, 4), 2, 4, 0.7),
    Tile((2, 2), (2, 4), 2, 6, 0.5),
    Tile((2, 2), (1, 2), 4, 8, 0.0),
)

#: Slices in shared memory, at least: one is multiplied while another is on its way.
_FEWEST_STAGES = 2

_BODY = Template("""\
    extern __shared__ __align__(16) unsigned char ${name}_memory[];
    unsigned short* const stages = (unsigned short*)${name}_memory;
    float* const finished = (float*)${name}_memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / $warps * $warp_rows, warp_column = warp % $warps * $warp_columns;
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
        auto load = [&](int number) {
            unsigned short* const left = stages + number % $stages * $stage;
            unsigned short* const right = left + $left_elements;
            const long long start = (long long)number * $slice;
$load_left
$load_right
        };
        float sums[$row_products][$column_products][4] = {};
        for (int number = 0; number < $stages - 1; number++) {
            if (number < slices)
                load(number);
            ost::copy_commit();
        }
        for (int number = 0; number < slices; number++) {
            ost::copy_wait<$stages - 2>();
            __syncthreads();
            if (number + $stages - 1 < slices)
                load(number + $stages - 1);
            ost::copy_commit();
            const unsigned short* const left = stages + number % $stages * $stage;
            const unsigned short* const right = left + $left_elements;
            unsigned a[2][$row_products][4], b[2][$column_products / 2][4];
            auto fetch = [&](unsigned (&rows_of)[$row_products][4],
                             unsigned (&columns_of)[$column_products / 2][4], int d) {
#pragma unroll
                for (int i = 0; i < $row_products; i++)
                    ost::load_matrices(
                        rows_of[i],
                        left + (warp_row + i * 16 + lane % 16) * $left_pitch + d + lane / 16 * 8
                    );
#pragma unroll
                for (int j = 0; j < $column_products / 2; j++)
                    $load_b
            };
            fetch(a[0], b[0], 0);
#pragma unroll
            for (int d = 0; d < $slice; d += 16) {
                const int now = d / 16 % 2;
                if (d + 16 < $slice)
                    fetch(a[1 - now], b[1 - now], d + 16);
#pragma unroll
                for (int i = 0; i < $row_products; i++) {
#pragma unroll
                    for (int j = 0; j < $column_products; j++)
                        ost::multiply_tiles(
                            sums[i][j], a[now][i], b[now][j / 2][j % 2 * 2],
                            b[now][j / 2][j % 2 * 2 + 1], ost::${format}_format()
                        );
                }
            }
        }
        ost::copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < $row_products; i++) {
#pragma unroll
            for (int j = 0; j < $column_products; j++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int at = warp_row + i * 16 + lane / 4 + e / 2 * 8;
                    const int beside = warp_column + j * 8 + lane % 4 * 2 + e % 2;
                    finished[at * $finished_pitch + beside] = sums[i][j][e];
                }
            }
        }
        __syncthreads();
$finish
        __syncthreads();
    }
""")

#: Stores the sums of a tile one by one, and several neighbours at once.
_SINGLE = Template("""\
#pragma unroll $unroll
        for (int j = 0; j < $tile_rows * $tile_columns / $threads; j++) {
            const unsigned i = $thread + j * $threads, at = $store_row, beside = $store_column;
$totals
            const $index m = ($index)first_row + at, n = ($index)first_column + beside;
            if (m < ($index)rows && n < ($index)columns) {
$store
            }
        }""")
_SINGLE_TOTAL = Template("""\
            const float $total = finished[at * $finished_pitch + beside + $first];""")
_PACKED = Template("""\
#pragma unroll
        for (int j = 0; j < $tile_rows * $tile_columns / $lanes / $threads; j++) {
            const unsigned i = $thread + j * $threads, at = i / ($tile_columns / $lanes);
            const unsigned beside = i % ($tile_columns / $lanes) * $lanes;
            const $index m = ($index)first_row + at, n = ($index)first_column + beside;
            if (m < ($index)rows && n < ($index)columns) {
$totals
$store
            }
        }""")
_PACKED_TOTAL = Template("""\
                const ost::pack<float, $lanes> $total = ost::pack<float, $lanes>::load(
                    finished + at * $finished_pitch + beside + $first
                );""")

#: Two tiles of the right operand: stored by columns, and stored by rows.
_BY_COLUMNS = Template("""\
ost::load_matrices(
                        columns_of[j],
                        right + (warp_column + j * 16 + lane / 16 * 8 + lane % 8) * $pitch + d
                            + lane / 8 % 2 * 8
                    );""")
_BY_ROWS = Template("""\
ost::load_transposed(
                        columns_of[j],
                        right + (d + lane % 16) * $pitch + warp_column + j * 16 + lane / 16 * 8
                    );""")


def fits(matmul: Matmul, target: CudaTarget) -> bool:
    """Whether tensor cores multiply what a matmul does."""
    return matmul.b.dtype == matmul.a.dtype and multiplies(matmul.a.dtype, target)


def multiplies(dtype: DType, target: CudaTarget) -> bool:
    """Whether tensor cores multiply a dtype."""
    return dtype in (FLOAT16, BFLOAT16) and target.capability >= _CAPABILITY


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: a block for each tile of the greatest result, or a few waves."""
    return Renderer(matmul, target).launch()


def source(matmul: Matmul, target: CudaTarget) -> str:
    """CUDA C++ with the kernel of a matmul."""
    return Renderer(matmul, target).source()


class Renderer:
    """Renders the kernel of a matmul.

    Args:
        matmul: the kernel.
        target: the GPU.

    Attributes:
        tiles: the tiles that there are, largest first; the last one serves any result.
        fewest_stages: slices in shared memory, at least.
        left_run, right_run: the elements that chunks of an operand begin with, if it has chunks.
        by_rows: whether chunks of the right operand are along columns.
        tile: the first of the tiles that suits the result.
    """

    tiles: ClassVar[tuple[Tile, ...]] = _TILES
    fewest_stages: ClassVar[int] = _FEWEST_STAGES

    def __init__(self, matmul: Matmul, target: CudaTarget) -> None:
        self.matmul = matmul
        self.frame = Frame(matmul, matmul.operands, matmul.stores)
        self.target = target
        self.results = Results(matmul.args, matmul.stores, matmul.n, matmul.acc)
        self.lanes = 1 if stores_along_rows(matmul) else store_lanes(self.results)
        self.left_run = chunks_along(matmul.a, matmul.k[-1])
        self.right_run = chunks_along(matmul.b, matmul.k[-1])
        self.by_rows = self.right_run is None
        if self.by_rows:
            self.right_run = chunks_along(matmul.b, matmul.n)
        for tile in self.candidates():
            self.tile = tile
            if self.suits:
                break

    def candidates(self) -> Sequence[Tile]:
        """The tiles to choose from: the first one that suits is taken."""
        return self.tiles

    @property
    def suits(self) -> bool:
        """Whether the tile has room, and the result enough of them."""
        tile, target = self.tile, self.target
        room = self.bytes_of(self.fewest_stages) <= target.shared_bytes_per_block
        used = self.columns_of(tile) < 2 * max_extent(self.matmul.n) and self.slices >= tile.slices
        return room and used and self.blocks >= tile.filling * target.multiprocessors

    @property
    def blocks(self) -> int:
        """Tiles of the greatest result."""
        return self.blocks_of(self.tile)

    def blocks_of(self, tile: Tile) -> int:
        """The same for one of the tiles."""
        matmul = self.matmul
        row_tiles = -(-max_extent(matmul.m) // tile.rows)
        column_tiles = -(-max_extent(matmul.n) // self.columns_of(tile))
        return bounds(matmul.points)[1] * row_tiles * column_tiles

    def columns_of(self, tile: Tile) -> int:
        """Columns of results of a tile."""
        return tile.columns

    def launch(self) -> Launch:
        """The launch of the kernel."""
        grid, early = grid_of(self.blocks, self.target), self.target.starts_kernels_early
        return Launch(grid, self.tile.threads, self.bytes_of(self.stages), programmatic=early)

    # -- shared memory ----------------------------------------------------------------------

    @property
    def slices(self) -> int:
        """Slices of the longest sum."""
        return -(-bounds(self.matmul.depth)[1] // SLICE)

    @property
    def left_pitch(self) -> int:
        return SLICE + CHUNK

    @property
    def right_pitch(self) -> int:
        return (self.tile.columns if self.by_rows else SLICE) + CHUNK

    @property
    def left_elements(self) -> int:
        return self.tile.rows * self.left_pitch

    @property
    def stage(self) -> int:
        """Elements of a stage."""
        lines = SLICE if self.by_rows else self.tile.columns
        return self.left_elements + lines * self.right_pitch

    @property
    def finished_pitch(self) -> int:
        return self.tile.columns + (1 if self.lanes == 1 else _ALIGNED)

    @property
    def stages(self) -> int:
        """Slices in shared memory: as many as leave room for the resident blocks."""
        limit, least = self.target.shared_bytes_per_block, self.fewest_stages
        count = min(self.tile.stages, max(self.slices, least))
        while count > least and self.bytes_of(count) * self.resident > limit:
            count -= 1
        return count

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor's memory."""
        return self.tile.resident

    def bytes_of(self, stages: int) -> int:
        """Bytes of so many stages, or of the finished sums that take their place."""
        return max(stages * self.stage * 2, self.tile.rows * self.finished_pitch * 4)

    # -- text -------------------------------------------------------------------------------

    def source(self) -> str:
        """CUDA C++ with the kernel."""
        matmul, tile = self.matmul, self.tile
        batch, names = self.frame.unravel(matmul.batch, "point", 2)
        names |= {matmul.m: "m", matmul.n: "n"}
        left_sources, load_left = self._operand(False).load(names)
        right_sources, load_right = self._operand(True).load(names)
        body = self.body(
            {
                **self.sizes,
                "batch": batch,
                "left_sources": left_sources,
                "load_left": load_left,
                "right_sources": right_sources,
                "load_right": load_right,
                "finish": self.finish(names),
            }
        )
        return function(
            matmul,
            body,
            matmul_sizes(matmul),
            tile.threads,
            before=self.before,
            resident=tile.resident,
            early=self.target.starts_kernels_early and not self.waits_itself,
        )

    @property
    def sizes(self) -> dict[str, object]:
        """Values for the names that the texts of all such kernels have."""
        matmul, tile = self.matmul, self.tile
        return {
            "name": matmul.name,
            "tile_rows": tile.rows,
            "tile_columns": tile.columns,
            "slice": SLICE,
            "band": _BAND,
            "stages": self.stages,
            "stage": self.stage,
            "left_elements": self.left_elements,
            "finished_pitch": self.finished_pitch,
            "format": matmul.a.dtype.name,
        }

    @property
    def waits_itself(self) -> bool:
        """Whether the body waits for the kernels in front, once it has begun to load weights."""
        return False

    @property
    def before(self) -> str:
        """Lines in front of the kernel."""
        return ""

    def body(self, values: Mapping[str, object]) -> str:
        """The statements of the kernel, from the values that all such templates have."""
        tile = self.tile
        b_template = _BY_ROWS if self.by_rows else _BY_COLUMNS
        return _BODY.substitute(
            values,
            warps=tile.warps[1],
            warp_rows=tile.products[0] * 16,
            warp_columns=tile.products[1] * 8,
            left_pitch=self.left_pitch,
            row_products=tile.products[0],
            column_products=tile.products[1],
            load_b=b_template.substitute(pitch=self.right_pitch),
        )

    def slot(self, right: bool) -> str:
        """The place in shared memory of an element of a line of an operand."""
        return f"line * {self.right_pitch if right else self.left_pitch} + place"

    def finish(self, names: Mapping[Symbol, str]) -> str:
        """Statements that store the finished sums of a tile."""
        tile = self.tile
        return self.finish_part(names, tile.rows, tile.columns, tile.threads, "threadIdx.x")

    def finish_part(
        self, names: Mapping[Symbol, str], rows: int, columns: int, threads: int, thread: str
    ) -> str:
        """Statements that store the finished sums of a part of a tile.

        Args:
            names: by axis, the variable that has its value.
            rows, columns: of the part; the sums with a second right operand are beside it.
            threads: those that store it.
            thread: the number of a thread among them.
        """
        matmul, frame = self.matmul, self.frame
        values: dict[str, object] = {
            "tile_rows": rows,
            "tile_columns": columns,
            "threads": threads,
            "thread": thread,
            "finished_pitch": self.finished_pitch,
            "index": self.index_type,
        }
        totals = [f"total{number}" for number in range(len(matmul.rights))]
        template = _SINGLE_TOTAL if self.lanes == 1 else _PACKED_TOTAL
        values["totals"] = "\n".join(
            template.substitute(values, lanes=self.lanes, total=total, first=number * columns)
            for number, total in enumerate(totals)
        )
        if self.lanes > 1:
            store = packed_stores(frame, self.results, self.lanes, 4, names, *totals)
            return _PACKED.substitute(values, lanes=self.lanes, store=store)
        by_row, by_column = (f"i % {rows}", f"i / {rows}"), (f"i / {columns}", f"i % {columns}")
        store_row, store_column = by_row if stores_along_rows(matmul) else by_column
        return _SINGLE.substitute(
            values,
            unroll=_UNROLL,
            store_row=store_row,
            store_column=store_column,
            store=frame.stores(matmul.stores, matmul.acc, 4, names, *totals),
        )

    @property
    def index_type(self) -> str:
        """The type of rows and columns of the result."""
        places = (max_extent(axis) + _PAST for axis in (self.matmul.m, self.matmul.n))
        return "long long" if max(places) >= _INT32 else "int"

    def _operand(self, right: bool) -> TileOperand:
        """An operand, whose slices a block loads."""
        return TileOperand(
            self.matmul,
            self.frame,
            right,
            self.right_run if right else self.left_run,
            right and self.by_rows,
            self.tile.columns if right else self.tile.rows,
            self.tile.threads,
            self.slot(right),
        )
