"""Text of answers while they are made: characters, stop strings, reasoning, calls of tools.

- ``detokenizer``: characters of tokens, when they are whole.
- ``stops``: stop strings across tokens.
- ``parts``: the parts of answers, and the scanner that finds them.
- ``incremental``: what their parsers share.
- ``reasoning``: reasoning between tags.
- ``json_formats``, ``harmony``: calls of tools in the formats of models.
- ``tool_formats``: these formats by name, and further ones by entry points.
- ``answer``: all of it, token by token.
"""

from __future__ import annotations

from ostinato.llm.text.answer import AnswerText
from ostinato.llm.text.detokenizer import Detokenizer
from ostinato.llm.text.parts import AnswerParser, AnswerPart
from ostinato.llm.text.stops import StopStrings
from ostinato.llm.text.tool_formats import (
    ToolFormat,
    detect_format,
    starts_inside_reasoning,
    tool_format,
)

__all__ = [
    "AnswerParser",
    "AnswerPart",
    "AnswerText",
    "Detokenizer",
    "StopStrings",
    "ToolFormat",
    "detect_format",
    "starts_inside_reasoning",
    "tool_format",
]
