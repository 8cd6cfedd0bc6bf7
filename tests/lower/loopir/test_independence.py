"""Proofs that points of a nest touch different elements: what follows, and what must not."""

from __future__ import annotations

import pytest

from ostinato.dtypes import FLOAT32, INT64
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.independence import (
    distinct_axes,
    have_any_order,
    is_concurrent,
    only_store,
    reads_its_writes,
)
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Arg, Binding, Load, Number, Stage, Store, Temp
from ostinato.variables import Dim, Expr, Symbol, axis, symbols


def of(symbol: Symbol) -> Expr:
    return Expr({(symbol,): 1}, 0)


N = Symbol("N", 1, 90)
ROW, COLUMN = axis("i", 5), axis("j", 7)
WIDE = axis("k", of(N))
PLACE = Symbol("d", -(1 << 40), 1 << 40)
ONE = Number(1.0, FLOAT32)


def distinct(index: Dim, *conditions: Dim, axes: tuple[Dim, ...] = (ROW, COLUMN)) -> set[str]:
    """Names of the axes that are found, where ``d`` is read from buffer 1."""
    loops = tuple(symbol for dim in axes for symbol in symbols(dim))
    binding = Binding(PLACE, Load(1, ROW, INT64))
    store = Store(0, index, ONE, (binding,), conditions=conditions)
    found = distinct_axes(index, conditions, loops, Dependences([Stage((), (store,))]))
    return {symbol.name for symbol in found}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (ROW * 7 + COLUMN, {"i", "j"}),
        (COLUMN * 5 + ROW, {"i", "j"}),
        (34 - ROW * 7 - COLUMN, {"i", "j"}),
        (ROW * 100 + COLUMN * 3 + 2, {"i", "j"}),
        (ROW * 6 + COLUMN, set()),  # row 0 reaches into row 1
        (ROW + COLUMN, set()),
        (ROW * 7, {"i"}),  # all columns touch one element
        ((ROW * 7 + COLUMN) // 2, set()),
    ],
)
def test_digits(index: Dim, expected: set[str]) -> None:
    assert distinct(index) == expected


def test_symbolic_weights() -> None:
    assert distinct(ROW * of(N) + WIDE, axes=(ROW, WIDE)) == {"i", "k"}
    assert distinct(ROW * (of(N) - 1) + WIDE, axes=(ROW, WIDE)) == set()


def test_places_that_are_read_from_memory() -> None:
    """Columns differ wherever the rows go, if the place is known to lie within the matrix."""
    place = of(PLACE)
    assert distinct(place * 7 + COLUMN, place, 4 - place) == {"j"}
    assert distinct(place * 7 + COLUMN) == set()
    assert distinct(place + COLUMN * 5, place, 4 - place) == {"j"}
    assert distinct(place + COLUMN * 5, place, 5 - place) == set()


def test_stages() -> None:
    stage_axes = tuple(symbols(COLUMN))

    def concurrent(*stores: Store) -> bool:
        stage = Stage(stage_axes, stores)
        return is_concurrent(stage, Dependences([stage]))

    assert concurrent(Store(0, COLUMN, ONE))
    assert concurrent(Store(0, COLUMN, Load(0, COLUMN, FLOAT32)))
    assert not concurrent(Store(0, COLUMN, Load(0, COLUMN + 1, FLOAT32)))
    assert not concurrent(Store(0, 0, ONE, update="add"))
    assert not concurrent(Store(0, COLUMN, ONE), Store(0, COLUMN + 1, ONE))
    assert reads_its_writes([Store(0, ROW, Load(0, COLUMN, FLOAT32))])
    assert not reads_its_writes([Store(0, ROW, Load(1, COLUMN, FLOAT32))])


def test_stages_of_one_constant_have_any_order() -> None:
    first, second = Stage((), (Store(0, 1, ONE),)), Stage((), (Store(0, 1, ONE),))
    assert have_any_order([first, second])
    assert not have_any_order([first, Stage((), (Store(0, 1, Number(2.0, FLOAT32)),))])
    assert not have_any_order([first, Stage((), (Store(0, 1, ONE, update="add"),))])
    twice = Apply("add", (ONE, ONE), FLOAT32)
    assert not have_any_order([Stage((), (Store(0, 1, twice),))])


def test_an_only_store_is_of_own_elements_in_a_nest_without_temps() -> None:
    args = (Arg(FLOAT32), Arg(FLOAT32, reads=False, writes=True))
    (outer,), (inner,) = symbols(ROW), symbols(COLUMN)
    copy, moved = (Store(1, ROW, Load(source, ROW + source, FLOAT32)) for source in (0, 1))
    alone = (Stage((), (copy,)),)
    assert only_store(LoopNest(args, (outer,), alone)) is copy
    assert only_store(LoopNest(args, (outer,), alone, (Temp(FLOAT32, 1),))) is None
    for stages in ((Stage((), (moved,)),), (Stage((inner,), (copy,)),), alone * 2):
        assert only_store(LoopNest(args, (outer,), stages)) is None
