"""Reasoning and calls of tools in streams of text, in the formats of models."""

from __future__ import annotations

import random
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from ostinato.errors import InputError
from ostinato.llm.text import (
    AnswerPart,
    AnswerText,
    ToolFormat,
    detect_format,
    starts_inside_reasoning,
    tool_format,
)
from ostinato.llm.text.json_formats import PlainParser
from ostinato.llm.text.parts import joined
from ostinato.llm.text.tool_formats import TOOL_FORMATS
from ostinato.llm.tokenizers import tokenizer_from_gguf
from tests.llm.test_text import cuts
from tests.llm.test_tokenizers import byte_level_metadata

#: A seed for a text in one part.
WHOLE = -1


def parsed(form: str, text: str, seed: int | None = None, **options: Any) -> AnswerPart:
    """The whole answer, from a text in random parts; without a seed, character by character."""
    parser = tool_format(form).answer_parser(**options)
    parts = [text] if seed == WHOLE else list(text) if seed is None else list(cuts(text, seed))
    return joined([*(parser.add(part) for part in parts), parser.finish()])


def calls(part: AnswerPart) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in part.tool_calls]


BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

#: Format, text, content, reasoning and calls.
CASES: list[tuple[str, str, str, str, list[tuple[str, str]]]] = [
    ("plain", "Hello there\n", "Hello there\n", "", []),
    ("plain", "<think>\nWhy?\nSo. \n</think>\n\nYes. ", "Yes. ", "Why?\nSo.", []),
    ("plain", "\n<think></think>Yes", "Yes", "", []),
    ("plain", "  Hi <think>x</think>", "  Hi <think>x</think>", "", []),
    ("plain", "<think>cut off ", "", "cut off", []),
    ("plain", "<thin", "<thin", "", []),
    ("hermes", "plain <tool", "plain <tool", "", []),
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call> } \\" {"}}\n'
        "</tool_call>"
        '\n<tool_call>{"name": "g", "arguments": {}}</tool_call>\n',
        "Sure.",
        "",
        [("f", '{"a": "</tool_call> } \\" {"}'), ("g", "{}")],
    ),
    (
        "hermes",
        '<think>\nHm.\n</think>\n\n<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>',
        "",
        "Hm.",
        [("f", '{"x": [1]}')],
    ),
    ("hermes", "a <tool_call>{bad}</tool_call> b", "a <tool_call>{bad}</tool_call> b", "", []),
    ("hermes", 'a <tool_call>{"name": "f", ', 'a <tool_call>{"name": "f", ', "", []),
    ("hermes", "a\n\n", "a\n\n", "", []),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}', "", "", [("f", '{"a": 1}')]),
    (
        "llama3",
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        "",
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    ("llama3", '{"name": "f", "parameters": {}}; {"a": 1}', '; {"a": 1}', "", [("f", "{}")]),
    ("llama3", ' {"key": "value"} is JSON', ' {"key": "value"} is JSON', "", []),
    ("llama3", "Hello {", "Hello {", "", []),
    ("llama3", '{"name": "f", "param', '{"name": "f", "param', "", []),
    (
        "mistral",
        'Hi[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abc"}, '
        '{"name": "g", "arguments": {}}]',
        "Hi",
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[CALL_ID]x1[ARGS]{"a": 1}[TOOL_CALLS]g{"b": {}}',
        "",
        "",
        [("f", '{"a": 1}'), ("g", '{"b": {}}')],
    ),
    ("mistral", "[THINK]Why[/THINK]So", "So", "Why", []),
    ("mistral", "[TOOL_CALLS]f", "[TOOL_CALLS]f", "", []),
    (
        "deepseek",
        f'Hi{BEGIN}{CALL}function{SEPARATOR}f\n```json\n{{"a": 1}}\n```{CALL_END}\n'
        f'{CALL}g{SEPARATOR}{{"b": "c d"}}{CALL_END}{END}',
        "Hi",
        "",
        [("f", '{"a": 1}'), ("g", '{"b": "c d"}')],
    ),
    ("deepseek", f"{BEGIN} a b {CALL}x{CALL_END}", f" a b {CALL}x{CALL_END}", "", []),
    (
        "gpt_oss",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Answer",
        "Answer",
        "Think.",
        [],
    ),
    (
        "gpt_oss",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        "",
        "",
        [("f", '{"a": 1}')],
    ),
    (
        "gpt_oss",
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.g"
        "<|channel|>commentary json<|message|>{}<|call|>",
        "Let me see.",
        "",
        [("g", "{}")],
    ),
    ("gpt_oss", "no channels", "no channels", "", []),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{", "{", "", []),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[1][:30]}")
def test_answers_are_parsed_wherever_they_are_cut(case: Any) -> None:
    form, text, content, reasoning, expected = case
    whole = parsed(form, text, seed=WHOLE)
    assert (whole.text, whole.reasoning, calls(whole)) == (content, reasoning, expected)
    assert parsed(form, text) == whole
    for seed in range(200):
        assert parsed(form, text, seed) == whole


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS))
def test_any_text_gives_the_same_result_for_every_cut(form: str) -> None:
    source = random.Random(form)
    pieces = [*tool_format(form).markers, "<think>", "</think>", '{"name": "f", "arguments": {}}']
    pieces += [
        "{",
        "}",
        "[",
        "]",
        '"',
        " ",
        "\n",
        "a",
        "to=functions.f",
        "analysis",
        ";",
        "```json",
    ]
    pieces += [" b c", '{"name": "g", "parameters": {"x": "}"}}', "<", "|", "[TOOL_", "\\"]
    for _ in range(400):
        text = "".join(source.choice(pieces) for _ in range(source.randint(0, 12)))
        inside = source.random() < 0.2
        whole = parsed(form, text, seed=WHOLE, inside=inside)
        assert parsed(form, text, inside=inside) == whole, text
        for seed in range(6):
            assert parsed(form, text, seed, inside=inside) == whole, text


def test_an_answer_may_begin_within_reasoning() -> None:
    found = parsed("hermes", "Why?\n</think>\n\nSo.", inside=True)
    assert (found.reasoning, found.text) == ("Why?", "So.")
    assert starts_inside_reasoning("…assistant\n<think>\n", tool_format("hermes"))
    assert not starts_inside_reasoning("…assistant\n", tool_format("hermes"))
    assert not starts_inside_reasoning("<think>\n", tool_format("gpt_oss"))
    assert parsed("plain", "<think>x</think>", reasoning=False).text == "<think>x</think>"


def test_content_comes_as_soon_as_it_is_certain() -> None:
    parser = tool_format("hermes").answer_parser()
    assert [parser.add(part).text for part in ("Let me ", "look", "\n<tool", "_x")] == [
        *("Let me", " look", "", "\n<tool_x")
    ]


def test_calls_have_ids() -> None:
    text = (
        '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc"}, {"name": "g", "arguments": {}}]'
    )
    assert [call.id for call in parsed("mistral", text).tool_calls] == ["abc", "call_1"]


def test_formats_are_known_by_templates() -> None:
    assert detect_format("…<tool_call>…").name == "hermes"
    assert detect_format("…<|start|>assistant<|channel|>final…").name == "gpt_oss"
    assert detect_format("{{ '[TOOL_CALLS] ' }}").name == "mistral"
    assert detect_format(BEGIN).name == "deepseek"
    assert detect_format("<|python_tag|>").name == "llama3"
    assert detect_format("<|im_start|>").name == "plain"


def test_packages_add_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ToolFormat("own", PlainParser)
    monkeypatch.setattr(EntryPoint, "load", lambda point: own if point.name == "own" else 3)
    points = [
        EntryPoint(name, "package", "ostinato.llm.tool_formats") for name in ("own", "broken")
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert tool_format("own") is own
    with pytest.raises(InputError, match="is a int, not a ToolFormat"):
        tool_format("broken")
    with pytest.raises(InputError, match="named 'other'; known are broken, deepseek"):
        tool_format("other")


def test_an_answer_token_by_token() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    form = tool_format("hermes")
    answer = AnswerText(
        tokenizer, ["STOP"], parser=form.answer_parser(), markers=["<|im_end|>", "<none>"]
    )
    text = "<think>é</think>hello STOP"
    parts = [answer.push(token) for token in tokenizer.encode(text)]
    parts.append(answer.push(tokenizer.encode("more")[0]))
    assert joined([*parts, answer.finish()]) == AnswerPart("hello ", "é")
    assert answer.stopped == "STOP"


def test_stop_strings_count_after_the_least_number_of_tokens() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    answer = AnswerText(tokenizer, ["l"])
    text = ""
    for number, token in enumerate(tokenizer.encode("xlylz")):
        text += answer.push(token, stops=number >= 2).text
    assert (text, answer.stopped) == ("xly", "l")
