"""The lines of the user's code that nodes and errors belong to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ostinato.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["locate", "user_source"]

_PACKAGE = __name__.partition(".")[0]


def locate(error: GraphError, call: str, operands: Sequence[str], label: str = "") -> GraphError:
    """Add the call, its operands and its source line to ``error``, unless it has them."""
    if error.located:
        return error
    node = f" (node {label!r})" if label else ""
    at = f" at {source}" if (source := user_source()) else ""
    located = GraphError(f"{call}({', '.join(operands)}): {error}{node}{at}")
    located.located, located.requirements = True, error.requirements
    return located


def user_source() -> str:
    """``file:line`` of the innermost frame outside this package."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
