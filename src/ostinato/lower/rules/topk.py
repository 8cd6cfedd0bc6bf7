"""The kernel of ``topk`` as GPUs have it, and the rows that such kernels and sorts work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.lower.loopir.kernel import Kernel
from ostinato.records import dataclass
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["Rows", "TopK", "rows_of"]


class Rows(NamedTuple):
    """The rows of an operand ``[outer, n, inner]`` in C order, of which ``k`` elements are wanted.

    Attributes:
        rows: their number, ``outer * inner``.
        inner: elements from one of a row to the next.
        n: elements of a row.
        k: elements of a result's row.
    """

    rows: Dim
    inner: Dim
    n: Dim
    k: Dim

    def describe(self, text: KernelText) -> None:
        """Add a line to a kernel's text."""
        text.line(1, f"rows, inner, n, k = {', '.join(map(text.dim, self))}")

    @property
    def fixed(self) -> bool:
        """Whether no size is symbolic."""
        return all(isinstance(dim, int) for dim in self)


def rows_of(root: Node) -> Rows:
    """The rows of a ``topk`` node."""
    (x,) = root.inputs
    axis: int = root.attrs["axis"]
    inner = prod(x.shape[axis + 1 :])
    return Rows(prod(x.shape[:axis]) * inner, inner, x.shape[axis], root.attrs["k"])


@dataclass(frozen=True, eq=False)
class TopK(Kernel):
    """Chooses elements of every row by rank.

    NaN ranks as the greatest; of equal elements the one at the lower position comes first. The
    operand is ``[outer, n, inner]``, the results are ``[outer, k, inner]``, all in C order.

    Attributes:
        args: the operand, the values and the positions.
        x, values, positions: their places among the arguments.
        rows: the rows.
        largest: whether the greatest element is the best.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    x: int
    values: int
    positions: int
    rows: Rows
    largest: bool
    variables: tuple[Symbol, ...] = ()

    def describe(self, text: KernelText) -> None:
        text.line(0, f"topk, {'greatest' if self.largest else 'least'} first")
        text.head(self.args)
        self.rows.describe(text)
        text.line(1, f"of b{self.x} to b{self.values} and b{self.positions}")

    def variable_free(self) -> bool:
        return self.rows.fixed
