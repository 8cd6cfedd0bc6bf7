"""Steps of language models on the CUDA device, with a driver in this process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import InputError
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.engine.requests import Request
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from ostinato.plan.device_array import DeviceArray
from ostinato.records import replace
from tests.devices.registered import open_session, registered
from tests.llm.greedy import feed, forced, spread_blocks
from tests.llm.tiny_llm import write_llm, write_tokenizer
from tests.llm.tiny_models import load_expected, prompt, write_folder

LIMITS = StepLimits(rows=32, sequences=2, picks=2, blocks=4, context=128, adjustments=2)


@pytest.fixture(scope="module")
def cuda() -> ost.Session:
    return open_session("cudahost")


def checkpoint_of(family: str, folder: Path) -> Checkpoint:
    expected = load_expected(family)
    write_folder(folder, expected.config, expected.shapes, 0)
    return open_checkpoint(folder)


def driver_of(session: ost.Session) -> Any:
    backend: Any = session._backend
    return backend.host


@pytest.mark.parametrize("family", ["gemma3", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def test_answers_are_those_of_transformers(family: str, cuda: ost.Session, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(family, tmp_path)
    answer = load_expected(family).tokens[0, 1].tolist()[:2]
    text = prompt(checkpoint.config.vocabulary, 17, 0)
    steps = [StepGraph(checkpoint, LIMITS, kv_dtype="float32")]
    steps.append(StepGraph(checkpoint, LIMITS, kv_dtype="float32", session=cuda))
    found = []
    for step in steps:
        spread_blocks(step)
        found.append(forced(step, text, answer, chunk=16))
    (_, exact), (tokens, logits) = found
    assert tokens == answer
    np.testing.assert_allclose(logits, exact, atol=1e-5 * np.abs(exact).max())


def test_a_model_answers_as_on_the_cpu(tmp_path: Path) -> None:
    """Two branches of a prompt, whose last block both continue, drawn from the distribution."""
    folder, answers = write_llm(tmp_path), []
    for device in ("cpu", "cudahost"):
        with (
            registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"),
            ost.llm.load(folder, device=device, context=64, sequences=2) as model,
        ):
            sampling = {"temperature": 1.0, "seed": 3, "max_tokens": 4}
            found = model.generate("+,-./+,-./+,", n=2, logprobs=1, **sampling)
            assert model.limits.kv_bytes > 0
        answers.append([found.tokens, *(other.tokens for other in found.alternatives)])
        assert len(found.logprobs) == len(found.tokens)
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_prompts_and_answers_share_steps_on_pools_of_bfloat16(tmp_path: Path) -> None:
    """Heads of 64 features, whose attention is for tensor cores: of few rows, and of many."""
    expected = load_expected("llama")
    config = {**expected.config, "head_dim": 64, "num_hidden_layers": 2}
    shapes = {}
    for name, shape in expected.shapes.items():
        if not name.startswith(("model.layers.2", "model.layers.3")):
            sizes = [*shape]
            if "self_attn" in name:
                sizes["o_proj" in name] *= 4
            shapes[name] = sizes
    write_folder(tmp_path, config, shapes, 0)
    write_tokenizer(tmp_path, config["vocab_size"])
    answers = []
    for device in ("cpu", "cudahost"):
        with (
            registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"),
            ost.llm.load(tmp_path, device=device, context=192, sequences=4) as model,
        ):
            sampling = ost.llm.Sampling(temperature=0.0, max_tokens=5)
            prompts = [("+,-./" * 30)[:length] for length in (70, 3, 33, 1, 130)]
            answers.append([found.tokens for found in model.generate_many(prompts, sampling)])
    assert answers[0] == answers[1]


def test_steps_are_started_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three answers, of which one ends before the others: steps of other sizes come then."""
    folder, answers, started = write_llm(tmp_path), [], []
    start = StepGraph.start

    def counted(step: StepGraph, rows: int, picks: int, adjustments: int) -> None:
        start(step, rows, picks, adjustments)
        started.append(step._started.call is not None)

    monkeypatch.setattr(StepGraph, "start", counted)
    requests = [("+,-./", 9), ("abc", 4), ("+,-", 9)]
    for device in ("cpu", "cudahost"):
        with (
            registered(cudahost="tests.devices.cuda_host.backend:CudaHostBackend"),
            ost.llm.load(folder, device=device, context=64, sequences=3) as model,
        ):
            engine = model.engine()
            tickets = [
                engine.submit(Request(prompt, ost.llm.Sampling(seed=3, max_tokens=most)))
                for prompt, most in requests
            ]
            answers.append([ticket.result(60).tokens for ticket in tickets])
    assert answers[0] == answers[1]
    assert sum(started) > 3  # those that were not are the first ones of their sizes


def test_free_memory_is_that_of_the_gpu(cuda: ost.Session) -> None:
    driver = driver_of(cuda)
    before = cuda.context.free_memory
    assert before == driver.memory_info()[0]
    kept = cuda.context.upload(np.zeros(1 << 20, np.float32))
    assert before - cuda.context.free_memory == kept.nbytes
    assert ost.Session("cpu").context.free_memory is None


def test_keys_values_and_logits_stay_on_the_device(cuda: ost.Session, tmp_path: Path) -> None:
    """A step copies its small inputs and outputs, and is one launch of a graph."""
    step = StepGraph(checkpoint_of("llama", tmp_path), LIMITS, session=cuda)
    assert all(isinstance(pool, DeviceArray) for pool in step.pools.arrays.values())
    spread_blocks(step)
    driver = driver_of(cuda)
    for position in range(4):
        feed(step, [position], position)
        if position == 2:
            driver.events.clear()
        step.run(1, 1, 1)
    assert {name for name, _ in driver.events} <= {"launch_graph", "synchronize"}
    assert step.outputs.logits[0].shape == (step.config.vocabulary,)
    assert step.outputs.logits[0].argmax() == step.outputs.token[0]
    np.testing.assert_array_equal(step.outputs.logits[:1], np.asarray(step.outputs.logits)[:1])
    with pytest.raises(IndexError):
        step.outputs.logits[LIMITS.picks]


def test_pools_wait_for_a_step_that_was_started(cuda: ost.Session, tmp_path: Path) -> None:
    step = StepGraph(checkpoint_of("llama", tmp_path), LIMITS, session=cuda)
    spread_blocks(step)
    for position in range(3):
        feed(step, [position + 5], position)
        step.run(1, 1, 1)
    feed(step, [9], 3)
    step.outputs.token[:] = -1
    step.start(1, 1, 1)
    assert step._started.call is not None
    assert step.outputs.token[0] == -1
    step.pools.read_block(0)
    assert step._started.call is None
    assert step.outputs.token[0] >= 0
    step.finish()
    step.start(1, 1, 1)
    step.close()  # waits for it


def test_the_plan_is_that_of_the_last_sizes(cuda: ost.Session, tmp_path: Path) -> None:
    step = StepGraph(checkpoint_of("llama", tmp_path), LIMITS, session=cuda)
    spread_blocks(step)
    plans = [step.plan]  # of the smallest step, which is compiled first
    for count in (2, 1, 2):
        feed(step, [5] * count, 0)
        step.run(count, count, 1)
        plans.append(step.plan)
    assert plans[0] is plans[2]
    assert plans[1] is plans[3] is not plans[0]
    step.close()


def test_blocks_and_slots_of_the_device(cuda: ost.Session, tmp_path: Path) -> None:
    step = StepGraph(checkpoint_of("qwen3_next", tmp_path), LIMITS, session=cuda)
    pools, rng = step.pools, np.random.default_rng(0)
    (count,) = pools.block_bytes.values()
    first, second = (rng.integers(0, 99, count, np.uint8).tobytes() for _ in range(2))
    pools.write_block(1, first)
    pools.write_block(3, second)
    pools.copy_block(1, 2)
    assert [pools.read_block(n) for n in range(4)] == [bytes(count), first, first, second]
    saved = rng.integers(0, 99, pools.slot_bytes, np.uint8).tobytes()
    pools.load_slot(1, saved)
    assert [pools.save_slot(n) for n in range(2)] == [bytes(len(saved)), saved]
    for wrong in (
        lambda: pools.write_block(0, first[1:]),
        lambda: pools.copy_block(0, 4),
        lambda: pools.load_slot(2, saved),
    ):
        with pytest.raises(InputError):
            wrong()
    assert pools.read_block(0) == bytes(count)
    step.close()
    with pytest.raises(ost.PlanError):
        step.run(1, 1, 1)


def test_steps_of_any_size_are_those_of_the_cpu(cuda: ost.Session, tmp_path: Path) -> None:
    """Rows, picks and adjustments between the sizes that steps are compiled for."""
    model, limits = (
        checkpoint_of("llama", tmp_path),
        replace(LIMITS, rows=16, picks=5, adjustments=40),
    )
    steps = [StepGraph(model, limits, kv_dtype="float32", session=s) for s in (None, cuda)]
    found = []
    for step in steps:
        spread_blocks(step)
        inputs, results = step.inputs, []
        feed(step, range(3, 12), 0)
        feed(step, range(9, 16), 0, at=9, sequence=1)
        before = {name: getattr(inputs, name).copy() for name in ("tokens", "sequence", "pick")}
        inputs.adjust_token[:17] = np.arange(17)
        inputs.adjust_bias[:17] = 1e6
        inputs.adjust_pick[:17] = 0
        for rows, picks, adjustments in ((11, 3, 17), (3, 1, 1), (1, 1, 2), (9, 5, 3), (16, 2, 1)):
            inputs.pick[:picks] = before["pick"][:picks] = np.arange(picks) % rows
            step.run(rows, picks, adjustments)
            results.append((step.outputs.token[:picks].copy(), step.outputs.logits[:picks].copy()))
        for name, array in before.items():
            np.testing.assert_array_equal(getattr(inputs, name), array)
        pool = step.pools.arrays["kv.0.keys"]
        results.append((step.outputs.token[:0], np.asarray(pool)))
        found.append(results)
    for (tokens, logits), (exact_tokens, exact) in zip(*reversed(found), strict=True):
        np.testing.assert_array_equal(tokens, exact_tokens)
        np.testing.assert_allclose(logits, exact, atol=1e-5 * np.abs(exact).max())


def test_steps_of_all_sizes_share_their_weights(cuda: ost.Session, tmp_path: Path) -> None:
    step = StepGraph(checkpoint_of("llama", tmp_path), LIMITS, session=cuda)
    spread_blocks(step)
    step.run(1, 1, 1)
    free = driver_of(cuda).memory_info()[0]
    params = step._graph.params.values()
    weights = sum(math.prod(param.shape) * param.dtype.itemsize for param in params)
    for rows in (2, 3, 7):
        feed(step, range(rows), 0)
        step.run(rows, 1, 1)
    assert free - driver_of(cuda).memory_info()[0] < weights


def test_a_clone_has_the_sizes_and_pools_of_its_own(cuda: ost.Session, tmp_path: Path) -> None:
    step = StepGraph(checkpoint_of("llama", tmp_path), LIMITS, session=cuda)
    twin = step.clone()
    for each in (step, twin):
        spread_blocks(each)
    feed(step, [3, 4, 5], 0)
    step.run(3, 1, 1)
    assert np.asarray(step.pools.arrays["kv.0.keys"]).any()
    assert not np.asarray(twin.pools.arrays["kv.0.keys"]).any()
    step.close()
    feed(twin, [3, 4, 5], 0)
    twin.run(3, 1, 1)
    assert np.asarray(twin.pools.arrays["kv.0.keys"]).any()
