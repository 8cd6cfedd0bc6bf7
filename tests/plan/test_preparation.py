"""Prepacking calls that run again when a param is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.plan.preparation import preparations

TYPE = TensorType(FLOAT32, (2,))


def param(name: str) -> LoweredBuffer:
    return LoweredBuffer(TYPE, Role.PARAM, name)


def prepared(name: str) -> LoweredBuffer:
    return LoweredBuffer(TYPE, Role.PREPARED, name)


def call(*buffers: LoweredBuffer) -> Call:
    return Call(cast("Any", SimpleNamespace()), buffers, (), "")


def test_weights_of_different_kernels_are_apart():
    a, b = param("a"), param("b")
    one, two = call(a, prepared("packed a")), call(b, prepared("packed b"))
    found = preparations([one, two])
    assert [(p.calls, p.params) for p in found] == [((one,), {"a"}), ((two,), {"b"})]


def test_a_weight_packed_twice_belongs_to_two_groups():
    a = param("a")
    one, two = call(a, prepared("rows")), call(a, prepared("columns"))
    assert [p.params for p in preparations([one, two])] == [{"a"}, {"a"}]


def test_what_is_computed_from_prepared_values_comes_along():
    a, b, c = param("a"), param("b"), param("c")
    sum_, packed = prepared("sum"), prepared("packed")
    calls = [call(a, b, sum_), call(c, prepared("other")), call(sum_, packed)]
    found = preparations(calls)
    assert [(p.calls, p.params) for p in found] == [
        ((calls[0], calls[2]), {"a", "b"}),
        ((calls[1],), {"c"}),
    ]


def test_writers_of_one_buffer_stay_together_in_order():
    joined = prepared("joined")
    calls = [call(param(name), joined) for name in "abc"]
    (found,) = preparations(calls)
    assert found.calls == tuple(calls)
    assert found.params == {"a", "b", "c"}


def test_groups_that_meet_late_become_one():
    x, y = prepared("x"), prepared("y")
    calls = [call(param("a"), x), call(param("b"), y), call(x, y, prepared("both"))]
    (found,) = preparations(calls)
    assert found.calls == tuple(calls)


def test_constants_alone_need_no_param():
    (found,) = preparations([call(LoweredBuffer(TYPE, Role.CONSTANT, "c"), prepared("p"))])
    assert found.params == frozenset()


def test_nothing_to_prepare():
    assert preparations([]) == []


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 7), min_size=1)), max_size=12
    )
)
def test_groups_share_nothing_that_is_prepared(shapes):
    params, buffers = [param(str(i)) for i in range(6)], [prepared(str(i)) for i in range(8)]
    calls = [call(*(params[i] for i in p), *(buffers[i] for i in b)) for p, b in shapes]
    found = preparations(calls)
    assert sorted(calls.index(c) for p in found for c in p.calls) == list(range(len(calls)))
    owners: dict[str, int] = {}
    for number, group in enumerate(found):
        assert [calls.index(c) for c in group.calls] == sorted(calls.index(c) for c in group.calls)
        for one in group.calls:
            for buffer in one.buffers:
                if buffer.role is Role.PREPARED:
                    assert owners.setdefault(buffer.name, number) == number
                else:
                    assert buffer.name in group.params
