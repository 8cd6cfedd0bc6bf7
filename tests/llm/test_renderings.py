"""Texts of thirty chat templates, byte by byte those of transformers."""

from __future__ import annotations

import json

import pytest

from ostinato.errors import InputError
from ostinato.llm.templates import ChatTemplate
from tests.llm.conversations import CONVERSATIONS, EXPECTED, FOLDER, NOW, TOKENS

TEXTS = json.loads(EXPECTED.read_text("utf-8"))


def test_there_are_thirty_templates_of_which_few_refuse_a_conversation() -> None:
    assert len(TEXTS) == len(list(FOLDER.glob("*.jinja"))) == 30
    refused = sum(text is None for texts in TEXTS.values() for text in texts.values())
    assert refused < 120


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_texts_are_those_of_transformers(name: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text("utf-8")
    template = ChatTemplate(source, tokens=TOKENS, clock=lambda: NOW)
    known = {"tools", "documents", "add_generation_prompt"}
    for conversation, expected in TEXTS[name].items():
        messages, options = CONVERSATIONS[conversation]
        named = {key: value for key, value in options.items() if key in known}
        arguments = {key: value for key, value in options.items() if key not in known}
        if expected is None:
            with pytest.raises(InputError):
                template.render(messages, arguments=arguments, **named)
        else:
            text = template.render(messages, arguments=arguments, **named)
            assert text == expected, conversation
