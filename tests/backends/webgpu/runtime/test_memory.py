"""Blocks of device memory: copies of any bytes, and blocks of several buffers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.device import Device
from ostinato.backends.webgpu.gpu import Gpu
from ostinato.backends.webgpu.memory import DeviceBlock

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", params=[None, 256, 1024])
def block(request: pytest.FixtureRequest, session: ost.Session) -> Callable[[int], DeviceBlock]:
    """Makes blocks on buffers of at most so many bytes."""
    gpu = Gpu.opened(Device.WEBGPU, request.param)
    return lambda nbytes: DeviceBlock(gpu, nbytes, "a test")


@pytest.mark.parametrize("nbytes", [1, 3, 4, 255, 256, 257, 1023, 4099])
def test_any_bytes_are_written_and_read(block: Callable[[int], DeviceBlock], nbytes: int) -> None:
    memory, expected = block(nbytes), np.zeros(nbytes, np.uint8)
    for _ in range(12):
        start, end = sorted(RNG.integers(0, nbytes + 1, 2).tolist())
        data = RNG.integers(0, 256, end - start).astype(np.uint8)
        memory.write(start, memoryview(data))
        expected[start:end] = data
        low, high = sorted(RNG.integers(0, nbytes + 1, 2).tolist())
        found = np.full(high - low, 7, np.uint8)
        memory.read(low, memoryview(found))
        assert (found == expected[low:high]).all()


@pytest.mark.parametrize("nbytes", [1, 700, 2049])
def test_copies_have_the_same_bytes_and_are_apart(
    block: Callable[[int], DeviceBlock], nbytes: int
) -> None:
    memory = block(nbytes)
    data = RNG.integers(0, 256, nbytes).astype(np.uint8)
    memory.write(0, memoryview(data))
    twin = memory.copy()
    memory.write(0, memoryview(np.zeros(nbytes, np.uint8)))
    found = np.empty(nbytes, np.uint8)
    twin.read(0, memoryview(found))
    assert (found == data).all()


@pytest.mark.parametrize("element", [b"\0", b"\1", b"\1\2", b"\0\0\x80\x3f", b"\1\2\3\4\5\6\7\x08"])
def test_elements_are_repeated(block: Callable[[int], DeviceBlock], element: bytes) -> None:
    memory = block(3000)
    memory.write(0, memoryview(bytes([9] * 3000)))
    memory.repeat(64, element, 301)
    found = bytearray(3000)
    memory.read(0, memoryview(found))
    end = 64 + 301 * len(element)
    assert found[:64] == bytes([9] * 64)
    assert found[64:end] == element * 301
    assert found[end + 3 :] == bytes([9] * (3000 - end - 3))


def test_a_discarded_block_is_zero_again(block: Callable[[int], DeviceBlock]) -> None:
    memory = block(600)
    memory.write(0, memoryview(bytes([5] * 600)))
    before = memory.identity
    memory.discard()
    assert memory.identity != before
    found = bytearray(600)
    memory.read(0, memoryview(found))
    assert not any(found)


def test_no_two_blocks_share_addresses(block: Callable[[int], DeviceBlock]) -> None:
    spans = sorted((b.address, b.address + b.nbytes) for b in map(block, [100, 1, 0, 300, 7]))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("bound", [768, 1024, 4096])
def test_graphs_run_on_memory_of_many_buffers(
    bounded: Callable[[int], ost.Session], bound: int
) -> None:
    """Tensors lie across the ends of buffers: of params, the arena, states and outputs."""
    split = bounded(bound)
    n = ost.Variable("n", 1, 40)
    g = ost.Graph("split")
    x, w = g.input("x", (n, 37)), g.param("w", (37, 29))
    total = g.state("total", (29,))
    y = g.softmax(g.gelu(g.matmul(x, w)) + 1)
    small = g.cast(y * 100, "int8")
    g.assign(total, total + g.sum(y, 0))
    g.set_outputs({"y": y, "t": g.transpose(y, (1, 0)) * 2, "small": small})
    params = {"w": RNG.standard_normal((37, 29)).astype(np.float32)}
    options = ost.CompileOptions(stored_programs=False)
    there = split.compile(g, params, options=options)
    here = ost.Session("cpu").compile(g, params)
    for size in (1, 7, 40):
        x_given = RNG.standard_normal((size, 37)).astype(np.float32)
        for found, expected in zip(
            there.run({"x": x_given}), here.run({"x": x_given}), strict=True
        ):
            np.testing.assert_allclose(
                found.astype(np.float64),
                expected.astype(np.float64),
                rtol=1e-5,
                atol=1 if found.dtype == np.int8 else 1e-6,
            )
    np.testing.assert_allclose(there.read_handle("total"), here.read_handle("total"), rtol=1e-5)


def test_tensors_across_more_buffers_than_a_kernel_binds(
    bounded: Callable[[int], ost.Session],
) -> None:
    """Loop nests run on the CPU then; a kernel that is the device's alone is refused, by node."""
    small = bounded(256)
    g = ost.Graph("scattered")
    x, w = g.input("x", (64, 64)), g.param("w", (64, 64))
    g.set_outputs({"y": g.matmul(x, w) + 1})
    params = {"w": RNG.standard_normal((64, 64)).astype(np.float32)}
    feed = {"x": RNG.standard_normal((64, 64)).astype(np.float32)}
    plain = ost.CompileOptions(optimize=False, stored_programs=False)
    compiled = small.compile(g, params, options=plain)
    assert "a kernel of this device on" in str(compiled.explain())
    (found,) = compiled.run(feed)
    np.testing.assert_allclose(found, feed["x"] @ params["w"] + 1, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ost.UnsupportedOpError, match=r"matmul_.*: this adapter cannot run .*buffers"
    ):
        small.compile(g, params, options=ost.CompileOptions(stored_programs=False))


def test_threads_that_read_first_do_so_at_once() -> None:
    """In a process of its own: no buffer was mapped before."""
    script = """
import threading
import numpy as np
import ostinato as ost

executor, start = ost.GraphExecutor("webgpu"), threading.Barrier(8)
buffers = [executor.buffer(np.full(64, number, np.float32)) for number in range(8)]
found = {}

def read(number):
    start.wait()
    for _ in range(20):
        found[number] = buffers[number].copyout()

threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all((found[number] == number).all() for number in range(8))
"""
    if not ost.is_available("webgpu"):
        pytest.skip("there is no WebGPU adapter, or no package wgpu")
    subprocess.run([sys.executable, "-c", script], check=True)
