"""A device's capabilities are true: what they promise works, and what they exclude is refused."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.host_context import HostContext
from ostinato.dtypes import ALL_DTYPES, DType
from ostinato.ir.leaves import LEAVES
from ostinato.ops import OPS

from .registered import open_session

ONES = np.ones((4, 8), np.float32)


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=1)


@pytest.fixture
def doubled(session: ost.Session) -> ost.CompiledGraph:
    g = ost.Graph("doubled")
    g.set_outputs([g.input("x", (4, 8)) * 2])
    return session.compile(g)


def test_capture(session: ost.Session, doubled: ost.CompiledGraph) -> None:
    context = session.context
    assert context.supports_capture == session.capabilities.capture
    if not session.capabilities.capture:
        with pytest.raises(ost.CaptureError, match=str(session.device)):
            context.begin_graph_capture()
        return
    x, out = ONES.copy(), np.zeros_like(ONES)
    call = doubled.bind({"x": x}, [out])
    context.begin_graph_capture()
    call()
    context.end_graph_capture(1)
    x += 1
    assert context.replay_graph(1)
    np.testing.assert_array_equal(out, 2 * x)


def test_handles(session: ost.Session, doubled: ost.CompiledGraph) -> None:
    assert doubled.bind_handle("x", ONES) is session.capabilities.handles


def test_single_ops(session: ost.Session) -> None:
    has_none = type(session.context).encode is HostContext.encode
    assert session.capabilities.single_ops is not has_none
    executor = ost.GraphExecutor(session.context)
    if has_none:
        with pytest.raises(ost.PlanError, match="no ops one by one"), executor.begin() as s:
            s.neg(executor.buffer(ONES))
        return
    with executor.begin() as s:
        result = s.neg(executor.buffer(ONES))
    np.testing.assert_array_equal(result.copyout(), -ONES)


def test_states_in_place(session: ost.Session) -> None:
    """Right in any case; the promise is about copies, of which the plan then has none."""
    g = ost.Graph("cache")
    cache = g.state("cache", (4, 8))
    at = g.input("at", (), "int64")
    g.assign(cache, g.dynamic_update_slice(cache, g.input("row", (1, 8)), [at, 0]))
    g.set_outputs([g.cast(at, "float32")])
    compiled = session.compile(g)
    for row in range(4):
        compiled.run({"row": ONES[:1] * row, "at": np.int64(row)})
    np.testing.assert_array_equal(compiled.read_handle("cache")[:, 0], np.arange(4))
    if session.capabilities.in_place_states:
        assert not [kernel for kernel in compiled.plan.kernels if "copy" in kernel.name]


def test_inouts(session: ost.Session) -> None:
    g = ost.Graph("inout")
    total = g.inout("total", (4, 8))
    g.assign(total, total + g.input("x", (4, 8)))
    g.set_outputs([g.sum(total)])
    if not session.capabilities.inouts:
        with pytest.raises(ost.UnsupportedOpError, match="'total'"):
            session.compile(g)
        return
    held = ONES.copy()
    session.compile(g).run({"total": held, "x": ONES})
    np.testing.assert_array_equal(held, 2 * ONES)


def test_row_limits(session: ost.Session, doubled: ost.CompiledGraph) -> None:
    """The rows of a limit are computed; the others are left as they were, or computed as well."""
    g = ost.Graph("rows")
    g.set_outputs([g.exp(g.input("x", (4096, 8)))])
    compiled = session.compile(g)
    x, out = np.zeros((4096, 8), np.float32), np.full((4096, 8), -1, np.float32)
    with compiled.active_extent(5, 4096):
        compiled.run({"x": x}, out=[out])
    assert (out[:5] == 1).all()
    assert bool((out[-1] == -1).all()) is session.capabilities.row_limits


def test_expert_residency(session: ost.Session) -> None:
    g = ost.Graph("experts")
    w = g.param("w", (3, 8, 8), value=np.ones((3, 8, 8), np.float32))
    g.set_outputs([g.grouped_matmul(g.input("x", (4, 8)), w, g.input("ids", (4,), "int64"))])
    compiled = session.compile(g)
    has = session.capabilities.expert_residency
    assert bool(compiled.moe_layers) is has
    assert compiled.enable_moe_topk_capture(3) is has
    (found,) = compiled.run({"x": ONES, "ids": np.array([0, 1, 1, 2])})
    np.testing.assert_array_equal(found, 8 * ONES)
    assert (compiled.take_moe_topk_capture() is not None) is has
    assert (compiled.take_moe_residency_stats() is not None) is has
    if not has:
        with pytest.raises(ost.InputError, match="no layer"):
            compiled.set_moe_resident_experts([True, True, False])


@pytest.mark.parametrize("dtype", [dtype.name for dtype in ALL_DTYPES])
def test_dtypes(session: ost.Session, dtype: str) -> None:
    """A dtype that it computes with is taken; any other is refused, by node, and not narrowed."""
    g = ost.Graph("dtype")
    x = g.input("x", (3,), dtype)
    g.set_outputs({"same": g.where(g.input("c", (3,), "bool"), x, x)})
    if DType.parse(dtype) not in session.capabilities.dtypes:
        with pytest.raises(ost.UnsupportedOpError, match="where"):
            session.compile(g)
        return
    array = np.array([0, 1, 1]).astype(DType.parse(dtype).numpy)
    (found,) = session.compile(g).run({"x": array, "c": np.array([True, False, True])})
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_every_op_that_it_lists_is_an_op(session: ost.Session) -> None:
    assert session.capabilities.ops <= OPS.keys() | LEAVES.keys()
