"""Spans of keys of paged attention: their records in memory, and the kernel that merges them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from ostinato.backends.cpu.rules.attention_tiles import BLOCK_KEYS
from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.lower.loopir.dependences import accesses_of_scalars, accesses_of_statements
from ostinato.lower.loopir.kernel import Access
from ostinato.lower.loopir.nodes import Scalar, Store, extent_of, max_extent
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis, maximum, minimum, prod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText

__all__ = ["MANY_ROWS", "SPAN", "SpanMergeKernel", "SpanRecords"]

SPAN: Final = 4 * BLOCK_KEYS
"""Positions of a span, a multiple of those that are held at a time."""

MANY_ROWS: Final = 9
"""Rows from which on runs and key heads are work enough for all threads. Fewer have spans of their
runs computed apart: for each row less, in one item more."""

#: Bytes before the sums in a record of a span: the shift of its scores, and the total of weights.
_HEAD_BYTES = 64


@dataclass(frozen=True)
class SpanRecords:
    """The memory of what spans of keys come to: for each row, key head, span and query head.

    A record is the shift of the span's scores, the total of their weights, and the sums of values.

    Attributes:
        argument: the buffer's; ``None``: each item goes over all spans of its runs.
        shared: key heads.
        spans: of the longest sequence.
        group: query heads of a key head.
        features: of a value, those of whole register tiles.
        acc: the dtype of all elements.
    """

    argument: int | None
    shared: int
    spans: Dim
    group: int
    features: int
    acc: DType

    @property
    def head(self) -> int:
        """Elements before the sums: the shift, the total, and nothing else."""
        return _HEAD_BYTES // self.acc.itemsize

    @property
    def size(self) -> int:
        """Elements of a record."""
        return self.head + -(-self.features // self.head) * self.head

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Of the whole."""
        return (MANY_ROWS, self.shared, self.spans, self.group, self.size)


@dataclass(frozen=True, eq=False)
class SpanMergeKernel(CpuKernel):
    """The kernel that merges the spans of few rows, which items have computed apart.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        row, shared, member, column: as of the kernel of paged attention.
        page: the axis of the blocks of a sequence.
        positions: of a block.
        position: the number of a ``row``.
        sink: at ``shared`` and ``member``, a score that counts without a key, if there is one.
        window: see the op ``attention``.
        store: over ``row``, ``shared``, ``member`` and ``column``; ``Accumulator`` is the result.
        records: of the spans.
        lanes: of a vector, at most.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    row: Symbol
    shared: Symbol
    member: Symbol
    column: Symbol
    page: Symbol
    positions: int
    position: Scalar
    sink: Scalar | None
    window: int | None
    store: Store
    records: SpanRecords
    lanes: int
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "span_merge"

    def describe(self, text: KernelText) -> None:
        text.line(0, "merge of spans")
        text.head(self.args)
        for name in ("row", "shared", "member", "column", "page"):
            text.line(1, f"{name} {text.axis(getattr(self, name))}")
        records = self.records
        text.line(1, f"spans of {SPAN} of {text.dim(records.spans)}, apart in b{records.argument}")
        text.line(1, f"blocks of {self.positions}, window={self.window}, lanes={self.lanes}")
        text.named("position", [self.position])
        if self.sink is not None:
            text.named("sink", [self.sink])
        text.statement(self.store)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The elements that it reads."""
        return (self.position, *([] if self.sink is None else [self.sink]))

    def accesses(self) -> Iterator[Access]:
        yield from accesses_of_scalars(self.operands)
        yield from accesses_of_statements((self.store,))
        assert self.records.argument is not None
        element = axis("record.element", prod(self.records.shape))
        yield Access(self.records.argument, element, writes=False)

    @property
    def items(self) -> tuple[Dim, int]:
        """Rows, none where there are many, and key heads."""
        rows = extent_of(self.row)
        few = maximum(MANY_ROWS - 1 - rows, 0) * MANY_ROWS
        return minimum(rows, few), max_extent(self.shared)

    @property
    def extent(self) -> Dim:
        """The parallel range."""
        return prod(self.items)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs: a record."""
        return self.records.size * self.records.acc.itemsize
