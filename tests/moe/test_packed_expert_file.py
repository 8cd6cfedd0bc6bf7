"""Packed experts in a GGUF file: the same bits as in memory, whichever of them are resident."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import DeviceUnavailableError
from ostinato.frontends.gguf import GGUFFile
from ostinato.frontends.gguf.tensor_types import TENSOR_TYPES
from ostinato.frontends.gguf.writer import GGUFWriter, TensorEntry
from ostinato.moe.mxfp4 import joined
from ostinato.ops.packed.decoding import decode
from ostinato.ops.packed.formats import FORMATS
from tests.packed_blocks import random_blocks
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]

F32 = np.float32
EXPERTS, ROWS, FEATURES, HIDDEN = 5, 9, 512, 256

COMPUTED = [name for name, form in FORMATS.items() if form.computed]

#: Of each format, the number of its type in files.
TYPES = {kind.format: number for number, kind in TENSOR_TYPES.items() if kind.format is not None}


def blocks(form: str, experts: int, columns: int, depth: int, seed: int = 0) -> Array:
    """Random matrices as packed rows."""
    count = experts * columns * depth // FORMATS[form].size
    rng = np.random.default_rng(seed)
    found = random_blocks(rng, form.removeprefix("gguf:"), count, hard=False)
    return found.reshape(experts, columns, -1)


def graph(form: str, columns: int = HIDDEN + 7, rows: Any = ROWS, down: str = "") -> ost.Graph:
    """Two matmuls of the same choice: in, as wide as asked for, and out again."""
    g = ost.Graph("experts")
    x, ids = g.input("x", (rows, FEATURES)), g.input("ids", (rows,), "int64")
    kinds = {"up": (form, columns, FEATURES), "down": (down or form, 33, HIDDEN)}
    params = {}
    for name, (kind, outputs, depth) in kinds.items():
        packed = FORMATS[kind].row_bytes(depth)
        params[name] = g.param(name, (EXPERTS, outputs, packed), "uint8")
    hidden = g.packed_grouped_matmul(x, params["up"], ids, form)
    inner = g.silu(hidden[:, :HIDDEN]) * 0.5
    g.set_outputs([g.packed_grouped_matmul(inner, params["down"], ids, down or form), hidden])
    return g


def weights(form: str, columns: int = HIDDEN + 7, down: str = "") -> dict[str, Array]:
    return {
        "up": blocks(form, EXPERTS, columns, FEATURES, 1),
        "down": blocks(down or form, EXPERTS, 33, HIDDEN, 2),
    }


def write(path: Path, arrays: dict[str, Array], formats: dict[str, str]) -> Path:
    entries = []
    for name, array in arrays.items():
        form = FORMATS[formats[name]]
        elements = array.shape[-1] // form.nbytes * form.size
        kind = TENSOR_TYPES[TYPES[form.name]]
        entries.append(TensorEntry(name, (*array.shape[:-1], elements), kind))
    with GGUFWriter(path, {}, entries) as writer:
        for array in arrays.values():
            writer.write(np.ascontiguousarray(array))
    return path


def feeds(rows: int = ROWS, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, FEATURES)).astype(F32)
    return {"x": x, "ids": rng.integers(-1, EXPERTS, rows)}


class Model:
    """A graph whose experts are in a file, and the same with all in memory."""

    def __init__(self, folder: Path, form: str, *, rows: Any = ROWS, down: str = "", **kw: Any):
        arrays = weights(form, down=down)
        self.form, self.down, self.rows = form, down, rows
        self.path = write(folder / "e.gguf", arrays, {"up": form, "down": down or form})
        self.session = ost.Session("cpu", **kw)
        self.plain = self.session.compile(graph(form, rows=rows, down=down), arrays)
        self.expert_bytes = sum(array[0].nbytes for array in arrays.values())

    def compiled(self, budget: int | None = None, **file: Any) -> ost.CompiledGraph:
        experts = ost.moe.ExpertFile(GGUFFile(self.path), **file)
        g = graph(self.form, rows=self.rows, down=self.down)
        return self.session.compile(g, experts=experts, expert_budget=budget)

    def slots(self, wanted: int) -> ost.CompiledGraph:
        """With room for so many slots, by the least budget that gives them."""
        low, high = 0, 12 * self.expert_bytes
        found = self.compiled(high)
        while high - low > self.expert_bytes // 32:
            budget = (low + high) // 2
            try:
                tried = self.compiled(budget)
            except ost.InputError:
                low = budget
                continue
            if tried.moe_layers[0].slots >= wanted:
                found, high = tried, budget
            else:
                low = budget
        return found


def check(found: ost.CompiledGraph, model: Model, inputs: dict[str, Array]) -> None:
    for got, expected in zip(found.run(inputs), model.plain.run(inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "form",
    # Others are read by the same ranges.
    [
        pytest.param(f, marks=[] if n % 3 == 0 else [pytest.mark.slow])
        for n, f in enumerate(COMPUTED)
    ],
)
def test_budgets_change_no_bit(form: str, tmp_path: Path) -> None:
    model = Model(tmp_path, form, threads=2)
    seen = set()
    whole = model.compiled()
    check(whole, model, feeds())
    assert whole.moe_layers[0].slots == EXPERTS
    for share in (2.2, 3.6, 20):
        found = model.compiled(int(share * model.expert_bytes))
        seen.add(found.moe_layers[0].slots)
        for seed in range(2):
            check(found, model, feeds(seed=seed))
    assert max(seen) == EXPERTS > min(seen)


@pytest.mark.parametrize("slots", range(EXPERTS + 1))
def test_every_number_of_slots(slots: int, tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q4_k", down="gguf:q6_k")
    found = model.slots(slots)
    assert found.moe_layers[0].slots == slots
    check(found, model, feeds())


@pytest.mark.parametrize(
    ("form", "level"), every_second(["gguf:mxfp4", "gguf:q5_k"], ["avx512", "avx2", "sse2"])
)
def test_levels(form: str, level: str, tmp_path: Path) -> None:
    try:
        model = Model(tmp_path, form, options=ost.CompileOptions(target=level))
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    check(model.slots(1), model, feeds())


@pytest.mark.parametrize("options", [{"optimize": False}, {"verify": True}, {"prefetch": False}])
def test_options(options: dict[str, bool], tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q4_0", options=ost.CompileOptions(**options))
    check(model.slots(2), model, feeds())


def test_sizes_that_vary_and_rows_on_their_own(tmp_path: Path) -> None:
    """A row has the same bits alone, among others, and in any part of them."""
    model = Model(tmp_path, "gguf:q8_0", rows=ost.Variable("rows", 1, 300))
    found = model.slots(2)
    inputs = feeds(300)
    check(found, model, inputs)
    whole = model.plain.run(inputs)
    for begin, end in ((0, 1), (17, 18), (40, 77), (299, 300)):
        part = {name: np.ascontiguousarray(a[begin:end]) for name, a in inputs.items()}
        for got, expected in zip(found.run(part), whole, strict=True):
            np.testing.assert_array_equal(got, expected[begin:end])


def test_masks_and_counters(tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q4_0")
    found = model.slots(2)
    nbytes = model.expert_bytes
    rng = np.random.default_rng(0)
    before = np.arange(EXPERTS) < 2
    for step in range(8):
        mask = np.zeros(EXPERTS, np.bool_)
        mask[rng.permutation(EXPERTS)[: rng.integers(0, 3)]] = True
        moved = found.moe_transfers
        found.set_moe_resident_experts(mask)
        after = found.moe_transfers
        promoted = np.count_nonzero(mask & ~before)
        assert after.promotions - moved.promotions == promoted
        assert after.demotions - moved.demotions == np.count_nonzero(before & ~mask)
        assert after.bytes_moved - moved.bytes_moved == promoted * nbytes
        before = mask
        inputs = feeds(seed=step)
        found.enable_moe_topk_capture(EXPERTS)
        check(found, model, inputs)
        (called,) = found.take_moe_topk_capture()
        expected = np.where(inputs["ids"] < 0, inputs["ids"] + EXPERTS, inputs["ids"])
        np.testing.assert_array_equal(called.reshape(-1), expected)
        stats = found.take_moe_residency_stats()
        missed = np.setdiff1d(expected, np.flatnonzero(mask))
        assert stats.cpu_expert_calls == len(missed)
        assert stats.gpu_tokens + stats.cpu_tokens == ROWS
        assert found.moe_transfers.bytes_staged - after.bytes_staged == len(missed) * nbytes


def test_residency_by_policy(tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q6_k")
    found = model.slots(2)
    pools = [ost.ExpertPool(layer.experts, layer.slots) for layer in found.moe_layers]
    loop = ost.moe.ResidencyLoop(found, pools, ost.TidePolicy(refresh_every=2))
    for step in range(6):
        inputs = {**feeds(seed=step), "ids": np.full(ROWS, 3 + step % 2)}
        for got, expected in zip(loop.step(inputs), model.plain.run(inputs), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert [*pools[0].resident] == [3, 4]
    assert loop.counters.promotions == 2
    assert loop.counters.bytes_moved == 2 * model.expert_bytes
    assert loop.counters.hit_rate > 0.5


def test_capture_and_replay(tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q4_1")
    found = model.slots(1)
    inputs = feeds()
    outs = [np.empty((ROWS, 33), F32), np.empty((ROWS, HIDDEN + 7), F32)]
    call = found.bind(inputs, outs)
    context = model.session.context
    context.begin_graph_capture()
    call()
    context.end_graph_capture(1)
    for seed in range(3):
        for name, array in feeds(seed=seed).items():
            inputs[name][...] = array
        found.set_moe_resident_experts(np.arange(EXPERTS) == seed)
        for out in outs:
            out[...] = 0
        assert context.replay_graph(1)
        for got, expected in zip(outs, model.plain.run(inputs), strict=True):
            np.testing.assert_array_equal(got, expected)
        assert found.take_moe_residency_stats().cpu_expert_calls > 0


def test_clones_and_matrices_of_several_pieces(tmp_path: Path) -> None:
    g = ost.Graph("wide")
    x, ids = g.input("x", (3, 4096)), g.input("ids", (3,), "int64")
    form = "gguf:q8_0"
    array = blocks(form, 3, 200, 4096)
    w = g.param("w", array.shape, "uint8")
    g.set_outputs([g.packed_grouped_matmul(x, w, ids, form)])
    path = write(tmp_path / "e.gguf", {"w": array}, {"w": form})
    session = ost.Session("cpu", threads=2)
    experts = ost.moe.ExpertFile(GGUFFile(path), transposed=True)
    found = session.compile(g, experts=experts, expert_budget=2_200_000)
    assert 0 < found.moe_layers[0].slots < 3
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 4096)).astype(F32)}
    inputs["ids"] = np.array([2, 0, 1])
    (expected,) = session.compile(g, {"w": array}).run(inputs)
    twin = found.clone()
    for each in (found, twin):
        np.testing.assert_array_equal(each.run(inputs)[0], expected)
    np.testing.assert_allclose(
        expected[0], inputs["x"][0] @ decode(array[2], form).T, rtol=0.05, atol=0.05 * 64
    )


def test_packed_and_plain_experts_of_one_layer(tmp_path: Path) -> None:
    """A layer whose gates are floats, beside packed matrices."""
    form, experts = "gguf:q8_0", EXPERTS
    rng = np.random.default_rng(0)
    gate = rng.standard_normal((experts, 64, 32)).astype(F32)
    up = blocks(form, experts, 64, 32)
    g = ost.Graph("both")
    x, ids = g.input("x", (4, 32)), g.input("ids", (4,), "int64")
    plain = g.grouped_matmul(x, g.param("gate", (experts, 32, 64)), ids)
    packed = g.packed_grouped_matmul(x, g.param("up", up.shape, "uint8"), ids, form)
    g.set_outputs([plain * packed])
    kinds = [TensorEntry("gate", gate.shape, TENSOR_TYPES[0])]
    kinds.append(TensorEntry("up", (experts, 64, 32), TENSOR_TYPES[TYPES[form]]))
    with GGUFWriter(tmp_path / "e.gguf", {}, kinds) as writer:
        writer.write(gate)
        writer.write(up)
    session = ost.Session("cpu")
    file = ost.moe.ExpertFile(GGUFFile(tmp_path / "e.gguf"), transposed=True)
    found = session.compile(g, experts=file, expert_budget=45_000)
    (layer,) = found.moe_layers
    assert 0 < layer.slots < experts
    inputs = {"x": rng.standard_normal((4, 32)).astype(F32), "ids": np.array([4, 0, 2, 4])}
    whole = session.compile(g, {"gate": gate.swapaxes(1, 2).copy(), "up": up})
    np.testing.assert_array_equal(found.run(inputs), whole.run(inputs))


def test_blocks_and_scales_of_a_safetensors_file(tmp_path: Path) -> None:
    """MXFP4 as gpt_oss folders have it."""
    rng = np.random.default_rng(0)
    octets = rng.integers(0, 256, (EXPERTS, 37, 3, 16), np.uint8)
    scales = rng.integers(120, 130, (EXPERTS, 37, 3), np.uint8)
    file = tmp_path / "e.safetensors"
    ost.moe.write_safetensors(file, {"w_blocks": octets, "w_scales": scales})
    whole = np.stack([joined(*parts) for parts in zip(octets, scales, strict=True)])

    def build(nbytes: int = 51) -> ost.Graph:
        g = ost.Graph("blocks")
        x, ids = g.input("x", (ROWS, nbytes // 17 * 32)), g.input("ids", (ROWS,), "int64")
        w = g.param("w", (EXPERTS, 37, nbytes), "uint8")
        g.set_outputs([g.packed_grouped_matmul(x, w, ids, "gguf:mxfp4")])
        return g

    session = ost.Session("cpu")
    plain = session.compile(build(), {"w": whole})
    inputs = {"x": rng.standard_normal((ROWS, 96)).astype(F32), "ids": feeds()["ids"]}
    for budget in (None, 9_000):
        found = session.compile(build(), experts=ost.moe.ExpertFile(file), expert_budget=budget)
        np.testing.assert_array_equal(found.run(inputs), plain.run(inputs))
    assert 0 < found.moe_layers[0].slots < EXPERTS
    with pytest.raises(ost.InputError, match=r"are rows of gguf:mxfp4, uint8\[5, 37, 51\]"):
        session.compile(build(34), experts=ost.moe.ExpertFile(file))
    ost.moe.write_safetensors(file, {"w_blocks": octets})
    with pytest.raises(ost.InputError, match="has no tensor 'w_scales'"):
        session.compile(build(), experts=ost.moe.ExpertFile(file))


def test_budgets_and_tensors_that_do_not_fit(tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q4_0")
    with pytest.raises(ost.InputError, match="one expert takes"):
        model.compiled(1000)
    with pytest.raises(ost.InputError, match=r"tensor 'down' is uint8\[5, 33, 144\], expected"):
        model.compiled(tensors={"up": "down", "down": "down"})
    with pytest.raises(ost.InputError, match="never set: down"):
        model.compiled(tensors={"up": "up"}).run(feeds())
    g = graph("gguf:q4_0")
    g.set_outputs([*g.outputs.values(), g.sum(g.cast(g.params["up"], "int64"))])
    file = ost.moe.ExpertFile(GGUFFile(model.path))
    with pytest.raises(ost.InputError, match="'up' is in the file of experts, but is also read by"):
        model.session.compile(g, experts=file)


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    model = Model(tmp_path, "gguf:q5_0")
    found = model.slots(1)
    with model.path.open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(ost.ModelFormatError, match="was written"):
        found.run(feeds())
    with pytest.raises(ost.ModelFormatError, match="was written"):
        found.set_moe_resident_experts(np.arange(EXPERTS) == 4)


def test_formats_that_no_matmul_takes_are_not_in_the_file(tmp_path: Path) -> None:
    entry = TensorEntry("w", (EXPERTS, 3, 64), TENSOR_TYPES[TYPES["gguf:nvfp4"]])
    with GGUFWriter(tmp_path / "e.gguf", {}, [entry]) as writer:
        writer.write(np.zeros(entry.nbytes, np.uint8))
    assert ost.moe.ExpertFile(GGUFFile(tmp_path / "e.gguf")).names == ()


MEMORY = """
import gc, sys
import numpy as np
import ostinato as ost
from ostinato.frontends.gguf import GGUFFile

def kilobytes(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key))

def run(experts, path, budget, steps):
    g = ost.Graph("layer")
    x, ids = g.input("x", (1, 1024)), g.input("ids", (1,), "int64")
    for name in ("in", "out"):
        w = g.param(name, (experts, 1024, 1024 // 32 * 34), "uint8")
        x = g.packed_grouped_matmul(x, w, ids, "gguf:q8_0")
    g.set_outputs([x])
    if path is None:
        given = {"params": {n: np.zeros(p.shape, np.uint8) for n, p in g.params.items()}}
    else:
        given = {"experts": ost.moe.ExpertFile(GGUFFile(path)), "expert_budget": budget}
    compiled = ost.Session("cpu", threads=2).compile(g, **given)
    pools = [ost.ExpertPool(layer.experts, layer.slots or 1) for layer in compiled.moe_layers]
    loop = ost.moe.ResidencyLoop(compiled, pools, ost.TidePolicy(refresh_every=1))
    for step in range(steps):
        inputs = {"x": np.ones((1, 1024), np.float32), "ids": np.array([5 * step % experts])}
        loop.step(inputs)
    return loop.counters

run(2, None, None, 2)  # what a process needs anyway: the compiler, its caches, the threads
gc.collect()
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as peaks:
    peaks.write("5")
counters = run(64, sys.argv[1], int(sys.argv[2]), 100)
assert counters.promotions > 20 and counters.misses > 20, counters
print(1024 * (kilobytes("VmHWM") - before))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory on Linux")
def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """Of packed matrices three times as large."""
    rng, budget = np.random.default_rng(0), 46 << 20
    shape = (64, 1024, 1024)
    entries = [TensorEntry(name, shape, TENSOR_TYPES[TYPES["gguf:q8_0"]]) for name in ("in", "out")]
    assert sum(entry.nbytes for entry in entries) >= 2.9 * budget
    one = random_blocks(rng, "q8_0", 1024 * 32, hard=False).reshape(-1)
    with GGUFWriter(tmp_path / "e.gguf", {}, entries) as writer:
        for _ in entries:
            writer.write(np.tile(one, 64))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "e.gguf"), str(budget)],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    peak = int(done.stdout)
    compiling = 8 << 20  # and a matrix on its way to a slot
    assert 0.6 * budget < peak < budget + compiling, (peak, budget)
