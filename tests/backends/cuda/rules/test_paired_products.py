"""Two products of the same rows as one kernel: which are, which are not, and their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.capabilities import CAPABILITIES
from ostinato.backends.cuda.rules.paired_products import PairedMatmul, with_pairs
from ostinato.backends.cuda.rules.table import CudaLowering, lower_for_cuda
from ostinato.ir.graph import Value
from ostinato.lower.control import Control, ControlKind
from ostinato.lower.program import Call
from ostinato.passes.pipeline import run_passes
from ostinato.records import replace
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.cuda_emulation import backend
from tests.devices.cuda_emulation.backend import TARGET
from tests.devices.registered import open_session

_ROWS, _DEPTH, _COLUMNS = 70, 40, 72


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ost.Session:
    """The emulated GPU with kernels that copy operands in bulk."""
    monkeypatch.setattr(backend, "TARGET", replace(TARGET, bulk_tiles=True))
    return open_session("cudaemu")


def drawn(seed: int) -> Draw:
    return Draw(ost.Graph("pairs"), np.random.default_rng(seed))


def calls(graph: ost.Graph, *, bulk_tiles: bool = True) -> list[Call]:
    explicit, _ = run_passes(graph, capabilities=CAPABILITIES)
    return lower_for_cuda(explicit, CudaLowering(bulk_tiles=bulk_tiles))[0].calls


def check(session: ost.Session, draw: Draw, *outputs: Value) -> int:
    """Compare a graph with the oracle; the number of its kernels that are pairs."""
    draw.g.set_outputs(list(outputs))
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions(verify=True))])
    return sum(isinstance(call.kernel, PairedMatmul) for call in calls(draw.g))


def operands(d: Draw, columns: int = _COLUMNS) -> tuple[Value, Value, Value]:
    """Rows, and two weights."""
    x = d.of((_ROWS, _DEPTH), "float16")
    first, second = (d.of((_DEPTH, columns), "float16") for _ in range(2))
    return x, first, second


def test_what_reads_both_sums(session: ost.Session) -> None:
    """An epilogue may read the other product more than once."""
    d = drawn(1)
    x, first, second = operands(d)
    gate, up = d.g.matmul(x, first), d.g.matmul(x, second)
    assert check(session, d, d.g.maximum(gate, up) * up + gate) == 1


def test_a_product_that_is_a_result_and_others_read(session: ost.Session) -> None:
    """It reads the other one, and stores both."""
    d = drawn(5)
    x, first, second = operands(d)
    gate = d.g.matmul(x, first)
    after = d.g.matmul(gate, d.of((_COLUMNS, 24), "float16"))
    assert check(session, d, gate, d.g.silu(gate) * d.g.matmul(x, second), after) == 1


def test_pairs_of_several_layers(session: ost.Session) -> None:
    d = drawn(2)
    x, first, second = operands(d, _DEPTH)
    for _ in range(2):
        x = d.g.sigmoid(d.g.matmul(x, first)) * d.g.matmul(x, second)
    assert check(session, d, x) == 2


def test_rows_and_columns_that_both_epilogues_read(session: ost.Session) -> None:
    """Arguments of both products are one of the pair's."""
    d = drawn(3)
    x, first, second = operands(d)
    bias, factor = d.of((_COLUMNS,), "float16"), d.of((_ROWS, 1), "float16")
    gate = d.g.relu(d.g.matmul(x, first) + bias) * factor
    assert check(session, d, gate * (d.g.matmul(x, second) + bias)) == 1


def test_views_of_one_weight(session: ost.Session) -> None:
    """Both weights in one array, which is an argument once."""
    d = drawn(4)
    x, both = d.of((_ROWS, _DEPTH), "bfloat16"), d.of((2 * _COLUMNS, _DEPTH), "bfloat16")
    gate, up = (d.g.matmul(x, d.g.permute_dims(half, (1, 0))) for half in d.g.split(both, 2, 0))
    assert check(session, d, d.g.silu(gate) * up) == 1


def test_products_stay_apart_where_the_first_one_may_not_wait_for_the_second() -> None:
    """The second one writes its operand, something between reads its result, or a loop starts."""
    d = drawn(6)
    x, first, second = operands(d)
    d.g.set_outputs([d.g.silu(d.g.matmul(x, first)) * d.g.matmul(x, second), d.g.exp(x)])
    gate, up, other = calls(d.g, bulk_tiles=False)
    pair, _ = with_pairs([gate, up, other], ())
    assert isinstance(pair.kernel, PairedMatmul)
    rows, result = other.buffers
    assert rows is gate.buffers[0]
    writes = replace(other, buffers=(result, rows))
    assert with_pairs([gate, writes, up], ()) == [gate, writes, up]
    assert len(with_pairs([gate, replace(other, buffers=(rows, result)), up], ())) == 2
    earlier = replace(other, buffers=(gate.writes()[0], result))
    assert with_pairs([earlier, gate, up], ()) == [earlier, gate, up]
    loop = Call(Control(ControlKind.LOOP), (), (), "loop")
    assert with_pairs([gate, loop, up], ()) == [gate, loop, up]
    assert len(with_pairs([loop, gate, up], ())) == 2
    for written in gate.reads():
        last = replace(up, buffers=(*up.buffers[:-1], written))
        assert last.writes() == [written]
        assert with_pairs([gate, last], ()) == [gate, last]


OTHERS: dict[str, Callable[[Draw], list[Value]]] = {}


def other(make: Callable[[Draw], list[Value]]) -> Callable[[Draw], list[Value]]:
    """Note a graph whose products are no pair."""
    OTHERS[make.__name__] = make
    return make


@other
def two_results(d: Draw) -> list[Value]:
    x, first, second = operands(d)
    gate, up = d.g.matmul(x, first), d.g.matmul(x, second)
    return [gate, up, d.g.silu(gate) * up]


@other
def elements_elsewhere(d: Draw) -> list[Value]:
    x, first, second = operands(d)
    return [d.g.flip(d.g.matmul(x, first), (1,)) * d.g.matmul(x, second)]


@other
def other_rows(d: Draw) -> list[Value]:
    x, first, second = operands(d)
    y = d.of((_ROWS, _DEPTH), "float16")
    return [d.g.silu(d.g.matmul(x, first)) * d.g.matmul(y, second)]


@other
def rows_from_elsewhere(d: Draw) -> list[Value]:
    x, first, second = operands(d)
    both = d.of((2 * _ROWS, _DEPTH), "float16")
    halves = both[:_ROWS], both[_ROWS:]
    gate, up = (d.g.matmul(h, w) for h, w in zip(halves, (first, second), strict=True))
    return [d.g.silu(gate) * up, x]


@other
def other_orders(d: Draw) -> list[Value]:
    x, first, _ = operands(d)
    second = d.g.permute_dims(d.of((_COLUMNS, _DEPTH), "float16"), (1, 0))
    return [d.g.silu(d.g.matmul(x, first)) * d.g.matmul(x, second)]


@other
def rows_that_begin_anywhere(d: Draw) -> list[Value]:
    x, first, second = operands(d, 71)
    return [d.g.silu(d.g.matmul(x, first)) * d.g.matmul(x, second)]


@other
def another_dtype(d: Draw) -> list[Value]:
    x, first, second = (d.g.cast(each, "float32") for each in operands(d))
    return [d.g.silu(d.g.matmul(x, first)) * d.g.matmul(x, second)]


@other
def the_weight_of_the_other(d: Draw) -> list[Value]:
    x = d.of((_ROWS, _ROWS), "float16")
    inner = d.g.matmul(x, d.of((_ROWS, _ROWS), "float16"))
    return [d.g.matmul(x, inner) * inner]


@pytest.mark.parametrize("name", OTHERS)
def test_products_that_are_no_pair(session: ost.Session, name: str) -> None:
    d = drawn(len(name))
    assert check(session, d, *OTHERS[name](d)) == 0
