"""Ops about sizes that depend on data.

:data:`BIND_SIZE` gives a :class:`~ostinato.variables.DataVariable` the number that the graph has
computed for it. Whatever has that Variable among its sizes runs after it. The other ops do not
compute how large their results are: the size is an attribute, bound before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, FLOAT32, INT64
from ostinato.ir.facts import Fact
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.variables import Expr, Symbol, data_symbols, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import Value

__all__ = ["BIND_SIZE", "FAMILY", "FLAT_NONZERO", "NON_MAX_SUPPRESSION", "REQUIRE"]


class BindSize(Op):
    """The integer scalar ``count``, which is the value of the data-dependent Variable ``size``.

    A run whose count is negative, or greater than the Variable's bound, is refused.
    """

    name = "bind_size"
    binds_size = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (count,) = operands
        self.expect(
            count.dtype == INT64 and count.ndim == 0, f"a size is an int64 scalar, got {count}"
        )
        size = attrs["size"]
        found = data_symbols(size) if isinstance(size, Expr) else frozenset[Symbol]()
        alone = len(found) == 1 and size == Expr({tuple(found): 1}, 0)
        self.expect(alone, f"size is a data-dependent Variable, got {size!r}")
        return (TensorType(INT64, ()),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return operands[0]


class Require(Op):
    """Its operand, where sizes meet ``size >= least``; a run with others is refused.

    ``problem`` has the words for sizes that do not.
    """

    takes_narrow = True
    name = "require"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        size, least, problem = attrs["size"], attrs["least"], attrs["problem"]
        self.expect(isinstance(size, int | Expr), f"size is a dim, got {size!r}")
        self.expect(isinstance(least, int), f"least is an int, got {least!r}")
        self.expect(isinstance(problem, str), f"problem is a string, got {problem!r}")
        self.expect_facts(operands, attrs)
        return operands

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        return [Fact(attrs["size"], attrs["least"], attrs["problem"])]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return operands[0]

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        return operands[0]


class FlatNonzero(Op):
    """The positions of the true elements of a vector of bools, in order.

    ``size`` is how many there are. Of more elements, the first count; for fewer, zeros follow.
    """

    name = "flat_nonzero"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (mask,) = operands
        self.expect(
            mask.dtype == BOOL and mask.ndim == 1, f"expected a vector of bools, got {mask}"
        )
        size = attrs["size"]
        fits = isinstance(size, int | Expr) and provably_nonnegative(size)
        self.expect(fits, f"size is a dim, got {size!r}")
        return (TensorType(INT64, (size,)),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (mask,), size = operands, attrs["size"]
        place, positions = self._moves(xp, mask, size)
        return xp.scatter_at(xp.full((size,), 0, INT64), [place], positions, "set")

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        (mask,), size = operands, attrs["size"]
        place, positions = self._moves(g, mask, g.dim_value(size))
        return g.scatter(g.full((size,), 0, INT64), place, positions)

    @staticmethod
    def _moves(xp: Any, mask: Any, nowhere: Any) -> tuple[Any, Any]:
        """The place of each position in the result, or ``nowhere``; and all positions."""
        rank = xp.cumsum(xp.cast(mask, INT64), axis=0) - 1
        return xp.where(mask, rank, nowhere), xp.iota(tuple(mask.shape), 0, INT64)


class NonMaxSuppression(Op):
    """Greedy choice of boxes that overlap little, class by class, the best scores first.

    Operands: boxes ``[batch, n, 4]``, scores ``[batch, classes, n]``, and three scalars: the most
    boxes of a class (int64), and the least overlap, as intersection over union, and the score
    (float32) that boxes must exceed to be suppressed and to be considered. ``centered``: boxes are
    ``(x, y, width, height)`` about their centers, else two opposite corners. A batch of scores
    ``[batch, classes, n]`` gives numbers of boxes of that shape, -1 behind the last one chosen.
    """

    name = "non_max_suppression"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 5)
        boxes, scores, most, overlap, score = operands
        self.expect(
            boxes.dtype == scores.dtype == FLOAT32
            and boxes.ndim == scores.ndim == 3
            and boxes.shape[2] == 4
            and boxes.shape[0] == scores.shape[0]
            and boxes.shape[1] == scores.shape[2],
            f"expected f32 boxes [batch,n,4] and scores [batch,classes,n], got {boxes}, {scores}",
        )
        limits = ((most, INT64), (overlap, FLOAT32), (score, FLOAT32))
        self.expect(
            all(limit == TensorType(dtype, ()) for limit, dtype in limits),
            f"limits are an i64 and two f32 scalars, got {most}, {overlap} and {score}",
        )
        self.expect(isinstance(attrs["centered"], bool), "centered is a bool")
        return (TensorType(INT64, scores.shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.non_max_suppression(*operands, centered=attrs["centered"])


BIND_SIZE, REQUIRE, FLAT_NONZERO = BindSize(), Require(), FlatNonzero()
NON_MAX_SUPPRESSION = NonMaxSuppression()

FAMILY: tuple[Op, ...] = (BIND_SIZE, REQUIRE, FLAT_NONZERO, NON_MAX_SUPPRESSION)
