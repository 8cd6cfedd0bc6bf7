"""Models with bfloat16 weights: rounded activations, with the same bits however rows are run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.llm import LLM, Request, Sampling
from ostinato.llm.compiling import model_options
from ostinato.passes import bfloat16_rows
from ostinato.records import replace
from tests.llm.tiny_llm import write_llm

#: Programs of other thresholds must not be taken.
FRESH = ost.CompileOptions(stored_programs=False)


def test_dots_are_on_unless_they_are_set() -> None:
    session = ost.Session("cpu", threads=1)
    assert model_options(session, None).bfloat16_dots is True
    for given in (True, False):
        options = ost.CompileOptions(bfloat16_dots=given, prefetch=False)
        assert model_options(session, options) == options
    own = ost.Session("cpu", threads=1, options=ost.CompileOptions(bfloat16_dots=False))
    assert model_options(own, None).bfloat16_dots is False


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of the smallest matrices are rounded."""
    if not TargetSpec.host().has_bfloat16_dots:
        pytest.skip("this processor has no dot products of bfloat16")
    monkeypatch.setattr(processor_facts, "bfloat16_dots_are_fast", lambda: True)
    monkeypatch.setattr(bfloat16_rows, "LEAST_WEIGHTS", 1)
    yield


def load(folder: Path, options: ost.CompileOptions = FRESH, **more: int) -> LLM:
    return ost.llm.load(folder, weights="bfloat16", context=256, options=options, **more)


@pytest.mark.usefixtures("small")
def test_the_same_bits_alone_in_a_batch_in_chunks_and_on_two_threads(tmp_path: Path) -> None:
    folder = write_llm(tmp_path)
    rng = np.random.default_rng(1)
    with load(folder, threads=1, sequences=1) as model:
        sampling = Sampling(max_tokens=10, seed=1, logprobs=2, ignore_eos=True)
        vocabulary = model.config.vocabulary
        asked = [
            Request(rng.integers(3, vocabulary, size).tolist(), sampling, salt=str(size))
            for size in (1, 2, 17, 64, 130)
        ]
        kernels = [kernel.loops for kernel in model.plan.kernels]
        assert any("bf16 by 2" in loops for loops in kernels)
        alone = [model.engine().submit(request).result(100) for request in asked]
    with load(folder, threads=2) as model:
        for rows in (256, 7):
            model.engine(prefill_rows=rows)
            fresh = [replace(r, salt=f"{r.salt} {rows}") for r in asked]
            tickets = [model.engine().submit(request) for request in fresh]
            for ticket, wanted in zip(tickets, alone, strict=True):
                got = ticket.result(100)
                assert (got.tokens, got.logprobs) == (wanted.tokens, wanted.logprobs)


@pytest.mark.usefixtures("small")
def test_rounding_changes_little_and_can_be_switched_off(tmp_path: Path) -> None:
    folder = write_llm(tmp_path)
    text = list(range(3, 60))
    with load(folder) as model, load(folder, replace(FRESH, bfloat16_dots=False)) as exact:
        assert not any("bf16 by 2" in kernel.loops for kernel in exact.plan.kernels)
        rounded, wanted = model.score(text), exact.score(text)
    assert rounded.tobytes() != wanted.tobytes()
    np.testing.assert_allclose(rounded, wanted, atol=0.1)
