"""Buffers: what goes in comes out, and nothing that does not fit goes in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import ALL_DTYPES, FLOAT32, INT8, DType
from ostinato.ir.types import TensorType
from ostinato.plan.buffer import Buffer, HostMemory, Storage


def on_host(type_: TensorType, *, room: int = 0, offset: int = 0, **options) -> Buffer:
    size = max(room, offset + type_.max_bytes)
    return Buffer(
        Storage("host", size, lambda n: HostMemory(bytearray(n))), offset, type_, **options
    )


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_comes_back_bit_by_bit(dtype: DType) -> None:
    raw = np.random.default_rng(3).integers(0, 2, 6 * dtype.itemsize, np.uint8)
    array = raw.view(dtype.numpy).reshape(2, 3)
    buffer = on_host(TensorType(dtype, (2, 3)))
    buffer.copyin(array)
    out = buffer.copyout()
    assert out.dtype == dtype.numpy
    assert out.shape == (2, 3)
    assert out.tobytes() == array.tobytes()


def test_fresh_memory_is_zero_and_copyout_is_a_copy() -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)))
    first = buffer.copyout()
    assert not first.any()
    buffer.copyin(np.ones(4, np.float32))
    assert not first.any()
    first[:] = 9
    assert (buffer.copyout() == 1).all()


def test_only_its_own_bytes_are_written() -> None:
    memory = bytearray(b"\xee" * 64)
    storage = Storage("host", 64, lambda n: HostMemory(memory))
    Buffer(storage, 16, TensorType(FLOAT32, (4,))).copyin(np.zeros(4, np.float32))
    assert bytes(memory) == b"\xee" * 16 + bytes(16) + b"\xee" * 32


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_raw_bytes(wrap) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = on_host(TensorType(FLOAT32, (2, 3)))
    buffer.copyin(wrap(array.tobytes()))
    np.testing.assert_array_equal(buffer.copyout(), array)


def test_any_layout_of_an_array() -> None:
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer = on_host(TensorType(FLOAT32, (3, 2)))
    for array in (wide[:3, ::3], wide.T[:3, :2], np.asfortranarray(wide[:3, :2]), wide[2::-1, :2]):
        buffer.copyin(array)
        np.testing.assert_array_equal(buffer.copyout(), array)
    buffer.copyin(wide[:3, :2].astype(">f4").astype("<f4"))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, 2), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 3, 1), np.float32),
        np.zeros((2, 3)),
        np.zeros((2, 3), ml_dtypes.bfloat16),
        np.zeros((2, 3), np.int32),
        np.zeros((2, 4), np.float32),
        bytes(23),
        bytes(25),
        b"",
        memoryview(bytes(48))[::2],
        "text",
        None,
        object(),
        [[1.0, 2.0, 3.0]],
        {"a": 1},
    ],
    ids=lambda w: f"{type(w).__name__}{getattr(w, 'shape', '')}",
)
def test_what_does_not_fit_is_refused(wrong: object) -> None:
    buffer = on_host(TensorType(FLOAT32, (2, 3)), room=64)
    buffer.copyin(np.ones((2, 3), np.float32))
    with pytest.raises(ost.InputError):
        buffer.copyin(wrong)
    assert (buffer.copyout() == 1).all()


def test_a_released_memoryview_is_refused() -> None:
    view = memoryview(bytes(24))
    view.release()
    with pytest.raises(ost.InputError):
        on_host(TensorType(FLOAT32, (2, 3))).copyin(view)


def test_empty_and_scalar_buffers() -> None:
    empty = on_host(TensorType(FLOAT32, (0, 3)))
    empty.copyin(np.zeros((0, 3), np.float32))
    empty.copyin(b"")
    assert empty.copyout().shape == (0, 3)
    scalar = on_host(TensorType(FLOAT32, ()))
    scalar.copyin(np.float32(2.5))
    assert scalar.copyout() == 2.5
    assert scalar.shape == ()
    assert scalar.nbytes == 4


# -- views -----------------------------------------------------------------------------------


def test_views_share_memory() -> None:
    buffer = on_host(TensorType(FLOAT32, (2, 4)), offset=64)
    view = buffer.view(8, 12)
    assert (view.offset, view.nbytes, view.shape, view.dtype) == (72, 12, (3,), FLOAT32)
    assert view.storage_id == buffer.storage_id
    view.copyin(np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(buffer.copyout().ravel(), [0, 0, 1, 2, 3, 0, 0, 0])
    inner = view.view(4, 4)
    assert inner.copyout() == [2]


@pytest.mark.parametrize(("offset", "nbytes"), [(1, 4), (4, 5), (3, 3)])
def test_views_of_parts_of_elements_are_bytes(offset: int, nbytes: int) -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)))
    view = buffer.view(offset, nbytes)
    assert str(view.dtype) == "uint8"
    assert view.shape == (nbytes,)


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(-1, 4), (0, -1), (0, 33), (33, 0), (29, 4), (1 << 70, 1), (0.5, 4), ("0", 4), (None, 1)],
)
def test_views_beyond_the_buffer_are_refused(offset, nbytes) -> None:
    buffer = on_host(TensorType(FLOAT32, (2, 4)), room=4096)
    with pytest.raises(ost.InputError):
        buffer.view(offset, nbytes)


def test_a_view_at_the_very_end_is_empty() -> None:
    assert on_host(TensorType(INT8, (5,))).view(5, 0).copyout().shape == (0,)


def test_storages_have_ids_of_their_own() -> None:
    a, b = on_host(TensorType(INT8, (5,))), on_host(TensorType(INT8, (5,)))
    assert a.storage_id != b.storage_id


def test_a_range_beyond_its_storage_is_refused() -> None:
    storage = Storage("host", 16, lambda n: HostMemory(bytearray(n)))
    for offset in (-4, 4, 1 << 62):
        with pytest.raises(ost.PlanError, match="16"):
            Buffer(storage, offset, TensorType(FLOAT32, (4,)))


# -- sizes that vary -----------------------------------------------------------------------------


@pytest.fixture
def varying() -> tuple[Buffer, dict[str, int]]:
    n = ost.Variable("n", 2, 8)
    sizes = {"n": 8}
    return on_host(TensorType(FLOAT32, (n, 3)), sizes=sizes), sizes


def test_live_shapes(varying) -> None:
    buffer, sizes = varying
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    buffer.copyin(array)
    sizes["n"] = 4
    assert buffer.shape == (4, 3)
    assert buffer.nbytes == 96
    np.testing.assert_array_equal(buffer.copyout(), array)
    sizes["n"] = 2
    np.testing.assert_array_equal(buffer.copyout(), array[:2])
    buffer.copyin(bytes(24))
    buffer.copyin(bytes(96))
    assert not buffer.copyout().any()


@pytest.mark.parametrize("rows", [0, 1, 9, 100])
def test_sizes_out_of_bounds_are_refused(varying, rows: int) -> None:
    with pytest.raises((ost.VariableError, ost.InputError)):
        varying[0].copyin(np.zeros((rows, 3), np.float32))


def test_other_dims_are_fixed(varying) -> None:
    with pytest.raises(ost.InputError):
        varying[0].copyin(np.zeros((4, 2), np.float32))
    with pytest.raises(ost.InputError):
        varying[0].copyin(bytes(36))


# -- permission to write, and release ------------------------------------------------------------


def test_read_only_buffers() -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)), read_only="a constant")
    for target in (buffer, buffer.view(0, 8), buffer.reshaped(TensorType(FLOAT32, (2, 2)))):
        with pytest.raises(ost.InputError, match="a constant"):
            target.copyin(np.zeros(target.shape, np.float32))


def test_writes_that_others_must_know_of() -> None:
    seen: list[np.ndarray] = []
    buffer = on_host(TensorType(FLOAT32, (4,)), write=seen.append)
    buffer.copyin(np.ones(4, np.float32))
    buffer.copyin(np.ones(4, np.float32).tobytes())
    buffer.reshaped(TensorType(FLOAT32, (2, 2))).copyin(np.ones((2, 2), np.float32))
    assert [a.shape for a in seen] == [(4,)] * 3
    assert all((a == 1).all() for a in seen)
    with pytest.raises(ost.InputError):
        buffer.view(0, 8).copyin(bytes(8))


def test_memory_is_taken_once_when_first_used() -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)))
    assert buffer.storage.allocations == 0
    buffer.copyout()
    buffer.copyin(bytes(16))
    assert buffer.storage.allocations == 1


def test_closed_storages() -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)))
    buffer.copyin(bytes(16))
    buffer.storage.close()
    buffer.storage.close()
    for use in (buffer.copyout, lambda: buffer.copyin(bytes(16)), buffer.view(0, 4).copyout):
        with pytest.raises(ost.PlanError, match="released"):
            use()


def test_reshaping_keeps_the_size() -> None:
    buffer = on_host(TensorType(FLOAT32, (4,)))
    with pytest.raises(ost.PlanError):
        buffer.reshaped(TensorType(FLOAT32, (5,)))
