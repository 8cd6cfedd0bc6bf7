"""Text of answers while they are made: whole characters, and stop strings.

- ``detokenizer``: characters of tokens, when they are whole.
- ``stops``: stop strings across tokens.
"""

from __future__ import annotations

from ostinato.llm.text.detokenizer import Detokenizer
from ostinato.llm.text.stops import StopStrings

__all__ = ["Detokenizer", "StopStrings"]
