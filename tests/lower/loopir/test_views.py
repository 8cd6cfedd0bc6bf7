"""Index arithmetic: where elements stand behind views, and loops that become one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nodes import Load, Store, extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.lower.loopir.views import linear_index, reshape_index, unravel
from ostinato.variables import Dim, Expr, Symbol, Variable, axis, evaluate, substitute

sizes = st.lists(st.sampled_from([1, 1, 2, 3, 4, 6]), min_size=0, max_size=4)


def _symbol(dim: Dim) -> Symbol:
    assert isinstance(dim, Expr)
    (symbol,) = dim.terms[0][0]
    assert isinstance(symbol, Symbol)
    return symbol


@given(sizes)
def test_unravel_is_the_inverse_of_linear_index(shape: list[int]) -> None:
    for position in range(math.prod(shape)):
        assert linear_index(shape, unravel(shape, position)) == position


@st.composite
def _reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of one size: factors, grouped in two ways."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), max_size=5))

    def grouped() -> list[int]:
        ends = [*(i for i in range(1, len(factors)) if draw(st.booleans())), len(factors)]
        return [math.prod(factors[a:b]) for a, b in itertools.pairwise([0, *ends])]

    return grouped(), grouped()


@given(_reshapes())
def test_a_reshape_finds_each_element(shapes: tuple[list[int], list[int]]) -> None:
    source, target = shapes
    before = np.arange(math.prod(source)).reshape(source)
    after = before.reshape(target)
    axes = tuple(axis(f"i{n}", size) if size > 1 else 0 for n, size in enumerate(target))
    found = reshape_index(source, target, axes)
    for indices in np.ndindex(*target):
        values = {_symbol(a): i for a, i in zip(axes, indices, strict=True) if isinstance(a, Expr)}
        at = tuple(int(str(substitute(dim, values))) for dim in found)
        assert before[at] == after[indices]


def test_dims_that_a_reshape_leaves_alone_keep_their_index() -> None:
    b, n = Variable("b", 1, 8), Variable("n", 1, 64)
    i, j, k, m = axis("i", b), axis("j", n), axis("k", 2), axis("m", 8)
    assert reshape_index((b, n, 16), (b, n, 2, 8), (i, j, k, m)) == (i, j, 8 * k + m)
    assert reshape_index((b, n, 2, 8), (b * n, 16), (n * i + j, axis("c", 16)))[:2] == (i, j)


@pytest.mark.parametrize("source", [(0,), (3, 0), (0, 0)])
def test_a_reshape_of_nothing_has_indices(source: tuple[int, ...]) -> None:
    assert len(reshape_index(source, (0, 2), (axis("i", 0), axis("j", 2)))) == len(source)


# -- merging axes ----------------------------------------------------------------------------------


def _copy(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[Symbol, ...], Store]:
    """A store in C order of what is loaded from an array whose axes come in another order."""
    axes = [axis(f"i{n}", size) for n, size in enumerate(shape)]
    source = linear_index([shape[n] for n in order], [axes[n] for n in order])
    return tuple(map(_symbol, axes)), Store(1, linear_index(shape, axes), Load(0, source, FLOAT32))


@pytest.mark.parametrize(
    ("shape", "order", "extents"),
    [
        ((2, 3, 4), (0, 1, 2), [24]),
        ((2, 3, 4), (2, 0, 1), [6, 4]),
        ((2, 3, 4), (1, 2, 0), [2, 12]),
        ((2, 3, 4), (2, 1, 0), [2, 3, 4]),
        ((2, 3, 4, 5), (2, 3, 0, 1), [6, 20]),
    ],
)
def test_axes_that_walk_memory_as_one_are_one(
    shape: tuple[int, ...], order: tuple[int, ...], extents: list[int]
) -> None:
    axes, _ = merge_axes(*_one(_copy(shape, order)))
    assert [extent_of(a) for a in axes] == extents


@given(st.permutations(range(4)), st.lists(st.integers(2, 4), min_size=4, max_size=4))
def test_merged_loops_do_the_same_in_the_same_order(order: list[int], shape: list[int]) -> None:
    axes, statements = _one(_copy(tuple(shape), tuple(order)))
    assert _trace(*merge_axes(axes, statements)) == _trace(axes, statements)


def _one(loop: tuple[tuple[Symbol, ...], Store]) -> tuple[tuple[Symbol, ...], tuple[Store]]:
    return loop[0], (loop[1],)


def _trace(axes: tuple[Symbol, ...], statements: tuple[object, ...]) -> list[list[int]]:
    """The values of every index expression at every point, in order."""
    expressions = index_expressions(statements)  # type: ignore[arg-type]
    points = itertools.product(*(range(a.max + 1) for a in axes))
    names = [a.name for a in axes]
    return [
        [evaluate(e, dict(zip(names, point, strict=True))) for e in expressions] for point in points
    ]
