"""PyTorch's CPU tensors wherever an array is accepted, in their own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost

torch = pytest.importorskip("torch")

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


def doubling(session: ost.Session, dtype: str) -> ost.CompiledGraph:
    g = ost.Graph("double")
    x = g.input("x", (2, 3), dtype)
    g.set_outputs([x + x])
    return session.compile(g)


def tensor(dtype: str) -> Any:
    return torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_go_in_and_come_out(session, dtype):
    compiled = doubling(session, dtype)
    x, out = tensor(dtype), torch.zeros(2, 3, dtype=getattr(torch, dtype))
    (result,) = compiled.run({"x": x})
    assert result.astype(np.float64).tolist() == [[0, 2, 4], [6, 8, 10]]
    compiled.run({"x": x}, out=[out])
    assert torch.equal(out, x + x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bound_tensors_are_read_and_written_in_place(session, dtype):
    x, out = tensor(dtype), torch.zeros(2, 3, dtype=getattr(torch, dtype))
    call = doubling(session, dtype).bind({"x": x}, [out])
    for value in (1, 5, 9):
        x[:] = value
        call()
        assert torch.equal(out, torch.full_like(out, 2 * value))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_with_strides(session, dtype):
    x = tensor(dtype).t().contiguous().t()
    assert not x.is_contiguous()
    (result,) = doubling(session, dtype).run({"x": x})
    assert result.astype(np.float64).tolist() == [[0, 2, 4], [6, 8, 10]]
    with pytest.raises(ost.InputError, match="C-contiguous"):
        doubling(session, dtype).bind({"x": x}, [torch.zeros(2, 3)])


def test_params_and_handles(session):
    g = ost.Graph("scale")
    x = g.input("x", (2, 3), "bfloat16")
    g.set_outputs([x * g.param("w", (3,), "bfloat16")])
    compiled = session.compile(g, {"w": torch.full((3,), 2.0, dtype=torch.bfloat16)})
    compiled.bind_handle("x", tensor("bfloat16"))
    assert compiled.run()[0].astype(np.float64).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_results_become_tensors_without_a_copy(session):
    (result,) = doubling(session, "float32").run({"x": tensor("float32")})
    view = torch.from_dlpack(result)
    view[0, 0] = 77
    assert result[0, 0] == 77


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor("float32").requires_grad_(),
        lambda: tensor("float64"),
        lambda: tensor("bfloat16"),
        lambda: torch.zeros(3, 2),
        lambda: torch.zeros(2, 3, device="meta"),
        lambda: torch.zeros(2, 3).to_sparse(),
        lambda: torch.zeros(2, 3, dtype=torch.complex64),
        lambda: torch.zeros(2, 3, device="meta", dtype=torch.bfloat16),
    ],
)
def test_tensors_that_do_not_fit_are_refused(session, make):
    compiled = doubling(session, "float32")
    before = compiled.run({"x": tensor("float32")})[0].tobytes()
    with pytest.raises(ost.InputError):
        compiled.run({"x": make()})
    assert compiled.run({"x": tensor("float32")})[0].tobytes() == before


def test_nothing_is_kept_of_a_tensor(session):
    import gc
    import weakref

    compiled = doubling(session, "bfloat16")
    x = tensor("bfloat16")
    gone = weakref.ref(x)
    compiled.run({"x": x})
    del x
    gc.collect()
    assert gone() is None
