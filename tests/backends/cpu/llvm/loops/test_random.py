"""Random nests over integers against NumPy: every element must be exactly right.

Buffers are exactly as large as the indices that a nest may read, and lie between guard pages, so
a lane that reads what its guard forbids does not go unnoticed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from ostinato.dtypes import INT32, INT64
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Stage,
    Store,
)
from ostinato.variables import (
    Dim,
    Expr,
    Maximum,
    Minimum,
    Quotient,
    Remainder,
    Symbol,
    Variable,
    axis,
    maximum,
    minimum,
    symbols,
)

BINARY = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "subtract": np.subtract}
COMPOSITE = {
    Quotient: np.floor_divide,
    Remainder: np.remainder,
    Minimum: np.minimum,
    Maximum: np.maximum,
}


def symbol(expr: Dim) -> Symbol:
    (found,) = symbols(expr)
    return found


@dataclass
class Maker:
    """Makes expressions together with their values at every point of the grid of axes."""

    choose: random.Random
    axes: list[Dim]
    extents: list[int]
    variable: Variable | None
    buffers: list[np.ndarray] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    made: list[tuple[Scalar, np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        grids = np.meshgrid(*map(np.arange, self.extents), indexing="ij")
        for expr, grid in zip(self.axes, grids, strict=True):
            self.values[symbol(expr).name] = grid
        if self.variable is not None:
            self.values[self.variable.name] = np.full(self.extents, self.extents[-1])

    def index(self, depth: int = 2) -> Dim:
        """An index expression over the axes."""
        pick = self.choose
        if depth == 0:
            return pick.choice([*self.axes, *self.axes, pick.randrange(5)])
        x, y = self.index(depth - 1), self.index(depth - 1)
        match pick.randrange(7):
            case 0:
                return x // pick.choice([2, 3, 8, 16, 32])
            case 1:
                return x % pick.choice([2, 5, 8, 16, 64])
            case 2:
                return pick.choice([minimum, maximum])(x, y)
            case 3:
                return x * pick.choice([-1, 1, 2, 7])
            case _:
                return x * pick.choice([1, 1, 3, 16]) + y * pick.choice([-1, 1, 4, 32])

    def value_of(self, dim: Dim) -> np.ndarray:
        if isinstance(dim, int):
            return np.full(self.extents, dim)
        total = np.full(self.extents, dim.const)
        for monomial, factor in dim.terms:
            term = np.full(self.extents, factor)
            for atom in monomial:
                if isinstance(atom, Symbol):
                    term = term * self.values[atom.name]
                else:
                    operands = self.value_of(atom.left), self.value_of(atom.right)
                    term = term * COMPOSITE[type(atom)](*operands)
            total = total + term
        return total

    def load(self, index: Dim, mask: np.ndarray, bindings=(), high: int = 1 << 30) -> tuple:
        where = self.value_of(index)
        low, top = (where[mask].min(), where[mask].max()) if mask.any() else (0, -1)
        rng = np.random.default_rng(self.choose.randrange(1 << 30))
        buffer = rng.integers(0, high, top - low + 1, np.int32)
        self.buffers.append(buffer)
        values = np.zeros(self.extents, np.int32)
        values[mask] = buffer[where[mask] - low]
        node = Load(len(self.buffers) - 1, index - int(low), INT32, bindings)
        return node, values

    def picked(self, mask: np.ndarray) -> tuple[Scalar, np.ndarray]:
        """A load at an index from memory."""
        number, values = self.load(self.index(), mask, high=50)
        name = f"d{len(self.values)}"
        data = Symbol(name, 0, 49)
        self.values[name] = values
        as_int64 = Apply("cast", (number,), INT64, (("dtype", INT64),))
        index = Expr({(data,): self.choose.choice([1, 3])}, 0) + self.index(1)
        return self.load(index, mask, (Binding(data, as_int64),))

    def scalar(self, depth: int, mask: np.ndarray) -> tuple[Scalar, np.ndarray]:
        pick = self.choose.randrange(10)
        if depth == 0 or pick < 2:
            return self.leaf(mask)
        if pick < 5:
            return self.guard(depth, mask)
        if pick == 5 and self.made and mask.all():
            return self.choose.choice(self.made)
        name = self.choose.choice(list(BINARY))
        (x, a), (y, b) = self.scalar(depth - 1, mask), self.scalar(depth - 1, mask)
        result = Apply(name, (x, y), INT32), BINARY[name](a, b)
        if mask.all():
            self.made.append(result)
        return result

    def leaf(self, mask: np.ndarray) -> tuple[Scalar, np.ndarray]:
        match self.choose.randrange(6):
            case 0:
                number = self.choose.randrange(-9, 9)
                return Number(number, INT32), np.full(self.extents, number, np.int32)
            case 1:
                index = self.index()
                return IndexValue(index, INT32), self.value_of(index).astype(np.int32)
            case 2:
                return self.picked(mask)
            case _:
                return self.load(self.index(), mask)

    def guard(self, depth: int, mask: np.ndarray) -> tuple[Scalar, np.ndarray]:
        count = self.choose.choice([1, 1, 2])
        conditions = tuple(self.index() - self.choose.randrange(20) for _ in range(count))
        holds = np.ones(self.extents, bool)
        for condition in conditions:
            holds &= self.value_of(condition) >= 0
        body, a = self.scalar(depth - 1, mask & holds)
        otherwise, b = self.scalar(depth - 1, mask & ~holds)
        return Guard(conditions, body, otherwise, INT32), np.where(holds, a, b)


def make_case(seed: int) -> tuple[LoopNest, list[np.ndarray], np.ndarray, dict[str, int]]:
    """A nest, its arguments, what its last argument should hold, and the Variable's value."""
    choose = random.Random(seed)
    last = choose.choice([1, 3, 8, 15, 16, 17, 40, 64, 70, 130])
    extents = [choose.randrange(1, 6) for _ in range(choose.randrange(3))] + [last]
    variable = Variable("S", 0, 200) if choose.random() < 0.4 else None
    dims = [*extents[:-1], last if variable is None else variable]
    axes = [axis(f"i{n}", dim) for n, dim in enumerate(dims)]
    maker = Maker(choose, axes, extents, variable)
    value, expected = maker.scalar(3, np.ones(extents, bool))
    inner = choose.randrange(len(axes) + 1)
    reduces = inner < len(axes) and choose.random() < 0.5
    arguments = [*maker.buffers]
    out: Dim = 0
    for position in range(inner if reduces else len(axes)):
        out = out * dims[position] + axes[position]
    if reduces:
        op = choose.choice(["sum", "max"])
        reduced = tuple(range(inner, len(axes)))
        expected = getattr(np, op)(expected, axis=reduced).astype(np.int32)
        stages = (
            Stage(tuple(map(symbol, axes[inner:])), (Reduce("r", op, value, INT32),)),
            Stage((), (Store(len(arguments), out, Ref("r", INT32)),)),
        )
    else:
        store = Store(len(arguments), out, value)
        stages = (Stage(tuple(map(symbol, axes[inner:])), (store,)),)
    outer = tuple(map(symbol, axes[:inner]))
    lane = outer[-1] if outer and choose.random() < 0.5 else None
    args = (*[Arg(INT32)] * len(arguments), Arg(INT32, False, True))
    nest = LoopNest(
        args,
        outer[:-1] if lane else outer,
        stages,
        inner_axis=lane,
        block=choose.choice([64, 1024, 24]),
        variables=() if variable is None else (variable.symbol,),
    )
    arguments.append(np.zeros(np.size(expected), np.int32))
    return nest, arguments, np.asarray(expected), {} if variable is None else {"S": last}


@pytest.mark.parametrize("seed", range(60))
def test_random_nest(compile_nest, level, seed):
    nest, arguments, expected, variables = make_case(seed)
    result = compile_nest(nest, level)(*arguments, **variables)[-1]
    np.testing.assert_array_equal(result.reshape(expected.shape), expected)
