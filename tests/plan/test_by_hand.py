"""Plans built by hand: their order, what is wrong with them, and that they run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostinato as ost
from ostinato.backends.cpu.context import CpuContext
from ostinato.dtypes import FLOAT32, INT32, UINT8
from ostinato.ir.types import TensorType
from ostinato.plan.buffer import Buffer, HostMemory, Storage
from ostinato.plan.execution_plan import ExecutionPlan
from ostinato.plan.prepared import Copy, KernelCall, PreparedOp, View
from ostinato.plan.schedule import schedule

from .conftest import layers, new_buffer, numbers

NOTHING: Mapping[str, Buffer] = MappingProxyType({})


def by_hand(
    context: CpuContext,
    ops: Iterable[PreparedOp],
    inputs: Mapping[str, Buffer] = NOTHING,
    outputs: Mapping[str, Buffer] = NOTHING,
) -> ExecutionPlan:
    return ExecutionPlan(
        ops, device=context.device, runner=context.encode, inputs=inputs, outputs=outputs
    )


# -- running ---------------------------------------------------------------------------------------


def test_copies_run_in_order(context: CpuContext) -> None:
    a, b, c = (new_buffer(context, 4) for _ in range(3))
    ops = [Copy(id=1, source=a, target=b), Copy(id=2, source=b, target=c)]
    plan = by_hand(context, ops, {"a": a}, {"c": c})
    a.copyin(numbers(4))
    plan.execute()
    np.testing.assert_array_equal(c.copyout(), numbers(4))
    assert [op.dependencies for op in plan.prepared_ops] == [(), (1,)]
    assert plan.execute_profiled() == []
    assert plan.buffers == (a, b, c)
    assert plan.memory.arena_bytes == 16


def test_declared_dependencies_go_before_the_order_given(context: CpuContext) -> None:
    a, b, c = (new_buffer(context, 4) for _ in range(3))
    second = Copy(id=2, source=b, target=c, dependencies=(1,))
    plan = by_hand(context, [second, Copy(id=1, source=a, target=b)], {"a": a}, {"c": c})
    assert [op.id for op in plan.prepared_ops] == [1, 2]
    a.copyin(numbers(4))
    plan.execute()
    np.testing.assert_array_equal(c.copyout(), numbers(4))


@pytest.mark.needs("llvm")
def test_kernels_on_views_of_one_buffer(session: ost.Session, context: CpuContext) -> None:
    """A kernel of another plan, applied to both halves of a buffer, twice, and a copy between."""
    graph = ost.Graph("square")
    x = graph.input("x", (8,))
    graph.set_outputs([x * x])
    (call,) = session.prepare(graph).prepared_kernels
    memory = new_buffer(context, 16)
    low, high, aside = memory.view(0, 32), memory.view(32, 32), new_buffer(context, 8)
    whole = View(id=9, source=memory, target=memory.reshaped(TensorType(FLOAT32, (4, 4))))
    ops = [
        KernelCall(id=0, kernel=call.kernel, buffers=(low, high)),
        Copy(id=1, source=high, target=aside),
        KernelCall(id=2, kernel=call.kernel, buffers=(aside, low)),
        whole,
    ]
    plan = by_hand(context, ops, {"x": memory}, {"y": memory})
    array = numbers(8)
    low.copyin(array)
    records = plan.execute_profiled()
    np.testing.assert_array_equal(high.copyout(), array * array)
    np.testing.assert_array_equal(whole.target.copyout().ravel()[:8], (array * array) ** 2)
    assert len(records) == 2
    assert [op.dependencies for op in plan.prepared_ops] == [(), (0,), (0, 1), (0, 2)]


def test_released_plans_refuse(context: CpuContext) -> None:
    a, b = new_buffer(context, 4), new_buffer(context, 4)
    plan = by_hand(context, [Copy(id=0, source=a, target=b)], {"a": a}, {"b": b})
    plan.execute()
    plan.release_intermediate_buffers()
    plan.execute()
    plan.release_all_buffers()
    for use in (plan.execute, plan.execute_profiled, a.copyout, lambda: b.copyin(bytes(16))):
        with pytest.raises(ost.PlanError, match="released"):
            use()


def test_buffers_of_other_devices(context: CpuContext) -> None:
    foreign = Buffer(
        Storage(ost.Device.parse("cuda"), 16, lambda n: HostMemory(bytearray(n))),
        0,
        TensorType(FLOAT32, (4,)),
    )
    with pytest.raises(ost.PlanError, match="CUDA"):
        by_hand(context, [Copy(id=0, source=foreign, target=new_buffer(context, 4))])


# -- what is wrong with a plan ---------------------------------------------------------------------


class Nothing(PreparedOp):
    """Touches no memory; only its declared dependencies count."""

    name = "nothing"
    reads = writes = ()  # type: ignore[assignment]


def nothing(number: int, *dependencies: int) -> Nothing:
    return Nothing(id=number, dependencies=dependencies)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([nothing(7, 7)], r"op 7 .* depends on itself"),
        ([nothing(7, 8)], r"op 7 .* depends on op 8"),
        ([nothing(1), nothing(2), nothing(1)], r"op 1 .* same id"),
        ([nothing(1, 2), nothing(2, 1)], r"op 1 .*op 2 .*op 1|op 2 .*op 1 .*op 2"),
        ([nothing(0), nothing(1, 3, 0), nothing(2, 1), nothing(3, 2)], r"op 1 .*op 3 .*op 2"),
        ([nothing(0, 1), nothing(1, 2), nothing(2, 1)], r"^[^0]*$"),
    ],
)
def test_bad_dependencies(context: CpuContext, ops: list[PreparedOp], message: str) -> None:
    for order in itertools.permutations(ops):
        with pytest.raises(ost.PlanError, match="op"):
            by_hand(context, order)
    with pytest.raises(ost.PlanError, match=message):
        by_hand(context, ops)


def test_what_is_no_op(context: CpuContext) -> None:
    with pytest.raises(ost.PlanError, match="made of prepared ops, got a str"):
        by_hand(context, [nothing(1), "copy"])  # type: ignore[list-item]


def test_missing_outputs(context: CpuContext) -> None:
    a, b, c = (new_buffer(context, 4) for _ in range(3))
    copy = Copy(id=0, source=a, target=b)
    by_hand(context, [copy], {"a": a}, {"a": a, "b": b, "part": b.view(4, 8)})
    half = Copy(id=1, source=a.view(0, 8), target=c.view(0, 8))
    rest = Copy(id=2, source=a.view(8, 8), target=c.view(8, 8))
    by_hand(context, [rest, half], {"a": a}, {"c": c})
    middle = Copy(id=3, source=a.view(0, 8), target=c.view(4, 8))
    for ops in ([copy], [], [half], [rest], [half, middle]):
        with pytest.raises(ost.PlanError, match="'c' is missing"):
            by_hand(context, ops, {"a": a}, {"b": a, "c": c})
    with pytest.raises(ost.PlanError, match="'none' is missing"):
        by_hand(context, [copy], {"a": a}, {"none": None})  # type: ignore[dict-item]


def test_no_outputs(context: CpuContext) -> None:
    plan = by_hand(context, [])
    plan.execute()
    assert plan.output_buffer() is None
    assert plan.output_buffers() == []
    assert plan.num_outputs == 0


def test_ops_that_make_no_sense(session: ost.Session, context: CpuContext) -> None:
    a, b = new_buffer(context, 4), new_buffer(context, 5)
    with pytest.raises(ost.PlanError, match="bytes"):
        Copy(id=0, source=a, target=b)
    with pytest.raises(ost.PlanError, match="overlap"):
        Copy(id=0, source=a.view(0, 12), target=a.view(4, 12))
    Copy(id=0, source=a.view(0, 8), target=a.view(8, 8))
    with pytest.raises(ost.PlanError, match="not within"):
        View(id=0, source=a, target=b)
    with pytest.raises(ost.PlanError, match="not within"):
        View(id=0, source=a.view(0, 8), target=a.view(4, 8))
    net = layers()
    kernel = session.prepare(net.graph, net.params).kernels[0]
    with pytest.raises(ost.PlanError, match="buffers"):
        KernelCall(id=0, kernel=kernel, buffers=(a,))


# -- buffers that do not fit -----------------------------------------------------------------------


def squares(session: ost.Session, rows: Any = 8) -> KernelCall:
    """The kernel call of ``y = x * x``, compiled for so many elements."""
    graph = ost.Graph("square")
    x = graph.input("x", (rows,))
    graph.set_outputs({"y": x * x})
    (call,) = session.prepare(graph).prepared_kernels
    return call


@pytest.mark.needs("llvm")
def test_buffers_that_are_too_small_for_a_kernel(session: ost.Session, context: CpuContext) -> None:
    call = squares(session)
    memory = new_buffer(context, 16)
    memory.copyin(numbers(16))
    for small in (memory.view(0, 16), memory.view(0, 0), memory.view(0, 28)):
        for number, buffers in enumerate([(small, memory), (memory, small)]):
            wrong = rf"op 3 \(multiply\): argument {number} .* is f32\[8\], 32 bytes, <Buffer"
            with pytest.raises(ost.PlanError, match=wrong):
                KernelCall(id=3, kernel=call.kernel, buffers=buffers)
    np.testing.assert_array_equal(memory.copyout(), numbers(16))
    aside = new_buffer(context, 20)
    aside.copyin(numbers(20, seed=1))
    larger = KernelCall(id=0, kernel=call.kernel, buffers=(memory, aside))
    by_hand(context, [larger], {"x": memory}).execute()
    expected = numbers(20, seed=1)
    expected[:8] = numbers(16)[:8] ** 2
    np.testing.assert_array_equal(aside.copyout(), expected)


def test_buffers_that_kernels_cannot_take(session: ost.Session, context: CpuContext) -> None:
    call, memory = squares(session), new_buffer(context, 16)
    integers = context.empty(TensorType(INT32, (8,)))
    odd = Buffer(memory.storage, 2, TensorType(FLOAT32, (8,)))
    for wrong, message in (
        (integers, r"argument 0 \('x'\) is f32\[8\].*i32"),
        (memory.view(2, 32), r"argument 0 .*u8"),
        (odd, "argument 0 .*does not start at a whole element"),
        (np.zeros(8, np.float32), "argument 0 .*got a ndarray"),
        (None, "argument 0 .*got a NoneType"),
    ):
        with pytest.raises(ost.PlanError, match=message):
            KernelCall(id=0, kernel=call.kernel, buffers=(wrong, memory))  # type: ignore[arg-type]
    for op in (Copy, View):
        with pytest.raises(ost.PlanError, match="target is a Buffer, got a NoneType"):
            op(id=0, source=memory, target=None)  # type: ignore[arg-type]


@pytest.mark.needs("llvm")
def test_kernels_for_other_variables(session: ost.Session, context: CpuContext) -> None:
    n = ost.Variable("n", 1, 8)
    call, (x, y) = squares(session, n), (new_buffer(context, 8) for _ in range(2))
    op = KernelCall(id=0, kernel=call.kernel, buffers=(x, y))
    for offered in ((), (ost.Variable("m", 1, 8),), (ost.Variable("n", 1, 9),), (n, n)):
        symbols = tuple(variable.symbol for variable in offered)
        with pytest.raises(ost.PlanError, match=r"op 0 .*takes the Variables n in 1\.\.8; a run"):
            ExecutionPlan(
                [op],
                device=context.device,
                runner=lambda ops, symbols=symbols: context.encode(ops, symbols),
                variables=symbols,
            )
    plan = ExecutionPlan(
        [op],
        device=context.device,
        runner=lambda ops: context.encode(ops, (n.symbol,)),
        variables=(n.symbol,),
    )
    x.copyin(numbers(8))
    plan.execute_with_vars({"n": 3})
    np.testing.assert_array_equal(y.copyout(), [*numbers(8)[:3] ** 2, *[0] * 5])


@pytest.mark.needs("llvm")
def test_targets_that_ops_may_not_write(session: ost.Session) -> None:
    net = layers()
    plan = session.prepare(net.graph, net.params)
    param = plan.buffer(net.graph.params["w2"])
    assert param is not None
    context, before = session.context, param.copyout()
    assert isinstance(context, CpuContext)
    source = context.empty(param.type)
    read_only = Buffer(source.storage, 0, source.type, read_only="a constant")
    for target in (param, param.view(0, 64), read_only):
        copy = Copy(id=5, source=context.empty(target.type), target=target)
        with pytest.raises(ost.PlanError, match=r"op 5 \(copy\): .*cannot be written"):
            by_hand(context, [copy])
    call = squares(session)
    onto = KernelCall(id=6, kernel=call.kernel, buffers=(source, param))
    with pytest.raises(ost.PlanError, match=r"op 6 \(multiply\): .*cannot be written"):
        by_hand(context, [onto])
    np.testing.assert_array_equal(param.copyout(), before)


def test_memory_that_is_smaller_than_its_storage(context: CpuContext) -> None:
    storage = Storage(context.device, 1 << 20, lambda n: HostMemory(bytearray(16)))
    target = Buffer(storage, 0, TensorType(UINT8, (1 << 20,)))
    copy = Copy(id=0, source=context.empty(target.type), target=target)
    with pytest.raises(ost.PlanError, match="1048576 bytes was given only 16"):
        by_hand(context, [copy])


def test_memory_that_cannot_be_written(context: CpuContext) -> None:
    octets = bytes(16)
    storage = Storage(context.device, 16, lambda n: HostMemory(octets))
    fixed, other = Buffer(storage, 0, TensorType(FLOAT32, (4,))), new_buffer(context, 4)
    with pytest.raises(ost.PlanError, match="read-only"):
        by_hand(context, [Copy(id=0, source=other, target=fixed)])
    other.copyin(numbers(4))
    by_hand(context, [Copy(id=0, source=fixed, target=other)]).execute()
    np.testing.assert_array_equal(other.copyout(), np.zeros(4))


@pytest.mark.needs("llvm")
def test_kernels_that_are_directed_by_a_buffer(session: ost.Session) -> None:
    """A list of rows by expert may come from nowhere but the kernel that writes such lists."""
    graph = ost.Graph("grouped")
    ids, x = graph.input("ids", (8,), "int64"), graph.input("x", (8, 16))
    w = graph.input("w", (4, 16, 16))
    graph.set_outputs({"y": graph.grouped_matmul(x, w, ids)})
    plan = session.prepare(graph)
    context = session.context
    assert isinstance(context, CpuContext)
    group, product = plan.prepared_kernels[0], plan.prepared_kernels[-1]
    assert (group.name, product.name) == ("group", "grouped_matmul")
    lists = {b for b in group.writes if b in product.reads}
    mine = {b: context.empty(b.type) for b in (*lists, *plan.inputs.values(), *product.writes)}
    fresh = [
        KernelCall(id=op.id, kernel=op.kernel, buffers=tuple(mine.get(b, b) for b in op.buffers))
        for op in (group, product)
    ]
    with pytest.raises(ost.PlanError, match=r"op \d+ \(grouped_matmul\): argument .* directs"):
        by_hand(context, fresh[1:])
    (listed,) = (mine[b] for b in lists)
    spoiled = Copy(id=99, source=context.empty(listed.type), target=listed)
    with pytest.raises(ost.PlanError, match="directs the kernel"):
        by_hand(context, [fresh[0], spoiled, fresh[1]])
    ready = by_hand(context, fresh)
    numbers_of = np.array([3, 0, 1, 1, 2, 3, 0, 0])
    arrays = {"ids": numbers_of, "x": numbers(8, 16), "w": numbers(4, 16, 16, seed=1)}
    for name, array in arrays.items():
        mine[plan.inputs[name]].copyin(array)
    ready.execute()
    expected = np.einsum("rk,rkn->rn", arrays["x"], arrays["w"][numbers_of])
    (result,) = (mine[b] for b in product.writes)
    np.testing.assert_allclose(result.copyout(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("offset", "nbytes"), [(-4, 8), (0, -4), (12, 8), (1 << 70, 4)])
def test_parts_beyond_a_buffer(context: CpuContext, offset: int, nbytes: int) -> None:
    memory = new_buffer(context, 4)
    with pytest.raises(ost.InputError, match="are not within the 16"):
        memory.view(offset, nbytes)
    with pytest.raises(ost.PlanError, match="are not within the 16 bytes"):
        Buffer(memory.storage, offset, TensorType(UINT8, (nbytes,)))


# -- the order, on random plans --------------------------------------------------------------------


@st.composite
def copies(draw: st.DrawFn) -> list[Copy]:
    """Copies between parts of one storage, some of which name earlier or later ones."""
    storage = Storage("host", 24, lambda n: HostMemory(bytearray(n)))
    whole = Buffer(storage, 0, TensorType(UINT8, (24,)))
    ops = []
    count = draw(st.integers(0, 8))
    for number in range(count):
        size = draw(st.integers(0, 6))
        source, target = draw(st.integers(0, 24 - size)), draw(st.integers(0, 24 - size))
        if abs(source - target) < size:
            continue
        named = draw(st.sets(st.integers(0, count - 1), max_size=1))
        ops.append((number, whole.view(source, size), whole.view(target, size), named))
    known = {number for number, *_ in ops}
    return [
        Copy(id=n, source=s, target=t, dependencies=tuple(d & known - {n})) for n, s, t, d in ops
    ]


@given(copies())
def test_any_order_that_dependencies_allow_gives_the_same(ops: list[Copy]) -> None:
    try:
        ordered = schedule(ops)
    except ost.PlanError as error:
        assert "wait for each other" in str(error)
        return
    position = {op.id: i for i, op in enumerate(ordered)}
    assert sorted(position) == sorted(op.id for op in ops)
    for op in ordered:
        assert all(position[d] < position[op.id] for d in op.dependencies)
    assert _run(ordered) == _run(_as_late_as_allowed(ordered))


def _as_late_as_allowed(ordered: Iterable[PreparedOp]) -> list[PreparedOp]:
    """Another order in which everything comes after what it depends on: last come, first served."""
    waiting, done, order = list(ordered), set[int](), list[PreparedOp]()
    while waiting:
        op = next(op for op in reversed(waiting) if done.issuperset(op.dependencies))
        waiting.remove(op)
        done.add(op.id)
        order.append(op)
    return order


def _run(ops: Iterable[PreparedOp]) -> bytes:
    memory = bytearray(range(24))
    for op in ops:
        (source,), (target,) = op.reads, op.writes
        memory[target.offset : target.end] = bytes(memory[source.offset : source.end])
    return bytes(memory)
