"""Calls of tools as JSON: the formats of Hermes and Qwen, Llama 3, Mistral and DeepSeek."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.text.incremental import IncrementalParser
from ostinato.llm.text.parts import AnswerPart, JsonEnd, called_tool

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ostinato.llm.generation import ToolCall

__all__ = ["DeepSeekParser", "HermesParser", "LlamaParser", "MistralParser", "PlainParser"]

_SPACES: Final = " \t\r\n"


class PlainParser:
    """Text without calls of tools."""

    def add(self, text: str) -> AnswerPart:
        """The text."""
        return AnswerPart(text)

    def finish(self) -> AnswerPart:
        """Nothing."""
        return AnswerPart()


class _JsonParser(IncrementalParser):
    """The states that the formats share."""

    def _content_until(self, *marks: str) -> Iterator[AnswerPart | None]:
        """Content, to the end of the first mark."""
        while True:
            text, mark = self._scanner.until(marks)
            yield AnswerPart(text)
            if mark is not None:
                return
            yield None

    def _spaces(self, into: list[str]) -> Iterator[None]:
        """Spaces, which are kept in case that they turn out to be content."""
        while True:
            into.append(self._scanner.spaces())
            if self._scanner.text or self._scanner.ended:
                return
            yield None

    def _json(self, into: list[str]) -> Iterator[None]:
        """A JSON object or array, or what there is of it at the end; nothing if none begins."""
        end, scanner = JsonEnd(), self._scanner
        if not scanner.text.startswith(("{", "[")):
            return
        while (size := end.find(scanner.text)) < 0:
            if scanner.ended:
                size = len(scanner.text)
                break
            yield None
        into.append(scanner.take(size))

    def _mark(self, mark: str, into: list[str]) -> Iterator[None]:
        """A mark, if it comes next."""
        while (starts := self._scanner.starts_with(mark)) is None:
            yield None
        if starts:
            into.append(self._scanner.take(len(mark)))

    def _called(self, value: Any) -> tuple[ToolCall, ...]:
        """The calls that a JSON value is: one, or an array of them; none if it is no such value."""
        values = value if isinstance(value, list) else [value]
        found = [called_tool(item, self._calls + n) for n, item in enumerate(values)]
        calls = tuple(call for call in found if call is not None)
        if len(calls) < len(values):
            return ()
        self._calls += len(calls)
        return calls


def _value(text: str) -> Any:
    """The value of a JSON text; ``None``: it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class HermesParser(_JsonParser):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, as of Hermes and Qwen.

    Spaces and line ends between content and a call, and between calls, are no content.
    """

    _START, _END = "<tool_call>", "</tool_call>"

    def _parts(self) -> Iterator[AnswerPart | None]:
        held = ""
        while True:
            text, mark = self._scanner.until([self._START])
            text = held + text
            shown = text.rstrip(_SPACES)
            held = text[len(shown) :]
            yield AnswerPart(shown)
            if mark is None:
                if self._scanner.ended:
                    # Behind a call, spaces at the end are none of the content either.
                    yield AnswerPart("" if self._calls else held)
                    held = ""
                yield None
                continue
            raw = [held, mark]
            yield from self._spaces(raw)
            yield from self._json(raw)
            calls = self._called(_value(raw[-1])) if raw[-1][:1] in {"{", "["} else ()
            yield from self._spaces(raw)
            yield from self._mark(self._END, raw)
            held = ""
            if calls:
                yield AnswerPart(tool_calls=calls)
            else:
                yield AnswerPart("".join(raw))


class LlamaParser(_JsonParser):
    """An answer that is JSON alone, ``{"name": …, "parameters": {…}}``, as of Llama 3.

    Several calls have ``;`` between them. ``<|python_tag|>`` may come first.
    """

    _TAG = "<|python_tag|>"

    def _parts(self) -> Iterator[AnswerPart | None]:
        raw: list[str] = []
        yield from self._spaces(raw)
        yield from self._mark(self._TAG, raw)
        while True:
            yield from self._spaces(raw)
            before = len(raw)
            yield from self._json(raw)
            calls = self._called(_value(raw[-1])) if len(raw) > before else ()
            if not calls:
                break
            yield AnswerPart(tool_calls=calls)
            raw = []
            yield from self._spaces(raw)
            yield from self._mark(";", raw)
            if raw[-1] != ";":
                break
        rest = "".join(raw)
        if not self._calls or rest.strip(_SPACES):
            yield AnswerPart(rest)
        while True:
            yield AnswerPart(self._scanner.take(len(self._scanner.text)))
            yield None


class MistralParser(_JsonParser):
    """``[TOOL_CALLS]`` before an array of calls, or before the name and arguments of each.

    Names are followed by ``{``, or by ``[ARGS]``, or by ``[CALL_ID]…[ARGS]``.
    """

    _START, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

    def _parts(self) -> Iterator[AnswerPart | None]:
        yield from self._content_until(self._START)
        while True:
            raw = [self._START]
            yield from self._spaces(raw)
            starts_array = self._scanner.text.startswith("[")
            if starts_array or self._scanner.text.startswith("{"):
                yield from self._json(raw)
                calls = self._called(_value(raw[-1]))
            else:
                calls = yield from self._named(raw)
            yield AnswerPart(tool_calls=calls) if calls else AnswerPart("".join(raw))
            yield from self._spaces([])
            yield from self._content_until(self._START)

    def _named(self, raw: list[str]) -> Generator[None, None, tuple[ToolCall, ...]]:
        """A name, and its arguments as an object."""
        parts = {"name": "", self._ID: ""}
        into = "name"
        while True:
            text, mark = self._scanner.until([self._ARGUMENTS, self._ID, "{", self._START])
            raw.append(text)
            parts[into] += text
            if mark is None:
                if self._scanner.ended:
                    return ()
                yield None
                continue
            if mark in {"{", self._START}:
                self._scanner.text = mark + self._scanner.text
                break
            raw.append(mark)
            if mark == self._ARGUMENTS:
                break
            into = mark
        yield from self._spaces(raw)
        before = len(raw)
        yield from self._json(raw)
        arguments = _value(raw[-1]) if len(raw) > before else None
        if not isinstance(arguments, dict):
            return ()
        call = {"name": parts["name"].strip(), "arguments": arguments}
        identifier = parts[self._ID].strip()
        return self._called(call | ({"id": identifier} if identifier else {}))


class DeepSeekParser(_JsonParser):
    """Calls between DeepSeek's own tokens, of its third version and later ones.

    The third has ``function<sep>name`` and the arguments in a fence of Markdown; later ones have
    ``name<sep>{…}``.
    """

    _CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
    _CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
    _CALL = "<\uff5ctool\u2581call\u2581begin\uff5c>"
    _SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
    _END = "<\uff5ctool\u2581call\u2581end\uff5c>"
    _FENCE = "```json"

    def _parts(self) -> Iterator[AnswerPart | None]:
        yield from self._content_until(self._CALLS)
        between = ""
        while True:
            text, mark = self._scanner.until([self._CALL, self._CALLS_END])
            between += text
            if mark is None and not self._scanner.ended:
                yield None
                continue
            yield AnswerPart(between if between.strip(_SPACES) else "")
            between = ""
            if mark == self._CALL:
                raw = [mark]
                calls = yield from self._call(raw)
                yield AnswerPart(tool_calls=calls) if calls else AnswerPart("".join(raw))
            elif mark == self._CALLS_END:
                yield from self._content_until(self._CALLS)
            else:
                yield None

    def _call(self, raw: list[str]) -> Generator[None, None, tuple[ToolCall, ...]]:
        name = ""
        while True:
            text, mark = self._scanner.until([self._SEPARATOR, self._END])
            raw.append(text)
            name += text
            if mark is not None:
                raw.append(mark)
                break
            if self._scanner.ended:
                return ()
            yield None
        if mark == self._END:
            return ()
        body = []
        while True:
            text, mark = self._scanner.until([self._END])
            body.append(text)
            if mark is not None or self._scanner.ended:
                break
            yield None
        raw += [*body, mark or ""]
        whole = "".join(body).strip(_SPACES)
        if not whole.startswith("{"):
            kept, fence, fenced = whole.partition(self._FENCE)
            name = kept if fence else name
            whole = fenced.rpartition("```")[0].strip(_SPACES) if fence else whole
        arguments = _value(whole)
        if not isinstance(arguments, dict):
            return ()
        return self._called({"name": name.strip(_SPACES), "arguments": arguments})
