"""The kernel that sorts rows by the expert that each of them goes to."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import CpuKernel
from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import IndexValue, Scalar
from ostinato.lower.loopir.views import unravel
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis, bounds, floor_div, minimum

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText

__all__ = ["GroupLayout", "GroupRows", "Routing", "group_rows_kernel"]

#: Rows of a part at most: a multiple of every usual tile, and enough work to pay for a panel.
_PART_ROWS = 256

#: Numbers of an extent.
_EXTENT_NUMBERS = 2


@dataclass(frozen=True)
class GroupLayout:
    """The list of every expert's rows in memory, as int64 numbers.

    First the number of *parts*; then three numbers for each part: its expert, where its rows start
    in the list, how many there are; then, at :attr:`first_row`, the list: the numbers of all rows,
    expert by expert, in their order. An expert has a part if it has rows, and several if it has
    more than :attr:`part_rows`.

    Attributes:
        experts: how many experts there are.
        rows: how many rows are shared out.
        part_rows: rows of a part at most.
    """

    experts: int
    rows: Dim
    part_rows: int = _PART_ROWS

    @property
    def most_parts(self) -> Dim:
        """More parts than this there cannot be."""
        return minimum(self.experts, self.rows) + floor_div(self.rows, self.part_rows)

    @cached_property
    def first_row(self) -> int:
        """The position at which the list of rows starts."""
        return 1 + 3 * bounds(self.most_parts)[1]

    @cached_property
    def type(self) -> TensorType:
        """The type of the memory."""
        return TensorType(INT64, (self.first_row + bounds(self.rows)[1],))

    def describe(self, text: KernelText) -> str:
        """The layout in a line of a kernel's text."""
        rows = text.dim(self.rows)
        return f"{rows} rows, {self.experts} experts, parts of {self.part_rows}"


@dataclass(frozen=True, eq=False)
class Routing:
    """The assignment of a node's rows to experts, which can be read after a run.

    The memory keeps the list until the next run begins, and behind it the extent that the run was
    made with: two numbers, see :attr:`GroupRows.masked_tail`.

    Attributes:
        node: the label of the node, or of the first of several that share the expert ids.
        shape: of the expert ids; rows are their elements in C order.
        layout: how the rows of every expert are listed.
        groups: where.
        nested: whether it is of a nested graph, which a run may leave out or run many times.
    """

    node: str
    shape: tuple[Dim, ...]
    layout: GroupLayout
    groups: LoweredBuffer
    nested: bool = False

    @staticmethod
    def memory(layout: GroupLayout) -> TensorType:
        """The type of :attr:`groups`: the list, then the extent."""
        return TensorType(INT64, (bounds(layout.type.size)[1] + _EXTENT_NUMBERS,))

    @property
    def chooses(self) -> bool:
        """Whether there is a choice: not where every row goes to the only expert."""
        return self.layout.experts > 1


@dataclass(frozen=True, eq=False)
class GroupRows(CpuKernel):
    """Lists the rows of every expert, as :class:`GroupLayout` says.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        row: the axis of rows.
        expert: the expert of a row, an int64 within the experts there are.
        groups: the argument that the list goes to.
        layout: how.
        masked_tail: the argument that holds the extent of the run, two numbers: how many of the
            last of so many equal parts of the rows are padding; zeros where there is none. All rows
            are listed; the extent is copied behind the list, for counts of the rows in use.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    row: Symbol
    expert: Scalar
    groups: int
    layout: GroupLayout
    masked_tail: int
    variables: tuple[Symbol, ...] = ()

    renderer: ClassVar[str] = "group_rows"

    def describe(self, text: KernelText) -> None:
        text.line(0, "group rows by expert")
        text.head(self.args)
        text.line(1, f"rows {text.axis(self.row)}")
        text.line(1, f"to b{self.groups}: {self.layout.describe(text)}")
        text.line(1, f"then the extent in b{self.masked_tail}")
        text.named("expert", [self.expert])

    @property
    def listing(self) -> tuple[int, object]:
        return self.groups, self.layout

    @property
    def extent(self) -> int:
        return 1

    @property
    def parallel(self) -> bool:
        return False

    @property
    def extent_positions(self) -> range:
        """The positions behind the list that the numbers of the extent go to."""
        end = bounds(self.layout.type.size)[1]
        return range(end, end + _EXTENT_NUMBERS)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch: a number for each expert."""
        return 8 * self.layout.experts


def group_rows_kernel(
    build: KernelBuilder,
    ids: Value,
    groups: LoweredBuffer,
    layout: GroupLayout,
    variables: tuple[Symbol, ...],
) -> GroupRows:
    """The kernel that lists, in ``groups``, the rows by their expert ``ids``, in C order."""
    row = axis("row", layout.rows)
    number = build.data_index(ids, unravel(ids.shape, row), layout.experts, wrap=True)
    expert = IndexValue(number, INT64, build.bindings_of(number))
    target = build.argument(groups, writes=True)
    extent = LoweredBuffer(
        TensorType(INT64, (_EXTENT_NUMBERS,)), Role.MASKED_TAIL, f"{groups.name}.masked_tail"
    )
    masked_tail = build.argument(extent, reads=True)
    (symbol,) = symbols_of([row])
    return GroupRows(build.args, symbol, expert, target, layout, masked_tail, variables)
