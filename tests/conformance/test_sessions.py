"""Every op as a method of a session, in both modes, against the float64 oracle."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.devices.catalogue import REFUSED
from tests.devices.registered import open_session

from .compare import assert_close
from .draw import Draw
from .recipes import DATA_SIZED, recipes

pytestmark = pytest.mark.needs("single_ops")

RECIPES = {name: entry for name, entry in recipes().items() if name not in DATA_SIZED}

#: Each op with up to two of its dtypes, others with each op: the sweep of graphs, whose kernels
#: these are, has all of them. Two more are slow.
CASES = [
    pytest.param(name, dtype, marks=[] if place < 2 else [pytest.mark.slow])
    for number, (name, (_, dtypes)) in enumerate(RECIPES.items())
    for place, dtype in enumerate([*dtypes, *dtypes][number % len(dtypes) :][: min(4, len(dtypes))])
]

Array = np.ndarray[Any, Any]


class SessionDraw(Draw):
    """Operands that are buffers; the recipes call the methods of a session."""

    def __init__(
        self,
        executor: ost.GraphExecutor,
        session: ost.GraphSession | Redirected,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(session, rng)
        self.executor = executor

    def holding(self, array: Array) -> Any:
        return self.executor.buffer(array)


class Redirected:
    """A session whose methods write all results to buffers brought for them, all ones before."""

    def __init__(self, executor: ost.GraphExecutor, session: ost.GraphSession) -> None:
        self.executor = executor
        self.session = session

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.session, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            outs = [self.executor.buffer(np.ones(b.shape, b.dtype.numpy)) for b in listed(made)]
            return method(*args, **kwargs, out=tuple(outs) if isinstance(made, tuple) else outs[0])

        return call


@pytest.fixture(scope="module")
def executor(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=2).context)


def listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def by_oracle(name: str, dtype: str, seed: int) -> list[Array]:
    graph = ost.Graph(name)
    draw = Draw(graph, np.random.default_rng(seed))
    graph.set_outputs(listed(RECIPES[name][0](draw, dtype)))
    return list(ost.reference.evaluate(graph, draw.arrays))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_op(name: str, dtype: str, executor: ost.GraphExecutor) -> None:
    seed = zlib.crc32(f"{name} {dtype}".encode())
    results = []
    for begin, redirects in (
        (executor.begin, False),
        (executor.begin_recorded, False),
        (executor.begin, True),
    ):
        try:
            with begin() as session:
                methods = Redirected(executor, session) if redirects else session
                draw = SessionDraw(executor, methods, np.random.default_rng(seed))
                made = listed(RECIPES[name][0](draw, dtype))
        except ost.PlanError as error:
            if "decides which ops of its own plan run" not in str(error):
                raise
            pytest.skip(f"{REFUSED}{name} is a loop on this device, and sessions have none")
        results.append([buffer.copyout() for buffer in made])
    direct, recorded, redirected = results
    for i, truth in enumerate(by_oracle(name, dtype, seed)):
        assert_close(direct[i], truth, f"{name} result {i}")
        assert direct[i].tobytes() == recorded[i].tobytes() == redirected[i].tobytes()
