"""Experts in a file on the CPU: transfers to the byte, files that change, and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry
from tests.moe.layers import (
    EXPERTS,
    FEATURES,
    HIDDEN,
    ONE,
    ROOM,
    graph,
    split,
    tokens_of,
    weights_of,
)

Array = np.ndarray[Any, Any]

F32 = np.float32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "experts.safetensors"
    ost.moe.write_safetensors(file, split(weights_of(graph(5)))[1])
    return file


def compiled_from(
    path: Path, budget: int | None, *, tokens: Any = 5, **options: Any
) -> ost.CompiledGraph:
    g = graph(tokens)
    inside, _ = split(weights_of(g))
    file = ost.moe.ExpertFile(path)
    return ost.Session("cpu", **options).compile(
        g, params=inside, experts=file, expert_budget=budget
    )


def in_memory(tokens: Any = 5) -> ost.CompiledGraph:
    g = graph(tokens)
    return ost.Session("cpu").compile(g, params=weights_of(g))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("budget", [None, 99 * ROOM, 10 * ROOM, 6 * ROOM, ROOM])
def test_budgets_change_no_bit(path, budget, threads):
    expected = in_memory().run(tokens_of(5))
    compiled = compiled_from(path, budget, threads=threads)
    np.testing.assert_array_equal(compiled.run(tokens_of(5)), expected)
    places = [layer.slots for layer in compiled.moe_layers]
    assert places == ([7, 7] if budget in (None, 99 * ROOM) else places)
    assert (sum(places) == 0) == (budget == ROOM)


def test_masks_change_no_bit_and_move_no_more_than_they_must(path):
    compiled, plain = compiled_from(path, 10 * ROOM), in_memory()
    places = compiled.moe_layers[0].slots
    assert 3 <= places < 7
    rng = np.random.default_rng(2)
    before = [np.arange(EXPERTS) < places] * 2
    for step in range(12):
        masks = [np.zeros(EXPERTS, np.bool_) for _ in range(2)]
        for mask in masks:
            mask[rng.permutation(EXPERTS)[: rng.integers(0, places + 1)]] = True
        moved = compiled.moe_transfers
        compiled.set_moe_resident_experts_per_layer(masks)
        after = compiled.moe_transfers
        promoted = sum(np.count_nonzero(m & ~b) for m, b in zip(masks, before, strict=True))
        demoted = sum(np.count_nonzero(b & ~m) for m, b in zip(masks, before, strict=True))
        assert after.promotions - moved.promotions == promoted
        assert after.demotions - moved.demotions == demoted
        assert after.bytes_moved - moved.bytes_moved == promoted * ONE
        before = masks
        x = tokens_of(5, seed=step)
        np.testing.assert_array_equal(compiled.run(x), plain.run(x))
        taken = compiled.take_moe_residency_stats()
        read = compiled.moe_transfers.bytes_staged - after.bytes_staged
        assert read == taken.cpu_expert_calls * ONE
        assert taken.gpu_tokens + taken.cpu_tokens == 2 * 2 * 5


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
@pytest.mark.parametrize("narrow", [True, False])
def test_other_dtypes(tmp_path, dtype, narrow):
    g = graph(5, dtype=np.dtype(dtype))
    weights = weights_of(g)
    inside, outside = split(weights)
    ost.moe.write_safetensors(tmp_path / "e", outside)
    session = ost.Session("cpu", options=ost.CompileOptions(narrow_weights=narrow))
    x = tokens_of(5, dtype)
    file = ost.moe.ExpertFile(tmp_path / "e")
    compiled = session.compile(g, inside, experts=file, expert_budget=12 * ROOM)
    np.testing.assert_array_equal(compiled.run(x), session.compile(g, weights).run(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stacked_matrices_of_a_gguf_file(tmp_path, dtype):
    g = graph(5, dtype=dtype)
    weights = weights_of(g)
    inside, outside = split(weights)
    numbers = {"float32": 0, "float16": 1, "bfloat16": 30}
    kind = TENSOR_TYPES[numbers[dtype]]
    parts = {f"{name}_exps.weight": m.transpose(0, 2, 1) for name, m in outside.items()}
    entries = [TensorEntry(name, m.shape, kind) for name, m in parts.items()]
    with GGUFWriter(tmp_path / "e.gguf", {}, entries) as writer:
        for matrices in parts.values():
            writer.write(np.ascontiguousarray(matrices))
    tensors = {name: f"{name}_exps.weight" for name in outside}
    file = ost.moe.ExpertFile(GGUFFile(tmp_path / "e.gguf"), tensors, transposed=True)
    session = ost.Session("cpu")
    compiled = session.compile(g, inside, experts=file, expert_budget=8 * ROOM)
    feeds = {"x": tokens_of(5)["x"].astype(g.inputs["x"].dtype.numpy)}
    np.testing.assert_array_equal(
        compiled.run(feeds), session.compile(graph(5, dtype=dtype), weights).run(feeds)
    )


def products(rows: int = 9) -> ost.Graph:
    """Two products that share expert ids, with more in the kernels of the products."""
    g = ost.Graph("products")
    x, ids = g.input("x", (rows, FEATURES)), g.input("ids", (rows,), "int64")
    first = g.param("first", (EXPERTS, FEATURES, HIDDEN))
    second = g.param("second", (EXPERTS, HIDDEN, FEATURES))
    hidden = g.relu(g.grouped_matmul(x, first, ids) * 0.5)
    g.set_outputs([g.grouped_matmul(hidden, second, ids) + x, hidden])
    return g


def test_products_that_share_expert_ids(tmp_path):
    weights = weights_of(products())
    ost.moe.write_safetensors(tmp_path / "e", weights)
    session = ost.Session("cpu")
    plain = session.compile(products(), weights)
    file = ost.moe.ExpertFile(tmp_path / "e")
    compiled = session.compile(products(), experts=file, expert_budget=3 * ROOM)
    (layer,) = compiled.moe_layers
    assert 0 < layer.slots < EXPERTS
    for ids in ([0, 1, 2, 3, 4, 5, 6, 0, 0], [6] * 9, [-1, 2, 6, 2, 2, 2, 2, 2, 0]):
        inputs = {**tokens_of(9), "ids": np.array(ids, np.int64)}
        for got, expected in zip(compiled.run(inputs), plain.run(inputs), strict=True):
            np.testing.assert_array_equal(got, expected)
        compiled.set_moe_resident_experts([False] * 6 + [True])
    with pytest.raises(ost.InputError, match="expert 99, which is out of range for 7 experts"):
        compiled.run({**tokens_of(9), "ids": np.full(9, 99)})


def test_the_loop_with_a_file(path):
    compiled, plain = compiled_from(path, 10 * ROOM, tokens=1), in_memory(1)
    pools = [ost.ExpertPool(layer.experts, layer.slots) for layer in compiled.moe_layers]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=2))
    for step in range(20):
        x = tokens_of(1, seed=step % 3)
        np.testing.assert_array_equal(loop.step(x), plain.run(x))
    counters = loop.counters
    assert counters.promotions == counters.demotions > 0
    assert counters.bytes_moved == counters.promotions * ONE
    assert counters.bytes_staged == counters.misses * ONE
    assert counters.hit_rate > 0.5


def test_bound_calls_plans_and_replays(path):
    g = graph(5)
    session = ost.Session("cpu")
    inside, _ = split(weights_of(g))
    file = ost.moe.ExpertFile(path)
    compiled = session.compile(g, inside, experts=file, expert_budget=8 * ROOM)
    (expected,) = in_memory().run(tokens_of(5))
    inputs, out = tokens_of(5), np.empty((5, FEATURES), F32)
    call = compiled.bind(inputs, [out])
    call()
    np.testing.assert_array_equal(out, expected)
    session.context.begin_graph_capture()
    call()
    session.context.end_graph_capture(3)
    compiled.set_moe_resident_experts([False] * 6 + [True])  # a recording does not mind
    out[:] = 0
    assert session.context.replay_graph(3)
    np.testing.assert_array_equal(out, expected)
    plan = compiled.plan
    names = [op.name for op in plan.execute_profiled()]
    assert "select experts" in names
    assert "stage experts" in names
    for kernel in plan.kernels:
        assert kernel.source
        assert kernel.loops


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_a_file_that_is_written_meanwhile(path, change):
    compiled = compiled_from(path, 6 * ROOM)
    if change == "shorter":
        with path.open("r+b") as file:
            file.truncate(2000)
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(ost.ModelFormatError, match="was written"):
        compiled.run(tokens_of(5))
    with pytest.raises(ost.ModelFormatError, match="was written"):
        compiled.set_moe_resident_experts([False] * 6 + [True])
    stats = compiled.take_moe_residency_stats()
    assert stats is None or stats.gpu_tokens + stats.cpu_tokens == 20


def test_a_file_that_comes_back(path):
    """Experts that could not be read are not resident; those not read again stay resident."""
    compiled = compiled_from(path, 10 * ROOM)
    before, content = path.stat(), path.read_bytes()
    places = compiled.moe_layers[0].slots
    path.write_bytes(content[:2000])
    with pytest.raises(ost.ModelFormatError):
        compiled.set_moe_resident_experts([False] + [True] * places + [False] * (6 - places))
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    staged = compiled.moe_transfers.bytes_staged
    np.testing.assert_array_equal(compiled.run(tokens_of(5)), in_memory().run(tokens_of(5)))
    stats = compiled.take_moe_residency_stats()
    assert stats.cpu_expert_calls > 0
    read = compiled.moe_transfers.bytes_staged - staged
    assert read == stats.cpu_expert_calls * ONE


def test_what_can_not_stay_in_a_file(tmp_path, path):
    session = ost.Session("cpu")
    g = graph(5)
    inside, outside = split(weights_of(g))
    file = ost.moe.ExpertFile(path)
    with pytest.raises(ost.InputError, match="one expert takes"):
        session.compile(g, inside, experts=file, expert_budget=1000)
    with pytest.raises(ost.InputError, match="given as well"):
        session.compile(g, {**inside, "0.up": outside["0.up"]}, experts=file)
    for wrong in (-1, 1.5, True, "1 GB"):
        with pytest.raises(ost.InputError, match="expert_budget"):
            session.compile(g, inside, experts=file, expert_budget=wrong)
    with pytest.raises(ost.InputError, match="expert_budget"):
        session.compile(g, inside, expert_budget=1 << 20)
    with pytest.raises(ost.InputError, match="ExpertFile"):
        session.compile(g, inside, experts=str(path))
    only_gate = ost.moe.ExpertFile(path, {"0.gate": "0.gate"})
    with pytest.raises(ost.InputError, match="is not in the file of experts, others are"):
        session.compile(g, inside, experts=only_gate)
    sums = graph(5)
    total = sums.sum(sums.params["0.gate"])
    sums.set_outputs([*sums.outputs.values(), total])
    with pytest.raises(ost.InputError, match="also read by"):
        session.compile(sums, inside, experts=file)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"0.gate": "nothing"}, "no tensor 'nothing'"),
        ({"missing": "0.gate"}, "no params missing"),
        ({"0.gate": "0.down"}, "expected"),
        ({"0.gate": ["0.gate"]}, "got 1 tensors"),
        ({"0.router": "0.gate"}, "experts are"),
        ({}, "no tensor that is named"),
    ],
)
def test_tensors_that_do_not_fit(path, tensors, message):
    g = graph(5)
    file = ost.moe.ExpertFile(path, tensors)
    with pytest.raises(ost.InputError, match=message):
        ost.Session("cpu").compile(g, split(weights_of(g))[0], experts=file)


@pytest.mark.parametrize("tensors", [5, ["0.gate"], {"0.gate": 5}, {"0.gate": [1, 2]}])
def test_names_that_make_no_sense(path, tensors):
    with pytest.raises(ost.InputError):
        ost.moe.ExpertFile(path, tensors)


def test_a_plan(path):
    g = graph(5)
    file = ost.moe.ExpertFile(path)
    plan = ost.Session("cpu").prepare(
        g, split(weights_of(g))[0], experts=file, expert_budget=8 * ROOM
    )
    plan.buffer(g.inputs["x"]).copyin(tokens_of(5)["x"])
    plan.execute()
    (expected,) = in_memory().run(tokens_of(5))
    np.testing.assert_array_equal(plan.output_buffer().copyout(), expected)
    assert plan.memory.param_bytes < 8 * ROOM + sum(
        a.nbytes for a in split(weights_of(g))[0].values()
    )


def test_a_replay_that_could_not_read_is_told_later(path):
    g = graph(5)
    session = ost.Session("cpu")
    file = ost.moe.ExpertFile(path)
    compiled = session.compile(g, split(weights_of(g))[0], experts=file, expert_budget=ROOM)
    out = np.empty((5, FEATURES), F32)
    call = compiled.bind(tokens_of(5), [out])
    session.context.begin_graph_capture()
    call()
    session.context.end_graph_capture(1)
    with path.open("r+b") as opened:
        opened.truncate(2000)
    assert session.context.replay_graph(1)
    assert np.isnan(out).all()
    with pytest.raises(ost.ModelFormatError):
        call()


MEMORY = """
import gc, sys
import numpy as np
import ostinato as ost

def kilobytes(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key))

def run(experts, path, budget, steps):
    g = ost.Graph("layers")
    x = g.input("x", (1, 256))
    for number in range(2):
        shapes = (experts, 256, 1024), (experts, 256, 1024), (experts, 1024, 256)
        matrices = [g.param(f"{number}.{i}", s) for i, s in enumerate(shapes)]
        scale, ids = g.input(f"scale{number}", (1, 2)), g.input(f"ids{number}", (1, 2), "int64")
        x = x + g.expert_mlp(x, ids, scale, *matrices)
    g.set_outputs([x])
    if path is None:
        given = {"params": {n: np.zeros(p.shape, np.float32) for n, p in g.params.items()}}
    else:
        given = {"experts": ost.moe.ExpertFile(path), "expert_budget": budget}
    compiled = ost.Session("cpu", threads=2).compile(g, **given)
    pools = [ost.ExpertPool(layer.experts, layer.slots or 1) for layer in compiled.moe_layers]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=1))
    for step in range(steps):
        ids = np.array([[step % experts, (3 * step + 1) % experts]], np.int64)
        scale = np.ones((1, 2), np.float32)
        inputs = {"x": np.ones((1, 256), np.float32)}
        for number in range(2):
            inputs |= {f"scale{number}": scale, f"ids{number}": ids}
        loop.step(inputs)
    return loop.counters

run(2, None, None, 2)  # what a process needs anyway: the compiler, its caches, the threads
gc.collect()
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")
counters = run(24, sys.argv[1], int(sys.argv[2]), 100)
assert counters.promotions > 20 and counters.misses > 20, counters
print(1024 * (kilobytes("VmHWM") - before))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory on Linux")
def test_memory_stays_within_the_budget(tmp_path):
    rng = np.random.default_rng(0)
    path, budget = tmp_path / "experts.safetensors", 48 << 20
    shapes = [(24, 256, 1024), (24, 256, 1024), (24, 1024, 256)]
    tensors = {
        f"{number}.{i}": rng.random(shape, F32)
        for number in range(2)
        for i, shape in enumerate(shapes)
    }
    assert sum(a.nbytes for a in tensors.values()) >= 3 * budget
    ost.moe.write_safetensors(path, tensors)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path), str(budget)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    peak = int(done.stdout)
    print(peak, budget)
    assert 0.6 * budget < peak < 1.1 * budget
