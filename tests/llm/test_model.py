"""Loaded models: answers, chats, scores, prefixes in files, engines, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.llm import LLM, Grammar, NGrams, Request, Sampling, loading
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.config import ModelConfig
from ostinato.llm.memory import block_bytes, byte_count, size_pools
from ostinato.records import replace
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.tiny_llm import TEMPLATE, write_llm

CONTEXT = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llm(tmp_path_factory.mktemp("model"))


def load(folder: Path, **options: Any) -> LLM:
    return ost.llm.load(folder, **{"context": CONTEXT, "threads": 1, **options})


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LLM]:
    with load(folder) as loaded:
        yield loaded


def test_a_prompt_is_text_or_tokens(model: LLM) -> None:
    tokens = model.tokenizer.encode("Some text")
    found = model.generate("Some text", seed=1, max_tokens=8)
    assert found.tokens == model.generate(tokens, seed=1, max_tokens=8).tokens
    assert found.tokens == model.generate(np.array(tokens), seed=1, max_tokens=8).tokens
    shown = [token for token in found.tokens if token > 2]
    assert found.text == "".join(model.tokenizer.piece(token) or "" for token in shown)


def test_parameters_come_from_defaults_then_overrides(model: LLM) -> None:
    assert model.generate("a", Sampling(max_tokens=3), ignore_eos=True).usage.completion == 3
    assert model.generate("a", max_tokens=2, ignore_eos=True).usage.completion == 2
    with pytest.raises(ost.InputError, match="unknown sampling parameter 'temprature'; known are"):
        model.generate("a", temprature=1)
    with pytest.raises(ost.InputError, match=r"sampling is an ost\.llm\.Sampling, got dict"):
        model.generate("a", {"seed": 1})  # type: ignore[arg-type]


def test_a_chat_is_its_rendered_template(model: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    found = model.chat(messages, seed=1, max_tokens=8)
    rendered = "user: hi\nassistant: "
    assert model.template is not None
    assert model.template.render(messages) == rendered
    assert found.tokens == model.generate(rendered, seed=1, max_tokens=8).tokens
    with model.stream_chat(messages, seed=1, max_tokens=8) as stream:
        parts = [*stream]
    assert sum((part.tokens for part in parts), ()) == found.tokens
    assert "".join(part.text for part in parts) == found.text


def test_many_prompts_have_the_answers_of_each(model: LLM) -> None:
    prompts = [f"prompt {number}" for number in range(12)]
    samplings = [Sampling(max_tokens=6, seed=number) for number in range(12)]
    found = model.generate_many(prompts, samplings)
    for prompt, sampling, answer in zip(prompts, samplings, found, strict=True):
        assert answer.tokens == model.generate(prompt, sampling).tokens
    with pytest.raises(ost.InputError, match="2 prompts came with 1"):
        model.generate_many(["a", "b"], samplings[:1])
    with pytest.raises(ost.InputError, match="got a single text"):
        model.generate_many("ab")
    before = model.engine().stats().prompt_tokens
    with pytest.raises(ost.ContextError):
        model.generate_many(["a", "b" * 500])
    assert model.engine().stats().prompt_tokens == before


def test_scores_are_the_log_probabilities_of_the_tokens(model: LLM) -> None:
    text, more = "abc def", " ghi"
    whole = model.score(text + more)
    assert whole.shape == (len(text + more) - 1,)
    assert (model.score(text, more) == whole[-len(more) :]).all()
    answer = model.generate(text, temperature=0, max_tokens=1, logprobs=0)
    assert answer.logprobs is not None
    assert model.score(model.tokenizer.encode(text), answer.tokens)[0] == answer.logprobs[0].logprob
    with pytest.raises(ost.InputError, match="needs a token, and another one before it"):
        model.score("a")


def test_answers_follow_a_grammar(model: LLM) -> None:
    grammar = Grammar.choice(["yes", "no"])
    for seed in range(4):
        found = model.generate("?", grammar=grammar, seed=seed, ignore_eos=True, max_tokens=9)
        assert found.text in ("yes", "no")
        assert found.finish == "stop"


def test_grammars_and_speculation_give_the_tokens_of_plain_decoding(
    folder: Path, model: LLM
) -> None:
    prompt = "abcabcabcabc"
    wanted = {
        "grammar": Grammar.regex("(abc){2,40}"),
        "seed": 3,
        "max_tokens": 60,
        "frequency_penalty": 0.1,
        "logprobs": 1,
    }
    with load(folder, draft=NGrams()) as drafted:
        found, expected = drafted.generate(prompt, **wanted), model.generate(prompt, **wanted)
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    assert found.usage.accepted > 0


def test_prefixes_go_through_files(folder: Path, model: LLM, tmp_path: Path) -> None:
    prompt = "a prefix of many characters. " * 7
    path = tmp_path / "prefix"
    assert model.save_prefix(prompt, path) == 192
    with load(folder) as other:
        assert other.load_prefix(path) == 192
        found = other.generate(prompt, seed=1, max_tokens=9)
    assert found.usage.cached == 192
    assert found.tokens == model.generate(prompt, seed=1, max_tokens=9).tokens
    with pytest.raises(ost.InputError, match="a prefix has 64 tokens at least, got 3"):
        model.save_prefix("abc", path)
    with (
        load(folder, kv_dtype="float32") as other,
        pytest.raises(
            ost.ModelFormatError, match="another model, other weights or another kv_dtype"
        ),
    ):
        other.load_prefix(path)


def test_damaged_prefix_files_are_refused(model: LLM, tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    model.save_prefix("x" * 70, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        if rng.random() < 0.5:
            del damaged[rng.integers(len(whole)) :]
        else:
            damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ost.ModelFormatError):
            model.load_prefix(path)
    with pytest.raises(ost.InputError, match="cannot read"):
        model.load_prefix(tmp_path / "none")


def test_limits_of_the_engine_may_change_between_requests(model: LLM) -> None:
    expected = model.generate("limits", seed=1, max_tokens=9).tokens
    engine = model.engine(prefill_rows=3, policy="prefix")
    assert engine is model.engine()
    assert model.engine(prefill_rows=3) is engine
    assert model.generate("limits", seed=1, max_tokens=9).tokens == expected
    ticket = engine.submit(Request("x", Sampling(max_tokens=200, ignore_eos=True)))
    with pytest.raises(ost.SessionStateError, match="requests are under way"):
        model.engine(prefill_rows=5)
    ticket.cancel()
    ticket.result(30)
    for limits, message in [
        ({"rows": 4}, "unknown limit of an engine: rows"),
        ({"step_rows": 4096}, "step_rows is at most 512"),
        ({"queue": 0}, "queue is a positive number"),
        ({"policy": "lifo"}, "policy is 'fcfs' or 'prefix'"),
    ]:
        with pytest.raises(ost.InputError, match=message):
            model.engine(**limits)
    model.engine()


def test_a_closed_model_refuses(folder: Path) -> None:
    loaded = load(folder)
    loaded.generate("a", max_tokens=1)
    loaded.close()
    with pytest.raises(ost.SessionStateError, match="the model is closed"):
        loaded.generate("a")
    with pytest.raises(ost.SessionStateError, match="the model is closed"):
        loaded.embed(["a"])
    loaded.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context is a positive number, got 0"),
        ({"context": 513}, "the model has a context of 512 tokens, got context=513"),
        ({"sequences": 1.5}, "sequences is a positive number"),
        ({"kv_dtype": "float8"}, "kv_dtype is one of"),
        ({"kv_memory": "much"}, "kv_memory is a number of bytes"),
        ({"kv_memory": 100}, "holds no block of 64 tokens"),
        ({"draft": 3}, "draft is an LLM or NGrams, got int"),
    ],
)
def test_options_out_of_range_are_refused(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ost.InputError, match=message):
        load(folder, **options)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    for wrong in (3, None, b"model.gguf"):
        with pytest.raises(ost.InputError, match="a model is the path of a folder"):
            ost.llm.load(wrong)
    with pytest.raises(ost.InputError, match="there is no folder or file"):
        ost.llm.load(tmp_path / "none.gguf")


def test_draft_models_share_the_vocabulary(folder: Path, tmp_path: Path, model: LLM) -> None:
    other = write_llm(tmp_path / "other")
    data = json.loads((other / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(data))
    with load(other) as draft, pytest.raises(ost.InputError, match="has another vocabulary"):
        load(folder, draft=draft)
    with (
        load(folder, sequences=2) as draft,
        load(folder, draft=draft) as bad,
        pytest.raises(ost.InputError, match="load it with sequences=8"),
    ):
        bad.generate("a")


def test_a_model_without_template_does_not_chat(tmp_path: Path) -> None:
    plain = write_llm(tmp_path / "plain")
    config = json.loads((plain / "tokenizer_config.json").read_text())
    assert config.pop("chat_template") == TEMPLATE
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    with load(plain) as model, pytest.raises(ost.InputError, match="has no chat template"):
        model.chat([{"role": "user", "content": "hi"}])


def test_importing_ostinato_imports_no_language_models() -> None:
    code = "import sys, ostinato; print([m for m in sys.modules if 'ostinato.llm' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        (7, 7),
        ("12", 12),
        ("3K", 3000),
    ],
)
def test_numbers_of_bytes(text: int | str, count: int) -> None:
    assert byte_count("kv_memory", text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 PB", 0, True, 1.5, "0MB"])
def test_what_is_no_number_of_bytes(text: Any) -> None:
    with pytest.raises(ost.InputError, match="kv_memory is a number of bytes"):
        byte_count("kv_memory", text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("min_tokens", 999),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2),
        ("repetition_penalty", 0.0),
        ("presence_penalty", "1"),
        ("frequency_penalty", 1e9),
        ("penalty_tokens", -1),
        ("logit_bias", [1]),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {-1: 1.0}),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", 3),
        ("stop_tokens", [1.5]),
        ("ignore_eos", 1),
        ("logprobs", -1),
        ("prompt_logprobs", "2"),
        ("n", 0),
        ("grammar", "regex"),
    ],
)
def test_fields_of_sampling_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ost.InputError, match=field):
        Sampling(**{field: value})


def test_smollm2_answers() -> None:
    with ost.llm.load(model_file(SMOLLM2), context=512, sequences=2) as model:
        prompt = [{"role": "user", "content": "What is the capital of Italy? One word."}]
        arguments = {"temperature": 0, "max_tokens": 12}
        first = model.chat([{"role": "system", "content": "Answer."}, *prompt], **arguments)
        assert "Rome" in first.text
        again = model.chat([{"role": "system", "content": "Answer."}, *prompt], **arguments)
        assert again.tokens == first.tokens
        assert again.usage.cached == first.usage.prompt - 1


def test_the_example_runs(folder: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "language_model.py"
    command = [sys.executable, str(script), str(folder), "--threads", "1", "--tokens", "60"]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "each the same as alone: True" in found.stdout


def test_a_process_may_end_in_the_middle_of_an_answer(folder: Path) -> None:
    code = (
        "import sys, ostinato as ost; model = ost.llm.load(sys.argv[1], threads=1, context=256)\n"
        "stream = model.stream('a', max_tokens=250, ignore_eos=True); next(stream); print('end')"
    )
    command = [sys.executable, "-c", code, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "end\n"
    assert not found.stderr


@pytest.mark.parametrize(
    "family", ["mistral", pytest.param("gemma3", marks=pytest.mark.slow), "gpt_oss"]
)
def test_blocks_behind_a_window_change_no_bits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few blocks, with drafts of a second model, and with a prefix of a file."""
    folder = write_llm(tmp_path / "model", family)
    monkeypatch.setattr(loading, "_STEP_ROWS", 64)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 131, length).tolist() for length in (17, 200, 300)]
    samplings = [
        Sampling(max_tokens=180, seed=seed, ignore_eos=True, logprobs=0) for seed in range(3)
    ]

    def loaded(**options: Any) -> LLM:
        model = ost.llm.load(folder, context=512, sequences=2, **options)
        model.engine(step_rows=64, prefill_rows=64)
        return model

    def answers(**options: Any) -> list[tuple[object, object]]:
        with loaded(**options) as model:
            found = model.generate_many(prompts, samplings)
            limits = model.limits
            if "kv_memory" in options:  # the blocks of one answer of 480 tokens
                assert (limits.kv_blocks, limits.window_blocks or 4) == (8, 4)
            assert bool(limits.window_blocks) == model.config.mixes_windows
            if not options:
                assert model.save_prefix(prompts[2], tmp_path / "prefix") == 256
            return [(answer.tokens, answer.logprobs) for answer in found]

    whole, near = block_bytes(open_checkpoint(folder), "bfloat16")
    few = answers(kv_memory=8 * whole + 4 * near)
    assert answers() == few
    with loaded() as draft:
        assert answers(draft=draft) == few
    with loaded() as model:
        assert model.load_prefix(tmp_path / "prefix") == 256
        found = model.generate(prompts[2], samplings[2])
        assert (found.tokens, found.logprobs) == few[2]
        assert found.usage.cached == 256
    monkeypatch.setattr(ModelConfig, "longest_window", None)
    monkeypatch.setattr(ModelConfig, "mixes_windows", False)
    with loaded() as model:
        whole = model.generate_many(prompts, samplings)
    assert [(answer.tokens, answer.logprobs) for answer in whole] == few


def test_windows_of_published_sizes_have_few_blocks(tmp_path: Path) -> None:
    folder = write_llm(tmp_path, "gemma3")
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    near = [layer.window is not None for layer in config.layers]
    layers = tuple(
        replace(layer, window=1024 if window else None)
        for layer, window in zip(config.layers, near, strict=True)
    )
    model = replace(checkpoint, config=replace(config, layers=layers))
    each = 64 * config.kv_heads * (config.head_dim + config.value_dim) * 2
    options: Any = {"sequences": 8, "context": 8192, "rows": 512}
    found = size_pools(model, "bfloat16", **options, kv_memory="10GB")
    assert (found.blocks, found.window_blocks) == (8 * 128, 2 * 8 * 26)
    whole = len(near) - sum(near)
    assert found.nbytes == each * (whole * 8 * 128 + sum(near) * 2 * 8 * 26)
    needed = each * (whole * 8 * 128 + sum(near) * 8 * 26)
    exact = size_pools(model, "bfloat16", **options, kv_memory=needed)
    assert (exact.blocks, exact.window_blocks, exact.nbytes) == (8 * 128, 8 * 26, needed)
    for memory in (each * len(near), 100 * each, 1000 * each, 3000 * each):
        less = size_pools(model, "bfloat16", **options, kv_memory=memory)
        assert less.nbytes <= memory
        assert less.blocks >= less.window_blocks >= 1
        assert size_pools(model, "bfloat16", **options, kv_memory=None, free=4 * memory) == less
    short = size_pools(model, "bfloat16", **options | {"context": 1536}, kv_memory="10GB")
    assert (short.blocks, short.window_blocks) == (8 * 24, 0)
