"""Random programs on aliasing views: however nodes are fused and ordered, no byte differs.

The truth is the same ops, each in a session of its own, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.plan.buffer import Buffer
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

Array = np.ndarray[Any, Any]

BUFFERS = 3
ELEMENTS = 14
#: Shapes by number of elements.
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {3: ((3,),), 6: ((6,), (2, 3))}

UNARY = ("neg", "sin", "tanh")
BINARY = ("add", "subtract", "maximum")


@dataclass(frozen=True)
class Place:
    """Some elements of a buffer of the user's, or of the result of an earlier call."""

    result: bool
    number: int
    start: int
    count: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    method: str
    operands: tuple[Place, ...]
    out: Place | None
    count: int
    held: bool


class Programs:
    """Draws calls; few methods and shapes, so that kernels are found again."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.calls: list[Call] = []

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def draw(self) -> list[Call]:
        for _ in range(int(self.rng.integers(4, 13))):
            self.calls.append(self.call())
        return self.calls

    def call(self) -> Call:
        count = 3 if self.chance(0.2) else 6
        shape = self.choice(SHAPES[count])
        kind = self.rng.random()
        if kind < 0.3:
            method, arity = self.choice(UNARY), 1
        elif kind < 0.75:
            method, arity = self.choice(BINARY), 2
        elif kind < 0.85:
            method, arity = "halve", 1
        elif kind < 0.93 or shape != (6,):
            method, arity = "cumsum", 1
        else:
            method, arity = "update", 2
        operands = [self.place(count, shape) for _ in range(arity)]
        if method == "update":
            operands[1] = self.place(3, (3,))
        out = self.place(count, shape, target=True) if self.chance(0.4) else None
        if out is not None and self.chance(0.3):
            out = operands[0]
        return Call(method, tuple(operands), out, count, self.chance(0.3))

    def place(self, count: int, shape: tuple[int, ...], *, target: bool = False) -> Place:
        fitting = [i for i, call in enumerate(self.calls) if call.count >= count]
        if fitting and self.chance(0.2 if target else 0.6):
            number = fitting[-1] if self.chance(0.6) else self.choice(fitting)
            spare = self.calls[number].count - count
            return Place(True, number, int(self.rng.integers(spare + 1)), count, shape)
        start = int(self.rng.integers(ELEMENTS - count + 1))
        return Place(False, int(self.rng.integers(BUFFERS)), start, count, shape)


class Machine:
    """Makes the calls of a program on buffers of its own."""

    def __init__(self, ex: ost.GraphExecutor, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.arrays = [rng.uniform(-1, 1, ELEMENTS).astype(np.float32) for _ in range(BUFFERS)]
        self.buffers = [ex.buffer(array) for array in self.arrays]
        self.results: dict[int, Buffer] = {}

    def encode(self, s: ost.GraphSession, calls: list[Call], number: int) -> None:
        """One call; results that nothing needs any more are let go."""
        call = calls[number]
        operands = [self.find(s, place) for place in call.operands]
        out = None if call.out is None else self.find(s, call.out)
        if call.method == "halve":
            made = s.multiply(operands[0], 0.5, out=out)
        elif call.method == "update":
            made = s.dynamic_update_slice(operands[0], operands[1], (2,), out=out)
        elif call.method == "cumsum":
            made = s.cumsum(operands[0], 0, out=out)
        else:
            made = getattr(s, call.method)(*operands, out=out)
        self.results[number] = made
        needed = {i for i, c in enumerate(calls) if c.held}
        for later in calls[number + 1 :]:
            places = later.operands if later.out is None else (*later.operands, later.out)
            needed |= {p.number for p in places if p.result}
        self.results = {i: b for i, b in self.results.items() if i in needed}

    def find(self, s: ost.GraphSession, place: Place) -> Buffer:
        whole = self.results[place.number] if place.result else self.buffers[place.number]
        part = whole.view(4 * place.start, 4 * place.count)
        return s.reshape(part, place.shape)

    def contents(self) -> list[bytes]:
        """Every byte that can still be read."""
        readable = [*self.buffers, *(self.results[i] for i in sorted(self.results))]
        return [buffer.copyout().tobytes() for buffer in readable]

    def restore(self) -> None:
        for buffer, array in zip(self.buffers, self.arrays, strict=True):
            buffer.copyin(array)


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=1).context)


def one_by_one(ex: ost.GraphExecutor, calls: list[Call], seed: int) -> list[bytes]:
    machine = Machine(ex, seed)
    for number in range(len(calls)):
        with ex.begin() as s:
            machine.encode(s, calls, number)
    return machine.contents()


@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=[pytest.mark.slow] if n >= 200 else []) for n in range(0, 500, 50)],
)
def test_every_schedule_gives_the_same_bytes(ex: ost.GraphExecutor, first: int) -> None:
    fused = moved = 0
    for seed in range(first, first + 50):
        calls = Programs(seed).draw()
        truth = one_by_one(ex, calls, seed)
        for begin, options in (
            (ex.begin, {}),
            (ex.begin, {"fuse": True, "reorder": True}),
            (ex.begin_recorded, {}),
        ):
            machine = Machine(ex, seed)
            session = begin()
            for number in range(len(calls)):
                machine.encode(session, calls, number)
            session.finish(**options)
            assert machine.contents() == truth, f"seed {seed}"
        graph = session.graph
        joint = graph.fuse()
        for other in (graph, joint, graph.reorder(), joint.reorder(), graph.reorder().fuse()):
            machine.restore()
            other.replay()
            assert machine.contents() == truth, f"seed {seed}\n{graph}\n{other}"
        fused += joint.fused
        moved += joint.reorder().reordered
    assert fused > 10
    assert moved > 50
