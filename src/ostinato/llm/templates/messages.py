"""Messages of a chat, checked and copied into plain JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ostinato.errors import InputError

__all__ = ["Message", "Tool", "check_messages", "check_tools", "joined_parts", "plain_value"]

#: A message: ``role``, ``content``, and what else the template reads, such as ``tool_calls``.
Message = Mapping[str, Any]

#: A tool: ``{"type": "function", "function": {"name": …, "parameters": …}}``, or what the template
#: of the model expects in its place.
Tool = Mapping[str, Any]

#: Lists and objects within one another, at most.
_DEEPEST: Final = 64

_LONGEST_ROLE: Final = 64

#: Names under which messages have the model's reasoning.
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


def plain_value(value: object, name: str, depth: int = 0) -> Any:
    """A copy of a value that has JSON's types alone.

    Args:
        value: of ``None``, ``bool``, ``int``, ``float``, ``str``, lists, tuples and mappings.
        name: of it, for messages of errors.
        depth: of the lists and objects around it.

    Raises:
        InputError: another type, a key that is no string, or nested too deep.
    """
    if depth > _DEEPEST:
        raise InputError(f"{name} is nested more than {_DEEPEST} deep")
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)  # an enumeration, for example, without its other attributes
    if isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(f"{name} has the key {key!r:.40}; keys are strings")
            found[str(key)] = plain_value(item, f"{name}[{key!r:.40}]", depth + 1)
        return found
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain_value(item, f"{name}[{n}]", depth + 1) for n, item in enumerate(value)]
    raise InputError(f"{name} is a {type(value).__name__}, which is no JSON value")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """A copy of the messages of a chat.

    Arguments of tool calls that are JSON objects as text become objects, as templates expect them.

    Raises:
        InputError: not a list of mappings with a role, content that is neither text nor parts, or
            no content where there are no tool calls either; the message says which.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(f"messages are a list of mappings, got {type(messages).__name__}")
    if not messages:
        raise InputError("a chat has at least one message")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: object, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{name} is a {type(message).__name__}, not a mapping")
    found: dict[str, Any] = plain_value(message, name)
    role = found.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= _LONGEST_ROLE:
        raise InputError(f"{name} has the role {role!r:.80}; a role is a name such as 'user'")
    calls = found.get("tool_calls")
    if calls is not None:
        found["tool_calls"] = _tool_calls(calls, f"{name}['tool_calls']")
    reasoning = next((found[key] for key in _REASONING if found.get(key) is not None), None)
    content = found.get("content")
    if isinstance(content, list):
        _check_parts(content, f"{name}['content']")
    elif content is None:
        if not calls and reasoning is None:
            raise InputError(f"{name} has no content; only a message with tool calls may have none")
    elif not isinstance(content, str):
        raise InputError(
            f"{name} has a {type(content).__name__} as content; content is text or a list of parts"
        )
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    return found


def _check_parts(parts: list[Any], name: str) -> None:
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise InputError(f"{name}[{number}] is no part: a mapping with a type")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise InputError(f"{name}[{number}] is a part of type 'text' without a text")


def _tool_calls(calls: object, name: str) -> list[Any]:
    if not isinstance(calls, list):
        raise InputError(f"{name} is a {type(calls).__name__}, not a list")
    for number, call in enumerate(calls):
        match call:
            case {"function": {"name": str()} as function}:
                pass
            case {"name": str()}:
                function = call
            case _:
                raise InputError(f"{name}[{number}] names no function: {call!r:.80}")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = _object_or_text(arguments)
    return calls


def _object_or_text(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def check_tools(tools: object) -> list[dict[str, Any]]:
    """A copy of the tools of a chat.

    Raises:
        InputError: not a list of mappings with JSON's types.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InputError(f"tools are a list of mappings, got {type(tools).__name__}")
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InputError(f"tools[{number}] is a {type(tool).__name__}, not a mapping")
    found: list[dict[str, Any]] = plain_value(tools, "tools")
    return found


def joined_parts(parts: list[dict[str, Any]], name: str) -> str:
    """The text of a message's parts, for templates that take text alone.

    Raises:
        InputError: a part is no text.
    """
    for number, part in enumerate(parts):
        if part["type"] != "text":
            raise InputError(
                f"{name}[{number}] is a part of type {part['type']!r:.40}; the template of this "
                "model takes text alone"
            )
    return "\n".join(part["text"] for part in parts)
