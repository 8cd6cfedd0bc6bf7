"""The queries of attention, and its two products: by single warps, and by groups of four warps.

Both kinds have the scores and the sums of a warp's rows in registers. A warp loads what it
multiplies into registers; for groups, tensor cores read queries, keys and values from panels of
shared memory (``headers/warpgroups.cuh``).
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.render.attention_tiles import query_pairs
from ostinato.lower.loopir.nodes import extent_of
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.render.frame import Frame
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel
    from ostinato.variables import Symbol

__all__ = ["CHUNK", "PANEL", "Block", "Products", "products"]

CHUNK = 8
"""Elements of 16 bytes, and those that pad a row of shared memory against bank conflicts."""

PANEL = 64
"""Elements of a line in shared memory, where tensor cores read that themselves."""


@dataclass(frozen=True)
class Block:
    """The shape of a block.

    Attributes:
        warps: of the block.
        tiles: of 16 rows that a warp has.
        groups: whether groups of four warps multiply together.
    """

    warps: int
    tiles: int
    groups: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.tiles


#: The queries of warps, in registers.
_QUERIES_OF_WARPS = Template("""\
        unsigned query[$tiles][$depth / 16][4];
#pragma unroll
        for (int r = 0; r < $tiles; r++) {
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const long long m = own_row + r * 16 + part % 2 * 8;
                    unsigned short pair[2] = {};
                    if (m < rows) {
                        const long long d = i * 16 + part / 2 * 8 + t * 2;
$query
                    }
                    query[r][i][part] = pair[0] | (unsigned)pair[1] << 16;
                }
            }
        }""")

#: Those of groups of warps, in shared memory behind the tiles. Registers are no place for them:
#: ptxas 13.0 gives the weights registers that hold queries throughout the loop.
_QUERIES_OF_GROUPS = Template("""\
        unsigned short* const block_queries = stages + $stages * $stage;
        const unsigned short* const queries = block_queries + warp / 4 * 64 * $key_pitch;
$brought""")

#: Queries that are computed, element by element.
_COMPUTED = Template("""\
#pragma unroll
        for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const int line = warp % 4 * 16 + part % 2 * 8 + g;
                const int place = i % 4 * 16 + part / 2 * 8;
                const long long m = own_row + part % 2 * 8;
                unsigned short pair[2] = {};
                if (m < rows) {
                    const long long d = i * 16 + part / 2 * 8 + t * 2;
$query
                }
                unsigned short* const group = block_queries + warp / 4 * 64 * $key_pitch;
                *(unsigned*)(group + i / 4 * 64 * ost::panel + ost::in_panel(line, place + t * 2)) =
                    pair[0] | (unsigned)pair[1] << 16;
            }
        }""")

#: Queries that chunks of memory have: they come with the first tile.
_COPIED = Template("""\
#pragma unroll
        for (int i = 0; i < ($block * $depth / $chunk + $threads - 1) / $threads; i++) {
            const int chunk = threadIdx.x + i * $threads, line = chunk / ($depth / $chunk);
            const int place = chunk % ($depth / $chunk) * $chunk;
            const long long m = first_row + line, d = place;
            if (line < $block) {
$source
                unsigned short* const group = block_queries + line / 64 * 64 * $key_pitch;
                ost::copy_async(
                    group + place / ost::panel * 64 * ost::panel
                        + ost::in_panel(line % 64, place % ost::panel),
                    from, m < rows
                );
            }
        }""")

#: The products of queries and keys, and of weights and values, by each warp.
_SCORES_OF_WARPS = Template("""\
#pragma unroll
            for (int i = 0; i < $depth / 16; i++) {
#pragma unroll
                for (int j = 0; j < $keys / 16; j++) {
                    unsigned b[4];
                    ost::load_matrices(
                        b,
                        loaded_keys + (j * 16 + lane / 16 * 8 + lane % 8) * $key_pitch + i * 16
                            + lane / 8 % 2 * 8
                    );
#pragma unroll
                    for (int r = 0; r < $tiles; r++) {
                        ost::multiply_tiles(
                            scores[r][2 * j], query[r][i], b[0], b[1], ost::${format}_format()
                        );
                        ost::multiply_tiles(
                            scores[r][2 * j + 1], query[r][i], b[2], b[3], ost::${format}_format()
                        );
                    }
                }
            }""")
_SUMS_OF_WARPS = Template("""\
#pragma unroll
            for (int i = 0; i < $keys / 16; i++) {
                unsigned a[$tiles][4];
#pragma unroll
                for (int r = 0; r < $tiles; r++) {
#pragma unroll
                    for (int part = 0; part < 4; part++) {
                        const float* const pair = &scores[r][2 * i + part / 2][part % 2 * 2];
                        a[r][part] = ost::pair_bits(pair[0], pair[1], ost::${format}_format());
                    }
                }
#pragma unroll
                for (int j = 0; j < $features / 16; j++) {
                    unsigned b[4];
                    ost::load_transposed(
                        b,
                        loaded_values + (i * 16 + lane % 16) * $value_pitch + j * 16
                            + lane / 16 * 8
                    );
#pragma unroll
                    for (int r = 0; r < $tiles; r++) {
                        ost::multiply_tiles(
                            sums[r][2 * j], a[r], b[0], b[1], ost::${format}_format()
                        );
                        ost::multiply_tiles(
                            sums[r][2 * j + 1], a[r], b[2], b[3], ost::${format}_format()
                        );
                    }
                }
            }""")

#: The same by groups of four warps, for which tensor cores read keys and values themselves. The
#: sums are waited for with the next scores.
_SCORES_OF_GROUPS = Template("""\
            ost::group_begin();
            ost::multiply_group<false, false>(
                scores[0], queries, loaded_keys, 0, 0, ost::${format}_format()
            );
#pragma unroll
            for (int i = 1; i < $depth / 16; i++)
                ost::multiply_group<false>(
                    scores[0], queries + i / 4 * 64 * ost::panel,
                    loaded_keys + i / 4 * $keys * ost::panel, i % 4 * 16, 0, ost::${format}_format()
                );
            ost::group_commit();
            ost::group_wait<0>();
            ost::group_registers(scores);
            ost::group_registers(sums);""")
_SUMS_OF_GROUPS = Template("""\
            unsigned weights[$keys / 16][4];
#pragma unroll
            for (int i = 0; i < $keys / 16; i++) {
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const float* const pair = &scores[0][2 * i + part / 2][part % 2 * 2];
                    weights[i][part] =
                        ost::pair_bits(pair[0], pair[1], ost::${format}_format());
                }
            }
            ost::group_registers(weights);
            ost::group_registers(sums);
            ost::group_begin();
#pragma unroll
            for (int i = 0; i < $keys / 16; i++)
                ost::multiply_group<true>(
                    sums[0], weights[i], loaded_values, i * 16, $keys * ost::panel,
                    ost::${format}_format()
                );
            ost::group_commit();""")
_SUMS_AT_THE_END = """\
        ost::group_wait<0>();
        ost::group_registers(sums);"""


class Products(NamedTuple):
    """Statements of a kernel: where its products read, and the products.

    Attributes:
        queries: bring the queries of a block to where products read them.
        show: makes a tile that has come visible to products.
        cleared: the first value of scores.
        scores: products of queries and keys.
        sums: add products of weights and values to sums.
        end: waits for the last sums.
    """

    queries: str
    show: str
    cleared: str
    scores: str
    sums: str
    end: str


def products(
    attention: AttentionKernel,
    block: Block,
    frame: Frame,
    names: Mapping[Symbol, str],
    places: Mapping[str, object],
) -> Products:
    """The products of a kernel.

    Args:
        attention: the kernel.
        block: the shape of its blocks.
        frame: of the kernel.
        names: by axis, the variable that has its value.
        places: the numbers that statements mention.
    """
    if not block.groups:
        query = query_pairs(attention, frame, names, 6)
        queries = _QUERIES_OF_WARPS.substitute(places, query=query)
        scores, sums = _SCORES_OF_WARPS.substitute(places), _SUMS_OF_WARPS.substitute(places)
        return Products(queries, "", " = {}", scores, sums, "")
    brought = _brought(attention, block, frame, names, places)
    return Products(
        _QUERIES_OF_GROUPS.substitute(places, brought=brought),
        "            ost::show_to_tensor_cores();",
        "",
        _SCORES_OF_GROUPS.substitute(places),
        _SUMS_OF_GROUPS.substitute(places),
        _SUMS_AT_THE_END,
    )


def _brought(
    attention: AttentionKernel,
    block: Block,
    frame: Frame,
    names: Mapping[Symbol, str],
    places: Mapping[str, object],
) -> str:
    """Statements that bring the queries of a block to panels; see :func:`products`."""
    spec = attention.spec
    run = run_of(spec.q, spec.depth, extent_of(spec.depth))
    if run is None or run.count != CHUNK or run.load is not spec.q:
        return _COMPUTED.substitute(places, query=query_pairs(attention, frame, names, 5))
    point = frame.point(4, names)
    first = f"b{run.load.buffer} + {point.index(run.load.index)}"
    point.writer.line(f"const unsigned short* const from = {first};")
    numbers = {"block": block.rows, "threads": block.threads, "chunk": CHUNK}
    return _COPIED.substitute(places, **numbers, source=point.text)
