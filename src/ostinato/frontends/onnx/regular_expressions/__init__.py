"""Regular expressions in the syntax of RE2, matched in time linear in the text.

Python's ``re`` backtracks: a pattern of a file, such as ``(a*)*b``, could keep it busy for ever.
"""

from __future__ import annotations

from ostinato.frontends.onnx.regular_expressions.matching import Pattern
from ostinato.frontends.onnx.regular_expressions.program import PatternError

__all__ = ["Pattern", "PatternError"]
