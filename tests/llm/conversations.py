"""Twelve conversations, of the kinds that chat templates meet."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

#: Templates in the style of model families; ``expected.json`` has what transformers renders.
FOLDER = Path(__file__).parent / "chat_templates"

EXPECTED = FOLDER / "expected.json"

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

NOW = datetime(2026, 11, 22, 19, 45)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, e.g. 'São Paulo' <capital>"},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}

CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, arguments: dict[str, Any], number: str) -> dict[str, Any]:
    return {
        "id": number,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


SYSTEM = {"role": "system", "content": "You are terse.\nNever apologise. "}
CITY = {"city": "Zürich", "unit": "°C"}

#: Messages and options of each conversation.
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([user("Hello!")], {}),
    "system": ([SYSTEM, user("  What's 2 + 2?\n")], {}),
    "turns": (
        [user("Hi"), assistant(" Hello.  "), user("And now?\n\nA second paragraph.")],
        {},
    ),
    "ended": ([SYSTEM, user("Hi"), assistant("Bye.")], {"add_generation_prompt": False}),
    "unicode": (
        [user("日本語 😀 «naïve» \u00a0 <b>&amp;</b> {{ 7*7 }} {% raw %} '\"\\")],
        {},
    ),
    "tools": ([user("Weather in Zürich?")], {"tools": [WEATHER, CLOCK]}),
    "call": (
        [
            user("Weather in Zürich?"),
            assistant(None, tool_calls=[call("get_weather", CITY, "a1b2c3d4e")]),
            {"role": "tool", "name": "get_weather", "tool_call_id": "a1b2c3d4e", "content": "12°"},
        ],
        {"tools": [WEATHER]},
    ),
    "calls": (
        [
            SYSTEM,
            user("Weather and time?"),
            assistant(
                "",
                tool_calls=[
                    call("get_weather", {"city": "Rom", "days": [1, 2]}, "aaaaaaaaa"),
                    call("clock", {}, "bbbbbbbbb"),
                ],
            ),
            {"role": "tool", "tool_call_id": "aaaaaaaaa", "content": "20°"},
            {"role": "tool", "tool_call_id": "bbbbbbbbb", "content": '{"time": "12:00"}'},
            assistant("20° at noon."),
            user("Thanks"),
        ],
        {"tools": [WEATHER, CLOCK]},
    ),
    "reasoning": (
        [
            user("Is 91 prime?"),
            assistant("No: 7 · 13.", reasoning_content="\n7 divides it.\n"),
            user("And 97?"),
            assistant("<think>\nNo divisor.\n</think>\n\nYes."),
        ],
        {"add_generation_prompt": False},
    ),
    "developer": ([{"role": "developer", "content": "Use metric units."}, user("How far?")], {}),
    "parts": (
        [
            user([{"type": "text", "text": "Look: "}, {"type": "text", "text": "here."}]),
            assistant("I see."),
            user([{"type": "text", "text": "Good."}]),
        ],
        {},
    ),
    "arguments": (
        [SYSTEM, user("Short, please.")],
        {
            "enable_thinking": False,
            "reasoning_effort": "low",
            "date_string": "1 Jan 2026",
            "documents": [{"title": "Ärzte", "text": "A band."}, {"title": "B", "text": "b\nc"}],
        },
    ),
}
