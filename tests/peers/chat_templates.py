"""Texts of chat templates as transformers renders them, for ``tests/llm/test_renderings.py``.

In the environment of the peers::

    PYTHONPATH=. .venv-peers/bin/python -m tests.peers.chat_templates
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from unittest import mock

import transformers.utils.chat_template_utils as rendering

from tests.llm.conversations import CONVERSATIONS, EXPECTED, FOLDER, NOW, TOKENS


def rendered(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
    """The text of a conversation; ``None``: the template refuses it."""
    given = {"add_generation_prompt": True, **TOKENS, **options}
    try:
        (text,), _ = rendering.render_jinja_template([messages], chat_template=source, **given)
    except Exception:
        return None
    return str(text)


def takes_parts(text: str | None) -> bool:
    """Whether the text of the conversation in parts has them, and not their spelling in Python."""
    return text is not None and "Look" in text and "'text'" not in text and '"text"' not in text


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with their parts as one text each."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def main() -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    found: dict[str, dict[str, str | None]] = {}
    with mock.patch.object(rendering, "datetime", Clock):
        for path in sorted(FOLDER.glob("*.jinja")):
            source, texts = path.read_text("utf-8"), dict[str, str | None]()
            for name, (messages, options) in CONVERSATIONS.items():
                text = rendered(source, messages, options)
                if name == "parts" and not takes_parts(text):
                    text = rendered(source, joined(messages), options)
                texts[name] = text
            found[path.stem] = texts
    EXPECTED.write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n", "utf-8")
    texts_of_all = [text for texts in found.values() for text in texts.values()]
    print(f"{len(texts_of_all)} texts, {texts_of_all.count(None)} refused")


if __name__ == "__main__":
    main()
