"""The native calls on PyTorch's tensors: wrong arguments raise, and other tensors are refused."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch

from ostinato.frontends.torch._runtime import PreparedCall, Watch
from ostinato.frontends.torch.module_weights import EXCHANGE

VERSION = torch._C.TensorBase._version
FLOAT = (2, 32)


def watch(entries: Any = (), tensors: Any = ()) -> Watch:
    return Watch(EXCHANGE, VERSION, tuple(entries), tuple(tensors))


def adder(calls: list[Any], **changes: Any) -> PreparedCall:
    """A call of one tensor of two floats, which copies it."""

    def run(buffers: list[Any], variables: Any) -> None:
        calls.append(variables)
        given, result = map(memoryview, buffers)
        result[:] = given

    arguments = {
        "plain": (torch.Tensor,),
        "arguments": (..., None),
        "names": ("flag",),
        "inputs": ((FLOAT, (2,)),),
        "slots": (0,),
        "outputs": ((FLOAT, (2,)),),
        "run": run,
        "variables": (7,),
        "watch": None,
    }
    return PreparedCall(EXCHANGE, **{**arguments, **changes})


def test_a_call_gives_new_tensors():
    calls: list[Any] = []
    call = adder(calls)
    x = torch.tensor([1.0, 2.0])
    found = call((x,), {"flag": None})
    assert isinstance(found, tuple)
    assert torch.equal(found[0], x)
    assert found[0].data_ptr() != x.data_ptr()
    assert calls == [(7,)]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((torch.ones(2),), {}),
        ((torch.ones(2),), {"flag": True}),
        ((torch.ones(2),), {"other": None}),
        ((torch.ones(2), None), {"flag": None}),
        ((torch.ones(3),), {"flag": None}),
        ((torch.ones(1, 2),), {"flag": None}),
        ((torch.ones(2, dtype=torch.int32),), {"flag": None}),
        ((torch.ones(4)[::2],), {"flag": None}),
        ((torch.ones(2, device="meta"),), {"flag": None}),
        ((torch.nn.Parameter(torch.ones(2)),), {"flag": None}),
        ((None,), {"flag": None}),
        (("x",), {"flag": None}),
    ],
)
def test_other_arguments_are_refused(args, kwargs):
    calls: list[Any] = []
    assert adder(calls)(args, kwargs) is None
    assert not calls


def test_a_misaligned_tensor_is_refused():
    floats = torch.frombuffer(memoryview(bytearray(32))[1:9], dtype=torch.float32)
    assert floats.data_ptr() % 4
    assert adder([])((floats,), {"flag": None}) is None


def test_errors_of_a_run_come_through_and_nothing_leaks():
    def fail(*_: Any) -> None:
        raise KeyError("of the run")

    call = adder([], run=fail)
    x = torch.ones(2)
    before = sys.getrefcount(x)
    for _ in range(10):
        with pytest.raises(KeyError, match="of the run"):
            call((x,), {"flag": None})
    assert sys.getrefcount(x) == before
    kept = adder([])
    for _ in range(10):
        kept((x,), {"flag": None})
    assert sys.getrefcount(x) == before


def test_changes_of_watched_tensors_are_seen():
    x, table = torch.ones(2), {"a": 1}
    entry = table["a"]
    watched = watch([(table, "a", entry)], [(x, True)])
    call = adder([], watch=watched)
    assert watched.intact()
    assert call((x,), {"flag": None}) is not None
    x.add_(1)
    assert not watched.intact()
    assert watched.identical()
    assert call((x,), {"flag": None}) is None
    assert watched.take_changed() == [0]
    assert watched.intact()
    table["a"] = 2
    assert not watched.identical()
    del table["a"]
    assert not watched.intact()


def test_memory_that_is_swapped_is_seen():
    x = torch.nn.Parameter(torch.ones(2))
    watched = watch((), [(x, False)])
    x.data = torch.zeros(2)
    assert watched.take_changed() == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": (...,) * 3},
        {"arguments": ()},
        {"names": ("a", "b", "c")},
        {"inputs": ((FLOAT,),)},
        {"inputs": (3,)},
        {"inputs": ((FLOAT, ("a",)),)},
        {"slots": (1,)},
        {"slots": ()},
        {"slots": ("a",)},
        {"outputs": ((FLOAT, [2]),)},
        {"plain": torch.Tensor},
        {"watch": 3},
    ],
)
def test_calls_that_make_no_sense(changes):
    with pytest.raises((TypeError, ValueError)):
        adder([], **changes)


def test_watches_that_make_no_sense():
    with pytest.raises(TypeError):
        watch([({}, "a")])
    with pytest.raises(TypeError):
        watch([(3, "a", 1)])
    with pytest.raises(TypeError):
        watch((), [(torch.ones(1),)])
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        watch((), [(None, True)])
    with pytest.raises(TypeError):
        Watch(EXCHANGE, 3, (), ())
    with pytest.raises(ValueError, match="PyCapsule"):
        Watch(None, VERSION, (), ())


def test_cycles_are_collected():
    table: dict[str, Any] = {}
    watched = watch([(table, "a", None)])
    table["watch"] = watched
    table["marker"] = marker = type("Marker", (), {})()
    import weakref

    reference = weakref.ref(marker)
    del table, watched, marker
    gc.collect()
    assert reference() is None
