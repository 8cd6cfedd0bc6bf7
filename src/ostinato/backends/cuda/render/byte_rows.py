"""Rendering matmuls of a few rows of bytes by a matrix of bytes, or of codes of half a byte.

A warp computes some neighbouring columns, whose elements lie side by side along ``k``: each lane
loads up to 16 bytes of every column, before it uses any, and multiplies four at a time by
``dp4a``; then the sums of all lanes are added. Products are exact: bytes become no other numbers.
Codes stay packed up to the registers, where the halves of a word meet every other byte of the left
operand; the zero of the codes is taken off as a multiple of the sum of the left operand's bytes.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ostinato.backends.common.clike.vectors import run_of
from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.frame import Frame, body_of, grid_of
from ostinato.backends.cuda.render.sums import matmul_sizes
from ostinato.dtypes import FLOAT32, INT8, INT32, UINT8
from ostinato.lower.loopir.nodes import Apply, Load, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.rules.product import BlockwiseProduct, Matmul
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Symbol

__all__ = [
    "axis_names",
    "blockwise_body",
    "body",
    "fits",
    "launch",
    "load_along",
    "packed_along",
]

_WARPS = 8

_THREADS = 32 * _WARPS

#: Rows whose sums a thread holds together.
_ROWS = 16

#: The same where each row is taken apart, beside the words of four columns of codes.
_SPLIT_ROWS = 8

#: Rows and columns together, at most: as many as there are lanes to store them.
_SUMS = 32

#: Columns that a warp computes together, at most: enough loads in flight where ``k`` is short.
_ACROSS = 4

#: Warps of a multiprocessor that are to have work before any computes several columns.
_BUSY_WARPS = 16

#: Bytes of a word.
_WORD = 4

#: Elements of ``k`` that a lane takes at a time of a matrix of codes, whose blocks are multiples.
_CODES = 32

_BODY = Template("""\
    const int lane = threadIdx.x % 32;
    const long long groups = (columns + $across - 1) / $across;
    const long long warps = (long long)all.x * $warps;
    for (long long item = (long long)own.x * $warps + threadIdx.x / 32;
         item < points * groups; item += warps) {
        const long long first_column = item % groups * $across;
        [[maybe_unused]] const long long point = item / groups;
$batch
        for (long long first_row = 0; first_row < rows; first_row += $rows) {
            $sum sums[$rows][$across] = {};
#pragma unroll $unroll
            for (long long start = lane * $step; start < depth; start += 32 * $step) {
                ost::vector<unsigned, $words> right[$across];
                [[maybe_unused]] float scales[$across];
#pragma unroll
                for (int c = 0; c < $across; c++) {
                    const long long n = min(first_column + c, columns - 1);
$right
                }
#pragma unroll
                for (int r = 0; r < $rows; r++) {
                    const long long m = first_row + r;
                    if (m < rows) {
$left
#pragma unroll
                        for (int c = 0; c < $across; c++) {
$products
                        }
                    }
                }
            }
            $sum mine = 0;
#pragma unroll
            for (int r = 0; r < $rows; r++) {
#pragma unroll
                for (int c = 0; c < $across; c++) {
                    const $sum all = ost::sum_of_warp(sums[r][c]);
                    mine = lane == r * $across + c ? all : mine;
                }
            }
            const long long m = first_row + lane / $across, n = first_column + lane % $across;
            if (lane < $rows * $across && m < rows && n < columns) {
                const $register total = ($register)mine;
$store
            }
        }
    }
""")

_BYTES = Template("""\
#pragma unroll
                            for (int i = 0; i < $words; i++)
                                sums[r][c] = ost::dot_bytes<$left_signed, $right_signed>(
                                    left.at[i], right[c].at[i], sums[r][c]
                                );""")

_SPLIT = """\
                        unsigned even[4], odd[4], zero = 0;
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const unsigned low = left[i / 2].at[i % 2 * 2];
                            const unsigned high = left[i / 2].at[i % 2 * 2 + 1];
                            even[i] = ost::even_bytes(low, high);
                            odd[i] = ost::odd_bytes(low, high);
                            zero = ost::dot_bytes<true, false>(low, 0x08080808u, zero);
                            zero = ost::dot_bytes<true, false>(high, 0x08080808u, zero);
                        }"""

_HALVES = """\
                            unsigned sum = 0u - zero;
#pragma unroll
                            for (int i = 0; i < 4; i++) {
                                const unsigned low = right[c].at[i] & 0x0F0F0F0Fu;
                                const unsigned high = right[c].at[i] >> 4 & 0x0F0F0F0Fu;
                                sum = ost::dot_bytes<true, false>(even[i], low, sum);
                                sum = ost::dot_bytes<true, false>(odd[i], high, sum);
                            }
                            sums[r][c] = fmaf((float)(int)sum, scale * scales[c], sums[r][c]);"""


@dataclass(frozen=True)
class _Shape:
    """The mapping of a matmul to threads.

    Attributes:
        rows: whose sums a thread holds.
        across: columns of a warp.
    """

    rows: int
    across: int

    @staticmethod
    def of(matmul: Matmul, target: CudaTarget) -> _Shape:
        most = _ROWS if matmul.acc == INT32 else _SPLIT_ROWS
        rows = max(1, min(max_extent(matmul.m), most))
        columns = bounds(matmul.points)[1] * max_extent(matmul.n)
        busy, across = _BUSY_WARPS * target.multiprocessors, _ACROSS
        while across > 1 and (columns < across * busy or rows * across > _SUMS):
            across //= 2
        return _Shape(rows, across)


def fits(matmul: Matmul) -> bool:
    """Whether a matmul multiplies bytes that are neighbours along ``k``, for sums of 32 bits."""
    if len(matmul.k) != 1 or matmul.acc != INT32:
        return False
    sides = (matmul.a, matmul.b)
    return all(_bytes_of(side) and packed_along(side, matmul.k[0]) >= _WORD for side in sides)


def packed_along(scalar: Scalar, axis: Symbol) -> int:
    """The number of neighbours along an axis that may be loaded at once; 0: it is no such load."""
    run = run_of(scalar, axis, extent_of(axis))
    return 0 if run is None else run.count


def _bytes_of(scalar: Scalar) -> bool:
    """Whether an operand is a byte in memory, whose value no conversion changes."""
    while isinstance(scalar, Apply) and scalar.op == "cast" and scalar.dtype == INT32:
        (scalar,) = scalar.operands
    return isinstance(scalar, Load) and scalar.dtype in (INT8, UINT8)


def launch(matmul: Matmul, target: CudaTarget) -> Launch:
    """The launch of a kernel: warps for all columns of the greatest result, or a few waves."""
    groups = -(-max_extent(matmul.n) // _Shape.of(matmul, target).across)
    return Launch(grid_of(-(-bounds(matmul.points)[1] * groups // _WARPS), target), _THREADS)


def body(matmul: Matmul, target: CudaTarget) -> Body:
    """The code of a matmul of bytes."""
    frame = Frame(matmul, (matmul.a, matmul.b), matmul.stores)
    batch, names = axis_names(matmul, frame)
    left, right = (load_along(side, matmul.k[0]) for side in (matmul.a, matmul.b))
    step = min(packed_along(side, matmul.k[0]) for side in (matmul.a, matmul.b))
    words = f"ost::vector<unsigned, {step // _WORD}>"
    products = _BYTES.substitute(
        words=step // _WORD,
        left_signed=str(left.dtype == INT8).lower(),
        right_signed=str(right.dtype == INT8).lower(),
    )
    return _body(
        matmul,
        target,
        sum="unsigned",
        register="int",
        step=step,
        words=step // _WORD,
        batch=batch,
        right=frame.words(right, words, 5, names, "right[c]"),
        left=frame.words(left, words, 6, names, f"const {words} left"),
        products=products,
        store=frame.stores(matmul.stores, INT32, 4, names, "total"),
    )


def blockwise_body(matmul: BlockwiseProduct, target: CudaTarget) -> Body:
    """The code of a matmul of bytes by codes, both with scales by block."""
    operands = (matmul.a, matmul.b, matmul.a_scale, matmul.b_scale)
    frame = Frame(matmul, operands, matmul.stores)
    batch, names = axis_names(matmul, frame)
    names |= {matmul.pairs: "(start / 2)", matmul.blocks: f"(start / {matmul.group})"}
    left, codes = load_along(matmul.a, matmul.k[0]), load_along(matmul.b, matmul.pairs)
    words = "ost::vector<unsigned, 4>"
    right = [
        frame.words(codes, words, 5, names, "right[c]"),
        frame.element(matmul.b_scale, FLOAT32, 5, names, "scales[c]"),
    ]
    second = names | {matmul.k[0]: "(start + 16)"}
    row = [
        frame.words(left, words, 6, names, "left[0]"),
        frame.words(left, words, 6, second, "left[1]"),
        frame.element(matmul.a_scale, FLOAT32, 6, names, "scale"),
    ]
    return _body(
        matmul,
        target,
        sum="float",
        register="float",
        step=_CODES,
        words=4,
        batch=batch,
        right=_apart(right),
        left="\n".join([f"{words} left[2];", "float scale;", _apart(row), _SPLIT]),
        products=_HALVES,
        store=frame.stores(matmul.stores, FLOAT32, 4, names, "total"),
    )


def _body(matmul: Matmul, target: CudaTarget, **parts: str | int) -> Body:
    """The code with these parts of the template."""
    shape = _Shape.of(matmul, target)
    text = _BODY.substitute(
        warps=_WARPS,
        rows=shape.rows,
        across=shape.across,
        unroll=_ACROSS // shape.across,
        **parts,
    )
    return body_of(matmul, text, matmul_sizes(matmul), _THREADS)


def axis_names(matmul: Matmul, frame: Frame) -> tuple[str, dict[Symbol, str]]:
    """Declarations of the axes of a batch, and the names of all axes."""
    batch, names = frame.unravel(matmul.batch, "point", 2)
    return batch, {**names, matmul.m: "m", matmul.n: "n", matmul.k[0]: "start"}


def _apart(parts: Iterable[str]) -> str:
    """Statements whose locals are their own."""
    return "\n".join(f"{{\n{part}\n}}" for part in parts)


def load_along(scalar: Scalar, axis: Symbol) -> Load:
    """The load that an operand is, perhaps converted."""
    run = run_of(scalar, axis, extent_of(axis))
    assert run is not None
    return run.load
