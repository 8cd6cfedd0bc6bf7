"""Rows that a kernel keeps in the memory of earlier ones: the same bits, and less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules import table
from ostinato.backends.cpu.rules.share_temps import share_temps
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Arg, Load, Reduce, Scalar, Stage, Statement, Store
from ostinato.lower.loopir.nodes import Temp as Row
from ostinato.variables import Dim, Symbol, axis, symbols

SIZE = 40
ROW: Dim = axis("i", SIZE)
(INNER,) = symbols(ROW)

#: Numbers of the temps, after the two arguments.
X, Y, A, B, C = range(5)


def load(buffer: int, index: Dim = ROW) -> Load:
    return Load(buffer, index, FLOAT32)


def twice(value: Scalar) -> Scalar:
    return Apply("add", (value, value), FLOAT32)


def nest(*stages: tuple[Statement, ...], temps: int, axes: tuple[Symbol, ...] = ()) -> LoopNest:
    args = (Arg(FLOAT32, reads=True), Arg(FLOAT32, reads=False, writes=True))
    made = tuple(Stage((INNER,), stage) for stage in stages)
    return LoopNest(args, axes, made, (Row(FLOAT32, SIZE),) * temps)


def total(name: str, value: Scalar) -> Reduce:
    return Reduce(name, "sum", value, FLOAT32)


def test_a_row_takes_the_place_of_the_one_it_is_made_of() -> None:
    doubled = twice(load(A))
    shared = share_temps(
        nest(
            (Store(A, ROW, load(X)),),
            (Store(B, ROW, doubled), total("r", doubled)),
            (Store(Y, ROW, load(B)),),
            temps=2,
        )
    )
    assert len(shared.temps) == 1
    last = shared.stages[1].statements[-1]  # the sum reads the element before it is replaced
    assert isinstance(last, Store)
    assert last.buffer == A


def test_a_row_takes_the_place_of_one_that_is_read_no_more() -> None:
    shared = share_temps(
        nest(
            (Store(A, ROW, load(X)),),
            (total("r", load(A, SIZE - 1 - ROW)),),
            (Store(B, ROW, load(X)),),
            (Store(Y, ROW, load(B)),),
            temps=2,
        )
    )
    assert len(shared.temps) == 1


@pytest.mark.parametrize(
    "stages",
    [
        # read again later
        (
            (Store(A, ROW, load(X)),),
            (Store(B, ROW, twice(load(A))),),
            (Store(Y, ROW, Apply("add", (load(A), load(B)), FLOAT32)),),
        ),
        # read elsewhere than where it is written
        (
            (Store(A, ROW, load(X)),),
            (Store(B, ROW, load(A, SIZE - 1 - ROW)),),
            (Store(Y, ROW, load(B)),),
        ),
        # written in the other order than it is read
        (
            (Store(A, ROW, load(X)),),
            (Store(B, SIZE - 1 - ROW, load(A)),),
            (Store(Y, ROW, load(B)),),
        ),
        # written by parts
        (
            (Store(A, ROW, load(X)),),
            (Store(B, ROW, load(A), conditions=(ROW - 3,)),),
            (Store(Y, ROW, load(B)),),
        ),
        # added to
        (
            (Store(A, ROW, load(X)), Store(B, ROW, load(X))),
            (Store(B, ROW, load(A), update="add"),),
            (Store(Y, ROW, load(B)),),
        ),
    ],
)
def test_rows_that_stay_apart(stages: tuple[tuple[Statement, ...], ...]) -> None:
    whole = nest(*stages, temps=2)
    assert share_temps(whole) is whole


def test_of_two_rows_that_a_stage_makes_one_takes_a_place() -> None:
    a, b = load(A), load(B)
    shared = share_temps(
        nest(
            (Store(A, ROW, load(X)), Store(B, ROW, twice(load(X)))),
            (
                Store(C, ROW, Apply("add", (a, b), FLOAT32)),
                Store(C + 1, ROW, Apply("subtract", (a, b), FLOAT32)),
            ),
            (Store(Y, ROW, Apply("multiply", (load(C), load(C + 1)), FLOAT32)),),
            temps=4,
        )
    )
    assert len(shared.temps) == 3


def temps(lowered: Any) -> int:
    return sum(len(kernel.temps) for kernel in lowered.kernels)


def chain(rows: Dim, size: int) -> ost.Graph:
    """A norm of a softmax of a gelu, spelled out."""
    g = ost.Graph("chain")
    x = g.gelu(g.input("x", (rows, size)))
    power = g.exp(x - g.max(x, -1, keepdims=True))
    share = power / g.sum(power, -1, keepdims=True)
    centred = share - g.sum(share, -1, keepdims=True) / size
    squares = g.sum(centred * centred, -1, keepdims=True)
    g.set_outputs([centred * g.rsqrt(squares + 1e-5)])
    return g


@pytest.mark.parametrize("size", [1, 5, 16, 31, 64, 257, 1031])
def test_chains_of_row_wise_ops(
    lowered: Callable[..., Any], level: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    shared = lowered(chain(3, size), level)
    monkeypatch.setattr(table, "share_temps", lambda nest: nest)
    apart = lowered(chain(3, size), level)
    if size > 1:
        assert temps(shared) < temps(apart)
    assert shared({"x": x})[0].tobytes() == apart({"x": x})[0].tobytes()


def test_unoptimised_rows_stay_apart() -> None:
    settings = lowering_options(ost.CompileOptions(optimize=False), TargetSpec.host())
    assert not settings.shared_temps
