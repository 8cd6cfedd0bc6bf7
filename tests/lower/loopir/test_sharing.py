"""Equal scalars of several stages as one."""

from __future__ import annotations

from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import Apply, Load, Number, Ref, Scalar, Stage, Store
from ostinato.lower.loopir.sharing import with_shared_scalars
from ostinato.variables import axis, symbols


def divisor(value: float = 255.0, name: str = "r") -> Scalar:
    return Apply("divide", (Ref(name, FLOAT32), Number(value, FLOAT32)), FLOAT32)


def test_equal_scalars_become_one() -> None:
    column = axis("i", 8)
    (symbol,) = symbols(column)
    row = Apply("multiply", (Load(0, column, FLOAT32), divisor()), FLOAT32)
    first, second = with_shared_scalars(
        [
            Stage((symbol,), (Store(1, column, row),)),
            Stage((), (Store(2, 0, divisor()), Store(3, 0, divisor(127.0)))),
        ]
    )
    (inside,), (shared, other) = first.statements, second.statements
    assert isinstance(inside.value, Apply)
    assert inside.value.operands[1] is shared.value
    assert other.value is not shared.value
    assert first.axes == (symbol,)


def test_what_reads_memory_or_differs_stays_apart() -> None:
    loads = [Apply("exp", (Load(0, 0, FLOAT32),), FLOAT32) for _ in range(2)]
    numbers = [Number(0.0, FLOAT32), Number(-0.0, FLOAT32)]
    (stage,) = with_shared_scalars(
        [Stage((), tuple(Store(n, 0, value) for n, value in enumerate([*loads, *numbers], 1)))]
    )
    assert len({id(statement.value) for statement in stage.statements}) == 4
    names = with_shared_scalars(
        [Stage((), (Store(1, 0, divisor(name="s")), Store(2, 0, divisor())))]
    )
    one, other = names[0].statements
    assert one.value is not other.value
