"""Messages in channels, the format of gpt-oss: analysis, commentary and the final answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ostinato.llm.generation import ToolCall
from ostinato.llm.text.incremental import IncrementalParser
from ostinato.llm.text.parts import AnswerPart

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HARMONY_MARKERS", "HarmonyParser"]

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>", _START)

#: Special tokens of the format.
HARMONY_MARKERS: Final = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS[:3])

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class HarmonyParser(IncrementalParser):
    """Parses ``<|channel|>final<|message|>…<|end|><|start|>assistant<|channel|>…``.

    The answer begins where the prompt ends: after ``<|start|>assistant``. Messages to a recipient
    are calls of tools, those of the channel ``analysis`` are reasoning, and others content.
    """

    def _parts(self) -> Iterator[AnswerPart | None]:
        scanner = self._scanner
        started = False
        while True:
            header, mark = "", None
            while mark is None:
                text, mark = scanner.until([_MESSAGE, *_ENDS])
                header += text
                if mark is None:
                    if scanner.ended and not started:
                        yield AnswerPart(header)  # no message at all
                        header = ""
                    yield None
            if mark != _MESSAGE:
                if not started and mark != _START:
                    yield AnswerPart(header)
                continue
            started = True
            yield from self._body(header)

    def _body(self, header: str) -> Iterator[AnswerPart | None]:
        recipient = _RECIPIENT.search(header)
        channel = header.partition(_CHANNEL)[2].split("<")[0].split()
        reasoning = channel[:1] == ["analysis"]
        body, mark = "", None
        while mark is None:
            text, mark = self._scanner.until(_ENDS)
            if recipient is not None:
                body += text
            elif text:
                yield AnswerPart(reasoning=text) if reasoning else AnswerPart(text)
            if mark is None:
                if self._scanner.ended:
                    break
                yield None
        if recipient is not None and mark is None:
            yield AnswerPart(body)  # a call that was cut off
        elif recipient is not None:
            identifier = f"call_{self._calls}"
            self._calls += 1
            yield AnswerPart(tool_calls=(ToolCall(identifier, recipient[1], body),))
