"""Grouped GEMM: rows times the matrix of the expert that each row goes to.

The rows of an expert are worked on together, so that its matrix is read once; where a row stands
among them makes no difference to its sums, nor does it matter whether the matrix is packed. A work
item is one panel of one expert's matrix by all rows of a part
(:class:`~ostinato.backends.cpu.rules.group_rows.GroupLayout`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.lower.loopir.nodes import Store, max_extent
from ostinato.records import dataclass, field
from ostinato.variables import Dim, Symbol, bounds, ceil_div, minimum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cpu.rules.group_rows import GroupLayout
    from ostinato.backends.cpu.rules.packing import BlockRows, PanelFormat
    from ostinato.backends.cpu.rules.prefetch import Prefetch
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText

__all__ = ["GroupedGemm"]

#: About 20 µs of one core's work, and what it computes while it reads a byte of a panel.
_ITEM_FLOPS, _FLOPS_PER_BYTE = 2_000_000, 5


class _AnyRows(Gemm):
    """A GEMM whose rows of ``a`` may be anywhere, and in items of which there are ``m``."""

    @property
    def row_stride(self) -> None:
        """None: rows are found one by one."""
        return None

    @property
    def fetch(self) -> Prefetch | None:
        """:attr:`prefetch`: of all experts' panels, few stay in a cache."""
        return self.prefetch

    def fetches(self, height: int) -> bool:
        """Whether tiles of so many rows prefetch."""
        if self.prefetch is None:
            return False
        return self.depth_block is not None or height >= self.prefetch.least_rows

    @property
    def depth_block(self) -> int | None:
        """Positions of ``k`` in a block, where more rows than a tile has may go to an expert."""
        fetch, depth = self.fetch, self.depth
        if fetch is None or self.block_rows is not None or max_extent(self.m) <= self.rows:
            return None
        if len(self.sum_axes) != 1 or not isinstance(depth, int):
            return None
        return fetch.block_steps(depth, self._panel_bytes, self.item_sums_bytes)


@dataclass(frozen=True, eq=False)
class GroupedGemm(CpuKernel):
    """``acc_i[m, n] = Σ_k a[m, k] · b_i[expert of m, k, n]``, then stores at every ``(m, n)``.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        m: the axis of rows: of the result, and of ``a``.
        n: the axis of columns: vector lanes.
        k: the axis summed over.
        a: the argument that holds ``a``; ``a_dtype`` its element type.
        a_index: element offset over ``m`` and ``k``: ``f(m) + g(k)`` with ``g`` affine.
        b: the arguments that hold the matrices of all experts, in panels or as they are.
        groups: the argument that lists the rows of every expert.
        layout: how it does.
        panel: elements per row of a panel; it divides the columns of matrices that are not packed.
        rows: how many rows of ``a`` a register tile holds.
        acc: the accumulator's dtype.
        epilogue: stores over ``m`` and ``n``, in which ``Accumulator`` ``i`` is ``acc_i``.
        variables: the graph's Variables in the order of ``vars``.
        b_format: how matrices hold their elements; ``None``: as the accumulator does.
        block_rows: the left operand's scales and sums, if panels hold blocks of packed weights.
        packed: whether they are in panels, rather than in C order.
        caches: those of a core.
        prefetch: the distances at which panels are prefetched; ``None``: they are not.
    """

    args: tuple[Arg, ...]
    m: Symbol
    n: Symbol
    k: Symbol
    a: int
    a_dtype: DType
    a_index: Dim
    b: tuple[int, ...]
    groups: int
    layout: GroupLayout
    panel: int
    rows: int
    acc: DType
    epilogue: tuple[Store, ...]
    variables: tuple[Symbol, ...] = ()
    b_format: PanelFormat | None = None
    packed: bool = True
    caches: CacheSizes = field(default_factory=CacheSizes)
    prefetch: Prefetch | None = None
    block_rows: BlockRows | None = None

    renderer: ClassVar[str] = "grouped_gemm"

    @property
    def directing(self) -> Mapping[int, object]:
        return {self.groups: self.layout}

    def describe(self, text: KernelText) -> None:
        text.line(0, "grouped gemm")
        text.head(self.args)
        text.line(1, f"rows {text.axis(self.m)} by {self.rows}")
        text.line(1, f"columns {text.axis(self.n)} by {self.panel}")
        text.line(1, f"sum over {text.axis(self.k)}")
        text.line(1, f"listed in b{self.groups}: {self.layout.describe(text)}")
        left = f"{self.a_dtype.short} b{self.a}[{text.dim(self.a_index)}]"
        kind = "" if self.b_format is None else f"{self.b_format} "
        for b in self.b:
            packed = "" if self.packed else ", not packed"
            text.line(1, f"accumulate {self.acc.short} {left} * {kind}b{b}[expert]{packed}")
        if (rows := self.block_rows) is not None:
            text.line(1, rows.describe(text))
        if self.prefetch is not None:
            text.line(1, f"prefetch {self.prefetch}")
        for store in self.epilogue:
            text.statement(store)

    @property
    def panels(self) -> int:
        """Panels of each matrix."""
        return -(-max_extent(self.n) // self.panel)

    @property
    def extent(self) -> Dim:
        """The parallel range: parts, most of which there may be, by panels."""
        return self.layout.most_parts * self.panels

    @property
    def grain(self) -> int:
        """The number of consecutive items that are worth handing out together."""
        rows = max(1, bounds(self.layout.rows)[1] // self.layout.experts)
        computed = 2 * rows * self.panel * max_extent(self.k)
        read = _FLOPS_PER_BYTE * self.gemm.b_dtype.itemsize * self.panel_elements
        return max(1, _ITEM_FLOPS // max(1, max(computed, read) * len(self.b)))

    @property
    def panel_elements(self) -> int:
        """Elements in memory of a panel."""
        depth, form = max_extent(self.k), self.b_format
        return self.panel * depth if form is None else bounds(form.size(depth, self.panel))[1]

    @property
    def panel_step(self) -> int:
        """Elements from one panel of a matrix to the next."""
        return self.panel_elements if self.packed else self.panel

    @property
    def pitch(self) -> int:
        """Elements from one row of a panel to the next."""
        return self.panel if self.packed else max_extent(self.n)

    @cached_property
    def gemm(self) -> Gemm:
        """The GEMM of some rows with one panel, for its register tiles."""
        share = max(1, bounds(ceil_div(self.layout.rows, self.layout.experts))[1])
        return _AnyRows(
            args=(),
            batch=(),
            m=self.m,
            n=self.n,
            k=(self.k,),
            a=self.a,
            a_dtype=self.a_dtype,
            a_index=self.a_index,
            b=self.b[0],
            b_group=0,
            panel=self.panel,
            rows=self.rows,
            acc=self.acc,
            epilogue=(),
            b_format=self.b_format,
            caches=self.caches,
            prefetch=self.prefetch if self.packed else None,
            block_rows=self.block_rows,
            chains=1,
            item_rows=-(-share // self.rows) * self.rows,
        )

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Heights of register tiles, one for any number of rows that is left, least first."""
        return tuple(range(1, min(self.rows, max(1, max_extent(self.m))) + 1))

    @cached_property
    def scratch_layout(self) -> tuple[int, ...]:
        """Offsets in scratch memory of a tile's row offsets, and of each of its sums.

        With :attr:`block_rows`, the offsets of scales and of sums follow those of :attr:`rows`.
        """
        first = _whole_lines(8 * self.kept_rows * (1 if self.block_rows is None else 3))
        return (0, *(first + number * self._sums_bytes for number in range(len(self.b))))

    @property
    def kept_rows(self) -> int:
        """Rows whose offsets and sums are in scratch memory at once."""
        if self.gemm.depth_block is None:
            return self.rows
        return min(self.layout.part_rows, max_extent(self.m))

    @property
    def _sums_bytes(self) -> int:
        return _whole_lines(self.kept_rows * self.panel * self.acc.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.scratch_layout[-1] + self._sums_bytes

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        """At most how many elements of an argument are touched; ``None``: all there are."""
        if position not in self.b or writes:
            return None
        used = minimum(self.layout.experts, self.layout.rows)
        return used * self.panels * self.panel_elements


def _whole_lines(size: int) -> int:
    return -(-size // 64) * 64
