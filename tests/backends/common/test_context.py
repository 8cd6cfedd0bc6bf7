"""Contexts: memory of the device, and ops that are encoded, queued, waited for and recorded."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.common.encoded import Encoded
from ostinato.backends.common.queue import Queue
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.context import CpuContext
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from ostinato.plan.order import NOTHING, Accesses
from ostinato.plan.prepared import Copy, View
from ostinato.variables import Variable

VECTOR = TensorType(FLOAT32, (4,))
ONES = np.ones(4, np.float32)


@pytest.fixture
def context() -> CpuContext:
    return CpuContext(ost.Device.CPU, _core.ThreadPool(1))


class Slow(Encoded):
    """Work that ends on request."""

    accesses = NOTHING

    def __init__(
        self, then: Callable[[], object] = lambda: None, writes: ost.Buffer | None = None
    ) -> None:
        self.started, self.go = threading.Event(), threading.Event()
        self._then = then
        if writes is not None:
            span = writes.storage.span(writes.offset, writes.nbytes, written=True)
            self.accesses = Accesses([span])

    def __call__(self) -> Slow:
        return self

    def launch(self) -> None:
        self.started.set()
        assert self.go.wait(30)
        self._then()

    def run(self, variables: Any) -> None:
        self.launch()

    def run_profiled(self, variables: Any) -> list[float]:
        self.launch()
        return []

    def check(self) -> None: ...
    def discard(self) -> None: ...
    def close(self) -> None: ...


def copy(context: CpuContext, source: ost.Buffer, target: ost.Buffer) -> Callable[[], Encoded]:
    encoded = context.encode([Copy(id=1, source=source, target=target)])
    return lambda: encoded


# -- memory ----------------------------------------------------------------------------------------


def test_buffers_hold_what_was_uploaded(context):
    for array in (ONES, np.arange(6).reshape(2, 3)[:, ::2], np.float64(3), np.zeros((0, 4), "u1")):
        buffer = context.upload(array)
        assert buffer.device == ost.Device.CPU
        np.testing.assert_array_equal(buffer.copyout(), array)
    assert not context.empty(VECTOR).copyout().any()


def test_what_is_no_array_is_not_uploaded(context):
    for wrong in ("text", object(), np.array(["text"]), np.zeros(2, complex)):
        with pytest.raises(ost.InputError):
            context.upload(wrong)


def test_storage_takes_memory_when_it_is_used(context):
    storage = context.storage(64)
    assert storage.allocations == 0
    context.begin_graph_capture()
    low, high = (ost.Buffer(storage, offset, VECTOR) for offset in (0, 16))
    ops = [Copy(id=1, source=low, target=high), View(id=2, source=high, target=high)]
    encoded = context.encode(ops)
    context.run(lambda: encoded)
    context.end_graph_capture(1)
    assert storage.allocations == 1
    assert context.replay_graph(1)


# -- submitting ------------------------------------------------------------------------------------


def test_work_is_done_in_order(context):
    a, b, c = context.upload(ONES), context.empty(VECTOR), context.empty(VECTOR)
    order: list[int] = []
    slow = Slow(lambda: order.append(1))
    first = context.submit(slow)
    second = context.submit(copy(context, a, b))
    third = context.submit(copy(context, b, c))
    assert slow.started.wait(30)
    assert not second.done()
    assert not first.done()
    slow.go.set()
    assert third.result(30) > 0
    assert first.done()
    assert second.done()
    np.testing.assert_array_equal(c.copyout(), ONES)


def test_run_waits_for_what_was_submitted(context):
    a, b = context.upload(ONES), context.empty(VECTOR)
    slow = Slow(lambda: a.storage.memory.write(0, memoryview(np.full(4, 5, "f4")).cast("B")), a)
    context.submit(slow)
    threading.Timer(0.05, slow.go.set).start()
    assert context.run(copy(context, a, b)) > 0
    assert (b.copyout() == 5).all()


@pytest.mark.parametrize("how", ["copyout", "copyin", "release", "replay", "synchronize", "begin"])
def test_what_must_wait_does(context, how):
    buffer, done = context.upload(ONES), []
    encoded = copy(context, buffer, context.empty(VECTOR))
    context.begin_graph_capture()
    context.run(encoded)
    context.end_graph_capture(1)
    slow = Slow(lambda: done.append(True), buffer)
    context.submit(slow)
    threading.Timer(0.05, slow.go.set).start()
    {
        "copyout": buffer.copyout,
        "copyin": lambda: buffer.copyin(ONES),
        "release": buffer.release,
        "replay": lambda: context.replay_graph(1),
        "synchronize": context.synchronize,
        "begin": context.begin_graph_capture,
    }[how]()
    assert done


def test_run_stays_on_the_calling_thread_when_nothing_is_queued(context):
    seen = []
    slow = Slow(lambda: seen.append(threading.get_ident()))
    slow.go.set()
    context.run(slow)
    context.submit(slow).result(30)
    assert seen[0] == threading.get_ident() != seen[1]


def test_errors_belong_to_the_one_who_waits(context):
    def fail() -> None:
        raise ost.PlanError("fault")

    failing = Slow(fail)
    failing.go.set()
    future = context.submit(failing)
    context.synchronize()
    for _ in range(2):
        with pytest.raises(ost.PlanError, match="fault"):
            future.result(30)
    with pytest.raises(ost.PlanError, match="fault"):
        context.run(failing)
    a, b = context.upload(ONES), context.empty(VECTOR)
    context.run(copy(context, a, b))
    np.testing.assert_array_equal(b.copyout(), ONES)


def test_the_time_is_that_of_the_work(context):
    slow = Slow(lambda: time.sleep(0.02))
    slow.go.set()
    assert context.run(slow) >= 20_000_000
    assert context.submit(slow).result(30) >= 20_000_000


def test_queues_of_others_are_waited_for(context):
    queue, done = Queue(), []
    context.enqueue(queue, NOTHING, lambda: (time.sleep(0.05), done.append(1)), lambda: None)
    context.synchronize()
    assert done == [1]
    context.begin_graph_capture()
    context.enqueue(queue, NOTHING, lambda: done.append(2), lambda: done.append(3))
    context.end_graph_capture(1)
    assert done == [1, 3]
    gone = weakref.ref(queue)
    del queue
    gc.collect()
    assert gone() is None
    context.synchronize()


# -- recording -------------------------------------------------------------------------------------


def test_submitted_work_is_recorded(context):
    a, b, c = context.upload(ONES), context.empty(VECTOR), context.empty(VECTOR)
    encoded = [copy(context, a, b), copy(context, b, c)]
    context.begin_graph_capture()
    future = context.submit(encoded[0])
    assert future.done()
    assert future.result() == 0
    assert context.run(encoded[1]) == 0
    for call in (a.copyout, lambda: a.copyin(ONES), a.release, context.synchronize):
        with pytest.raises(ost.CaptureError):
            call()
    context.end_graph_capture(1)
    assert not c.copyout().any()
    a.copyin(3 * ONES)
    assert context.replay_graph(1)
    assert (c.copyout() == 3).all()


def test_errors_of_what_is_recorded(context):
    a, b = context.upload(ONES), context.empty(VECTOR)
    encoded = copy(context, a, b)
    b.release()
    context.begin_graph_capture()
    with pytest.raises(ost.PlanError, match="released"):
        context.submit(encoded).result()
    with pytest.raises(ost.PlanError, match="released"):
        context.run(encoded)
    context.end_graph_capture(1)


# -- ops -------------------------------------------------------------------------------------------


def test_buffers_of_another_device_are_refused(context):
    foreign = CpuContext(ost.Device.parse("cuda"), _core.ThreadPool(1)).empty(VECTOR)
    with pytest.raises(ost.PlanError, match="cannot be used on CPU"):
        copy(context, foreign, context.empty(VECTOR))


def test_encoded_ops_run_with_variables_from_the_block(context):
    """Nothing here reads them; what counts is that they are checked."""
    a, b = context.upload(ONES), context.empty(VECTOR)
    position = Variable("position", 0, 3)
    ops = [Copy(id=1, source=a, target=b)]
    program = context.encode(ops, [position])

    def encoded() -> Encoded:
        return program

    with pytest.raises(ost.VariableError, match="dev-state mode"):
        context.run(encoded)
    context.set_dev_state_mode(True)
    context.set_decode_state(0, 4)
    with pytest.raises(ost.VariableError, match=r"bounded by 0\.\.3"):
        context.run(encoded)
    assert not b.copyout().any()
    context.set_decode_state(0, 3)
    context.run(encoded)
    assert b.copyout().all()


def test_the_state_is_written_behind_what_was_submitted(context):
    seen = []
    slow = Slow(lambda: seen.append(context.decode_state["position"]))
    slow.accesses = context.commands.accesses  # as whatever reads the block
    context.submit(slow)
    threading.Timer(0.05, slow.go.set).start()
    context.set_decode_state(0, 9)
    assert seen == [0]


def test_closed_work_refuses(context):
    encoded = copy(context, context.upload(ONES), context.empty(VECTOR))()
    encoded.close()
    for call in (encoded.launch, lambda: encoded.run([]), lambda: encoded.run_profiled([])):
        with pytest.raises(ost.PlanError, match="released"):
            call()


def test_contexts_are_let_go():
    context = CpuContext(ost.Device.CPU, _core.ThreadPool(1))
    a, b = context.upload(ONES), context.empty(VECTOR)
    encoded = copy(context, a, b)
    context.begin_graph_capture()
    context.submit(encoded)
    context.end_graph_capture(1)
    context.submit(encoded).result(30)
    gone = [weakref.ref(context), weakref.ref(encoded())]
    del context, encoded, a, b
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
