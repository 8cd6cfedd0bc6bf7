"""Tokens and log-probabilities have the same bits however a request is run.

Each row of the table is a way to run the same requests; the first is each of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.llm import LLM, Generation, NGrams, Request, Sampling
from ostinato.records import replace
from tests.llm.model_files import SMOLLM2, model_file
from tests.llm.tiny_llm import write_llm

CONTEXT = 256


def requests(vocabulary: int) -> list[Request]:
    """Prompts of several lengths, two of which share a prefix, with all kinds of parameters."""
    rng = np.random.default_rng(5)
    common = rng.integers(3, vocabulary, 150).tolist()
    prompts = [rng.integers(3, vocabulary, size).tolist() for size in (1, 2, 17, 63, 64, 130)]
    prompts += [[*common, 5, 6], [*common[:100], 7]]
    most = 12
    samplings = [
        Sampling(max_tokens=most, temperature=0, logprobs=2),
        Sampling(max_tokens=most, seed=1, logprobs=0),
        Sampling(max_tokens=most, seed=2, top_p=0.9, logprobs=2, prompt_logprobs=1),
        Sampling(max_tokens=most, seed=3, top_k=10, repetition_penalty=1.2, logprobs=1),
        Sampling(max_tokens=most, seed=4, presence_penalty=0.5, frequency_penalty=0.3, logprobs=1),
        Sampling(max_tokens=most, seed=5, temperature=0.7, min_p=0.05, logprobs=1),
        Sampling(max_tokens=most, temperature=0, logit_bias={5: 1.5}, logprobs=1),
        Sampling(max_tokens=most, seed=6, temperature=1.5, logprobs=1),
    ]
    return [
        Request(prompt, replace(sampling, ignore_eos=True))
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]


def bits(answer: Generation) -> tuple[Any, ...]:
    """Everything of an answer that must not depend on how it was run."""
    return answer.tokens, answer.logprobs, answer.prompt_logprobs, answer.text, answer.finish


def together(model: LLM, asked: list[Request]) -> list[tuple[Any, ...]]:
    tickets = [model.engine().submit(request) for request in asked]
    return [bits(ticket.result(500)) for ticket in tickets]


class Table:
    """A model's path, its requests, and their answers alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.load(threads=1, sequences=1) as model:
            self.asked = requests(model.config.vocabulary)
            self.alone = [together(model, [request])[0] for request in self.salted("alone")]

    def load(self, **options: Any) -> LLM:
        return ost.llm.load(self.path, **{"context": CONTEXT, "threads": 2, **options})

    def salted(self, salt: str) -> list[Request]:
        """The requests, each of which shares no prefix with any other."""
        return [replace(request, salt=f"{salt} {n}") for n, request in enumerate(self.asked)]


@pytest.fixture(
    scope="module", params=["llama", "gemma3", pytest.param("smollm2", marks=pytest.mark.slow)]
)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    if request.param == "smollm2":
        return Table(model_file(SMOLLM2))
    return Table(write_llm(tmp_path_factory.mktemp("model"), request.param))


@pytest.fixture(scope="module")
def model(table: Table) -> Iterator[LLM]:
    with table.load() as loaded:
        yield loaded


def test_in_a_batch(table: Table, model: LLM) -> None:
    assert together(model, table.salted("batch")) == table.alone


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_prompts_in_chunks(table: Table, model: LLM, rows: int) -> None:
    model.engine(prefill_rows=rows)
    assert together(model, table.salted(f"chunks of {rows}")) == table.alone


def test_with_cached_prefixes(table: Table, model: LLM) -> None:
    together(model, table.asked)
    before = model.engine().stats().cached_tokens
    assert together(model, table.asked) == table.alone
    assert model.engine().stats().cached_tokens > before


def test_preempted(table: Table, model: LLM) -> None:
    block = model.limits.kv_bytes // model.limits.kv_blocks
    with table.load(kv_memory=4 * block) as small:
        assert together(small, table.salted("small")) == table.alone
        assert small.engine().stats().preempted > 0


def test_speculated_by_ngrams(table: Table) -> None:
    with table.load(draft=NGrams(shortest=1)) as model:
        assert together(model, table.salted("drafts")) == table.alone
        assert model.engine().stats().drafted_tokens > 0


def test_speculated_by_a_model(table: Table) -> None:
    with table.load() as draft, table.load(draft=draft) as model:
        assert together(model, table.salted("drafts")) == table.alone
        stats = model.engine().stats()
        assert stats.accepted_tokens > 0.5 * stats.drafted_tokens > 0


def test_on_one_thread(table: Table) -> None:
    with table.load(threads=1) as model:
        assert together(model, table.salted("thread")) == table.alone


def test_replayed(table: Table, model: LLM) -> None:
    """Once all sizes of runs were seen, a step is a bound call that is run again."""
    first = together(model, table.salted("first run"))
    assert together(model, table.salted("second run")) == first == table.alone


def test_embeddings_alone_and_in_a_batch(table: Table, model: LLM) -> None:
    texts = ["a", "some text", "x" * 70, "the same text " * 12, "b"]
    whole = model.embed(texts)
    alone = np.concatenate([model.embed([text]) for text in texts])
    assert whole.tobytes() == alone.tobytes()
    with table.load(threads=1) as other:
        assert other.embed(texts).tobytes() == whole.tobytes()
