"""Text of answers in streams: the result does not depend on how a stream is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from ostinato.errors import InputError
from ostinato.llm.text import Detokenizer, StopStrings
from ostinato.llm.tokenizers import tokenizer_from_gguf
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.test_tokenizers import byte_level_metadata, sentencepiece_metadata


def cuts(whole: Any, seed: int) -> Iterator[Any]:
    """A sequence in random parts, some of them empty."""
    source = random.Random(seed)
    places = sorted(source.randint(0, len(whole)) for _ in range(source.randint(0, 8)))
    return (whole[start:end] for start, end in pairwise([0, *places, len(whole)]))


# -- characters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
@pytest.mark.parametrize("at_start", [False, True])
def test_parts_are_the_text(make: type, at_start: bool) -> None:
    tokenizer = tokenizer_from_gguf(make())
    for seed, text in enumerate(fuzzed_texts(300, 17)):
        ids = tokenizer.encode(text)
        if seed % 3 == 0:  # broken UTF-8
            ids = [token for token in ids if random.Random(seed).random() < 0.8]
        expected = tokenizer.decode(ids)
        if (
            not at_start
            and tokenizer.leading_spaces
            and ids
            and tokenizer.token_bytes(ids[0])[:1] == b" "
        ):
            expected = " " + expected
        detokenizer = Detokenizer(tokenizer, at_start=at_start)
        found = "".join(detokenizer.add(part) for part in cuts(ids, seed))
        assert found + detokenizer.finish() == expected


def test_characters_wait_until_they_are_whole() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode("a😘b")
    assert [detokenizer.add([token]) for token in ids] == ["a", "", "", "", "😘", "b"]
    assert detokenizer.finish() == ""
    assert detokenizer.add(ids[:3]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_an_answer_keeps_its_first_space() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode("hello")
    assert Detokenizer(tokenizer).add(ids) == " hello"
    assert Detokenizer(tokenizer, at_start=True).add(ids) == "hello"


def test_special_tokens_are_shown_on_request() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    end = tokenizer.eos
    assert end is not None
    ids = [*tokenizer.encode("h"), end]
    assert Detokenizer(tokenizer).add(ids) == "h"
    assert Detokenizer(tokenizer, shown={end}).add(ids) == "h<|im_end|>"


# -- stop strings ----------------------------------------------------------------------------------


def stopped(text: str, stops: list[str], seed: int) -> tuple[str, str | None]:
    found = StopStrings(stops)
    shown = "".join([*(found.add(part) for part in cuts(text, seed)), found.finish()])
    return shown, found.found


def test_stop_strings_are_found_across_parts() -> None:
    stops = StopStrings(["###", "\n\nUser:"])
    assert [stops.add(part) for part in ("Hi#", "#there\n", "\nUs", "er: x")] == [
        *("Hi", "##there", "", "")
    ]
    assert stops.found == "\n\nUser:"
    assert stops.add("more") == stops.finish() == ""


def test_text_that_was_held_back_comes_at_the_end() -> None:
    stops = StopStrings(["END"])
    assert stops.add("the EN") == "the "
    assert stops.finish() == "EN"


def test_the_stop_string_that_is_complete_first_counts() -> None:
    for seed in range(20):
        assert stopped("abcde", ["abcd", "bc"], seed) == ("a", "bc")
        assert stopped("abcde", ["bcd", "abcd", "cd"], seed) == ("", "abcd")


def test_every_cut_gives_the_same_result() -> None:
    source = random.Random(5)
    for seed in range(500):
        text = "".join(source.choice("ab\n") for _ in range(30))
        stops = [
            "".join(source.choice("ab\n") for _ in range(source.randint(1, 6)))
            for _ in range(source.randint(0, 4))
        ]
        ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
        expected = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
        for cut in range(5):
            assert stopped(text, stops, seed + cut) == expected


@pytest.mark.parametrize("stops", [[""], "###", [3], ["x"] * 300, ["x" * 9999]])
def test_stop_strings_are_checked(stops: list[str]) -> None:
    with pytest.raises(InputError):
        StopStrings(stops)
