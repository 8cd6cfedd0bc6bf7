"""Grammars: the tokens that they allow, their end, what is refused, and time limits."""

from __future__ import annotations

import json
import random
import re
import sys
from threading import Event
from typing import Any

import numpy as np
import pytest

from ostinato.errors import InputError
from ostinato.llm import grammar as module
from ostinato.llm.grammar import Grammar, GrammarCompiler, GrammarMatcher
from ostinato.llm.tokenizers import Tokenizer, tokenizer_from_gguf
from tests.llm.test_tokenizers import byte_level_metadata, sentencepiece_metadata


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def allowed(matcher: GrammarMatcher, size: int) -> set[int]:
    bits = np.full(-(-size // 32), 0xFFFFFFFF, np.uint32)
    matcher.fill(bits)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def answer(tokenizer: Tokenizer, matcher: GrammarMatcher, seed: int) -> str:
    """A random answer that the grammar allows; ends as soon as it may, after some tokens."""
    source = random.Random(seed)
    tokens: list[int] = []
    for _ in range(400):
        choices = allowed(matcher, tokenizer.vocabulary_size)
        assert choices
        ends = choices & tokenizer.end_tokens
        assert bool(ends) == matcher.complete
        if ends and (len(tokens) > 20 or choices == ends):
            assert matcher.accept(min(ends))
            return tokenizer.decode(tokens)
        # Printable characters, and ends of strings more often than others, so that answers end.
        plain = sorted(
            token
            for token in choices - tokenizer.end_tokens
            if tokenizer.token_bytes(token).isascii()
        )
        closing = [token for token in plain if tokenizer.token_bytes(token) in b'"}]']
        pool = closing if closing and source.random() < 0.4 else plain
        token = source.choice(pool or sorted(choices))
        assert matcher.accept(token)
        tokens.append(token)
    return ""


@pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
def test_a_regular_expression(make: Any) -> None:
    tokenizer = tokenizer_from_gguf(make())
    compiled = GrammarCompiler(tokenizer).compile(Grammar.regex(r"[a-c]{2,5}(x|yz)\d"))
    for seed in range(40):
        found = answer(tokenizer, compiled.matcher(), seed)
        assert re.fullmatch(r"[a-c]{2,5}(x|yz)\d", found)


def test_a_json_schema(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "kind": {"enum": ["a", "b"]}},
        "required": ["n", "kind"],
        "additionalProperties": False,
    }
    found = 0
    for seed in range(40):
        text = answer(tokenizer, compiler.compile(Grammar.json_schema(schema)).matcher(), seed)
        if text:
            value = json.loads(text)
            assert isinstance(value["n"], int)
            assert value["kind"] in {"a", "b"}
            found += 1
    assert found > 20


def test_a_choice(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    choices = ["yes", "yes, please", "no", 'a "quote" \\ / \n\t é 😘', "{x}|[y]*.", "%json", " "]
    compiled = compiler.compile(Grammar.choice(choices))
    for choice in choices:
        matcher = compiled.matcher()
        for token in tokenizer.encode(choice):
            assert token in allowed(matcher, tokenizer.vocabulary_size)
            assert matcher.accept(token)
        assert matcher.complete
    assert {answer(tokenizer, compiled.matcher(), seed) for seed in range(60)} <= {*choices, ""}


def test_a_lark_grammar(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.lark('start: "(" start ")" | "x"'))
    for seed in range(10):
        found = answer(tokenizer, compiled.matcher(), seed)
        if found:
            assert re.fullmatch(r"(\(*)x(\)*)", found)
            assert found.count("(") == found.count(")")


def test_the_end_may_come_only_when_the_answer_is_complete(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    matcher = compiler.compile(Grammar.regex("ab?")).matcher()
    a, b = tokenizer.encode("ab")
    assert allowed(matcher, tokenizer.vocabulary_size) == {a}
    assert not matcher.accept(b)
    assert not matcher.accept(min(tokenizer.end_tokens))
    assert not matcher.error, "a token that is refused changes nothing"
    assert matcher.accept(a)
    assert allowed(matcher, tokenizer.vocabulary_size) == {b} | tokenizer.end_tokens
    assert matcher.accept(b)
    assert allowed(matcher, tokenizer.vocabulary_size) == tokenizer.end_tokens


def test_special_tokens_are_no_text(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar.regex("(?s:.)*")).matcher()
    found = allowed(matcher, tokenizer.vocabulary_size)
    assert found & tokenizer.special_tokens == tokenizer.end_tokens


def test_tokens_are_taken_back(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(
        Grammar.json_schema({"type": "array", "items": {"type": "integer"}})
    )
    tokens = [*tokenizer.encode("[123, 4]"), min(tokenizer.end_tokens)]
    matcher = compiled.matcher()
    masks = []
    for token in tokens:
        masks.append(allowed(matcher, tokenizer.vocabulary_size))
        assert matcher.accept(token)
    for count in range(len(tokens), 0, -1):
        matcher.rollback(count)
        for number, token in list(enumerate(tokens))[len(tokens) - count :]:
            assert allowed(matcher, tokenizer.vocabulary_size) == masks[number]
            assert matcher.accept(token)
    with pytest.raises(InputError, match="can not be taken back"):
        matcher.rollback(99)


def test_forced_tokens(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(Grammar.choice(["xyz1", "xyz2"])).matcher()
    forced = matcher.forced()
    assert tokenizer.decode(forced) in {"x", "xy", "xyz"}
    assert all(matcher.accept(token) for token in forced)


def test_answers_have_states_of_their_own(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.regex("ab"))
    assert compiler.compile(Grammar.regex("ab")) is compiled
    first, second = compiled.matcher(), compiled.matcher()
    assert first.accept(tokenizer.encode("a")[0])
    assert allowed(second, tokenizer.vocabulary_size) == set(tokenizer.encode("a"))


def test_a_model_may_have_more_tokens_than_its_tokenizer(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocabulary_size + 100
    matcher = GrammarCompiler(tokenizer, size).compile(Grammar.regex("(?s:.)+")).matcher()
    assert max(allowed(matcher, size)) < tokenizer.vocabulary_size
    for wrong in (np.zeros(3, np.uint32), np.zeros(-(-size // 32), np.int32)):
        with pytest.raises(InputError, match=r"the row of bits is uint32 \[12\]"):
            matcher.fill(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.json_schema("{"), "a JSON schema is JSON"),
        (lambda: Grammar.json_schema([1]), "is an object, got a list"),  # type: ignore[arg-type]
        (lambda: Grammar.json_schema({"a": {1}}), "has JSON values"),
        (lambda: Grammar.regex(3), "is a text, got a int"),  # type: ignore[arg-type]
        (lambda: Grammar.regex("x" * (1 << 21)), "at most 1,048,576 characters"),
        (lambda: Grammar.lark("\ud800"), "has no surrogates"),
        (lambda: Grammar.choice([]), "0 choices"),
        (lambda: Grammar.choice("abc"), "a list of strings"),
    ],
)
def test_sources_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar.regex("(a"), r"the regular expression '\(a' fails"),
        (Grammar.regex("(?=a)b"), "look"),
        (Grammar.lark("begin: x"), "the Lark grammar"),
        (Grammar.json_schema({"type": "nothing"}), "the JSON schema"),
        (Grammar.lark("start: " + "(" * 5000 + '"x"' + ")" * 5000), "the Lark grammar"),
    ],
)
def test_malformed_grammars_are_refused(
    compiler: GrammarCompiler, grammar: Grammar, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compiler.compile(grammar)


def test_compiling_has_a_time_limit(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Event()
    monkeypatch.setattr(module, "_matcher", lambda *_: release.wait(10))
    with pytest.raises(InputError, match=r"takes more than 0\.05 s to compile: 'slow'"):
        compiler.compile(Grammar.regex("slow"), seconds=0.05)
    release.set()


def test_a_tokenizer_without_an_end_is_refused() -> None:
    metadata = byte_level_metadata(eos_token_id=None)
    pieces = [piece.replace("<|im_end|>", "<|x|>") for piece in metadata["tokenizer.ggml.tokens"]]
    endless = tokenizer_from_gguf({**metadata, "tokenizer.ggml.tokens": pieces})
    with pytest.raises(InputError, match="no token that ends an answer"):
        GrammarCompiler(endless).compile(Grammar.regex("a"))


def test_a_missing_package_is_named(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"llguidance, which is not .* 'ostinato\[llm\]'"):
        GrammarCompiler(tokenizer).compile(Grammar.regex("a"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="needs the package tokenizers"):
        tokenizer_from_gguf(byte_level_metadata())
