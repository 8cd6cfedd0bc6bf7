"""The step graph: rows of many sequences, choices, blocks, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.step import StepGraph
from ostinato.llm.step_graph import step_graph
from ostinato.llm.step_sizes import StepLimits
from ostinato.records import replace
from tests.allocations import blocks_gathered
from tests.llm.greedy import LIMITS, feed, spread_blocks
from tests.llm.tiny_models import load_expected, prompt, write_folder

SMALL = StepLimits(rows=64, sequences=4, picks=8, blocks=12, context=192, adjustments=6)

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    expected = load_expected("llama")
    folder = tmp_path_factory.mktemp("llama")
    write_folder(folder, expected.config, expected.shapes, 0)
    return open_checkpoint(folder)


@pytest.fixture(scope="module")
def step(checkpoint: Checkpoint) -> StepGraph:
    return StepGraph(checkpoint, SMALL)


@pytest.fixture(autouse=True)
def fresh(step: StepGraph) -> None:
    """Give every test neutral inputs and blocks in no order."""
    spread_blocks(step)
    inputs = step.inputs
    inputs.allowed[:] = 0xFFFFFFFF
    for name in ("temperature", "top_k", "min_p", "uniform", "adjust_bias", "adjust_penalty"):
        getattr(inputs, name)[:] = 0
    inputs.top_p[:] = 1
    inputs.adjust_repetition[:] = 1
    inputs.adjust_pick[:] = inputs.adjust_token[:] = 0


def logits_of(step: StepGraph, tokens: list[int], chunk: int, sequence: int = 0) -> Array:
    """The logits of all tokens of a sequence, read in chunks."""
    found = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        feed(step, part, start, sequence=sequence)
        step.inputs.pick[: len(part)] = np.arange(len(part))
        step.run(len(part), len(part), 1)
        found.append(step.outputs.logits[: len(part)].copy())
    return np.concatenate(found)


def test_rows_of_many_sequences_are_computed_side_by_side(step: StepGraph):
    tokens = [prompt(131, 8, seed) for seed in range(4)]
    alone = [logits_of(step, t, 8, sequence=s) for s, t in enumerate(tokens)]
    for sequence in range(4):  # two tokens of each, then the rest
        feed(step, tokens[sequence][:6], 0, sequence=sequence, at=6 * sequence)
    step.inputs.pick[:4] = np.arange(4) * 6 + 5
    step.run(24, 4, 1)
    for sequence in range(4):
        assert np.array_equal(step.outputs.logits[sequence], alone[sequence][5])
    for sequence in range(4):
        feed(step, tokens[sequence][6:], 6, sequence=sequence, at=2 * sequence)
    step.inputs.pick[:8] = np.arange(8)
    step.run(8, 8, 1)
    for row in range(8):
        assert np.array_equal(step.outputs.logits[row], alone[row // 2][6 + row % 2])


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_of_a_prompt_have_its_logits(step: StepGraph, chunk: int):
    tokens = prompt(131, 8, 0)
    whole, parts = logits_of(step, tokens, 8), logits_of(step, tokens, chunk)
    assert np.array_equal(whole, parts)


def test_logprobs_are_of_the_unadjusted_distribution(step: StepGraph):
    feed(step, prompt(131, 5, 0), 0)
    step.inputs.pick[0] = 4
    step.inputs.adjust_token[0] = 17
    step.inputs.adjust_bias[0] = 1000
    step.run(5, 1, 1)
    logits = step.outputs.logits[0].astype(np.float64)
    assert step.outputs.token[0] == 17
    wanted = logits[17] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert np.isclose(step.outputs.logprob[0], wanted, atol=1e-4)


def test_adjustments_change_choices_of_their_own_row(step: StepGraph):
    feed(step, prompt(131, 5, 0), 0)
    step.inputs.pick[:2] = [4, 4]
    step.run(5, 2, 1)
    order = np.argsort(-step.outputs.logits[0])
    assert step.outputs.token[:2].tolist() == [order[0], order[0]]
    assert step.outputs.logits[0, order[0]] > 0
    changes = [("bias", -1000), ("repetition", 1e6), ("penalty", 1000)]
    for name, value in changes:
        array = getattr(step.inputs, f"adjust_{name}")
        former = array[0]
        step.inputs.adjust_pick[:2] = [1, 0]
        step.inputs.adjust_token[:2] = [order[0], 0]
        array[0] = value
        step.run(5, 2, 2)
        assert step.outputs.token[:2].tolist() == [order[0], order[1]], name
        array[0] = former


def test_only_allowed_tokens_are_chosen(step: StepGraph):
    feed(step, prompt(131, 5, 0), 0)
    step.inputs.pick[0] = 4
    for token in (0, 31, 32, 130):
        step.inputs.allowed[0] = 0
        step.inputs.allowed[0, token // 32] = 1 << token % 32
        step.run(5, 1, 1)
        assert step.outputs.token[0] == token


def test_choices_are_drawn_by_the_numbers_given(step: StepGraph):
    feed(step, prompt(131, 5, 0), 0)
    step.inputs.pick[:8] = 4
    step.inputs.temperature[:8] = 1
    step.inputs.uniform[:8] = np.linspace(0, 0.999, 8)
    step.run(5, 8, 1)
    logits = step.outputs.logits[0].astype(np.float64)
    sums = np.cumsum(np.exp(logits - logits.max()))
    wanted = np.searchsorted(sums / sums[-1], step.inputs.uniform[:8].astype(float), "right")
    assert np.abs(step.outputs.token[:8] - wanted).max() == 0
    step.inputs.top_k[:8] = 1
    step.run(5, 8, 1)
    assert (step.outputs.token[:8] == logits.argmax()).all()


def test_blocks_are_copied_read_and_written(step: StepGraph):
    tokens = prompt(131, 40, 0)
    logits_of(step, tokens, 8)
    follow = [5, 6]
    wanted = logits_after(step, follow, 40)
    spare = 11
    first = int(step.inputs.table[0, 0])
    if spare == first:
        spare = 10
    kept = step.pools.read_block(first)
    assert len(kept) == step.pools.block_bytes["block"] > 0
    step.pools.copy_block(first, spare)
    step.pools.write_block(first, bytes(len(kept)))
    step.inputs.table[0, 0] = spare
    assert np.array_equal(logits_after(step, follow, 40), wanted)
    step.pools.write_block(first, kept)
    step.inputs.table[0, 0] = first
    assert np.array_equal(logits_after(step, follow, 40), wanted)
    assert step.pools.save_slot(0) == b"" and step.pools.slot_bytes == 0
    step.pools.load_slot(0, b"")


def logits_after(step: StepGraph, tokens: list[int], start: int) -> Array:
    """The logits of a few more tokens."""
    feed(step, tokens, start)
    step.inputs.pick[: len(tokens)] = np.arange(len(tokens))
    step.run(len(tokens), len(tokens), 1)
    return step.outputs.logits[: len(tokens)].copy()


def test_a_clone_has_pools_of_its_own(step: StepGraph):
    tokens = prompt(131, 8, 0)
    wanted = logits_of(step, tokens, 8)
    twin = step.clone()
    spread_blocks(twin)
    assert np.array_equal(logits_of(twin, tokens, 8), wanted)
    twin.pools.write_block(int(twin.inputs.table[0, 0]), bytes(twin.pools.block_bytes["block"]))
    assert np.array_equal(logits_after(step, tokens[-1:], 7), wanted[-1:])
    twin.close()
    with pytest.raises(ost.PlanError, match="closed"):
        twin.run(1, 1, 1)
    assert np.array_equal(logits_after(step, tokens[-1:], 7), wanted[-1:])


@pytest.mark.parametrize("sizes", [(0, 1, 1), (65, 1, 1), (1, 9, 1), (1, 1, 7), (1, 0, 1)])
def test_sizes_beyond_the_limits_are_refused(step: StepGraph, sizes: tuple[int, int, int]):
    with pytest.raises(ost.InputError, match="a step takes 1 to"):
        step.run(*sizes)


def test_what_does_not_exist_is_refused(step: StepGraph):
    with pytest.raises(ost.InputError, match="no block 12 among 12"):
        step.pools.copy_block(0, 12)
    with pytest.raises(ost.InputError, match="no block -1"):
        step.pools.read_block(-1)
    with pytest.raises(ost.InputError, match="no sequence 4 among 4"):
        step.pools.save_slot(4)
    before = step.pools.read_block(0)
    with pytest.raises(ost.InputError, match="bytes, got 3"):
        step.pools.write_block(0, b"abc")
    assert step.pools.read_block(0) == before


def test_steps_allocate_nothing(step: StepGraph):
    feed(step, prompt(131, 5, 0), 0)
    step.inputs.pick[:2] = [3, 4]
    assert blocks_gathered(lambda: step.run(5, 2, 1), 300) < 50


def test_calls_of_many_sizes_make_room_for_each_other(step: StepGraph):
    tokens = prompt(131, 8, 0)
    wanted = logits_of(step, tokens, 8)
    for rows in range(1, 65):
        for picks in range(1, 6):
            feed(step, [5] * rows, 8)
            step.inputs.pick[:picks] = 0
            step.run(rows, picks, 1 + rows % 6)
    assert np.array_equal(logits_of(step, tokens, 8), wanted)


def test_blocks_apart_are_for_some_layers_with_a_window(checkpoint: Checkpoint):
    with pytest.raises(ost.InputError, match="window_blocks are for models with layers both"):
        StepGraph(checkpoint, replace(LIMITS, window_blocks=4))
    with pytest.raises(ost.InputError, match="window_blocks of a step is zero or a positive"):
        StepGraph(checkpoint, replace(LIMITS, window_blocks=-1))


@pytest.mark.parametrize("name", ["rows", "blocks", "adjustments"])
def test_limits_are_positive_numbers(checkpoint: Checkpoint, name: str):
    for wrong in (0, -1, 2.5, True, None):
        with pytest.raises(ost.InputError, match=f"{name} of a step is a positive number"):
            StepGraph(checkpoint, replace(SMALL, **{name: wrong}))


def test_a_table_of_positions_bounds_the_context(tmp_path: Path):
    expected = load_expected("gpt2")
    write_folder(tmp_path, expected.config, expected.shapes, 0)
    with pytest.raises(ost.InputError, match="512 positions; a context of 513"):
        StepGraph(open_checkpoint(tmp_path), replace(SMALL, context=513))


def test_wild_numbers_harm_nothing(step: StepGraph):
    tokens = prompt(131, 8, 0)
    wanted = logits_of(step, tokens, 8)
    kept = step.inputs.table.copy()
    for name in ("tokens", "sequence", "position", "table", "pick", "adjust_pick", "adjust_token"):
        array = getattr(step.inputs, name)
        for wild in (-(2**31), -1, 10**6, 2**31 - 1):
            former = array.copy()
            array[:] = wild
            step.run(8, 2, 2)
            array[:] = former
    step.inputs.table[:] = kept
    assert np.array_equal(logits_of(step, tokens, 8), wanted)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16"])
def test_pools_may_be_narrow(checkpoint: Checkpoint, kv_dtype: str):
    exact, narrow = (StepGraph(checkpoint, SMALL, kv_dtype=d) for d in ("float32", kv_dtype))
    tokens = prompt(131, 40, 0)
    found = []
    for step in (exact, narrow):
        spread_blocks(step)
        found.append(logits_of(step, tokens, 8))
    share = {"float32": 0, "float16": 1e-2, "bfloat16": 5e-2}[kv_dtype]
    assert np.abs(found[0] - found[1]).max() <= share * np.abs(found[0]).max()
    assert exact.pools.block_bytes["block"] // narrow.pools.block_bytes["block"] == (
        1 if kv_dtype == "float32" else 2
    )


def test_optimised_and_plain_steps_agree(checkpoint: Checkpoint):
    limits = replace(LIMITS, rows=32, context=128, blocks=4)
    plain = ost.CompileOptions(optimize=False)
    tokens = prompt(131, 20, 0)
    found = []
    for options in (None, plain):
        step = StepGraph(checkpoint, limits, options=options, kv_dtype="float32")
        spread_blocks(step)
        found.append(logits_of(step, tokens, 2))
    assert np.allclose(*found, atol=1e-4)


OTHERS = replace(SMALL, sequences=3, picks=5, blocks=10, context=130, adjustments=9)


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "deepseek_v3"])
def test_the_graph_is_the_same_for_other_limits(tmp_path: Path, family: str):
    expected = load_expected(family)
    write_folder(tmp_path, expected.config, expected.shapes, 0)
    model = open_checkpoint(tmp_path)
    texts = [str(step_graph(model, given, shared=True)[0]) for given in (SMALL, OTHERS)]
    assert texts[0] == texts[1]
    texts = [str(step_graph(model, given)[0]) for given in (SMALL, OTHERS)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_other_limits_give_the_same_bits(tmp_path: Path, family: str):
    expected = load_expected(family)
    write_folder(tmp_path, expected.config, expected.shapes, 0)
    model = open_checkpoint(tmp_path)
    found = []
    for given in (SMALL, OTHERS):
        made = StepGraph(model, given)
        spread_blocks(made)
        found.append(logits_of(made, prompt(131, 100, 3), 5, sequence=2))
    assert np.array_equal(*found)
