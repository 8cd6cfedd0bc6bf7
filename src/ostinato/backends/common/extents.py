"""The rows in use of a run, and the experts that the tokens in them have called."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Extents", "expert_numbers", "tokens_in_use"]


class Extents:
    """The rows in use, for all threads and for single ones."""

    def __init__(self) -> None:
        self._common: tuple[int, int] | None = None
        self._own: dict[int, list[tuple[int, int] | None]] = {}

    @property
    def current(self) -> tuple[int, int] | None:
        """Those of the calling thread's runs; ``None``: all rows."""
        own = self._own.get(threading.get_ident())
        return own[-1] if own else self._common

    def set(self, extent: tuple[int, int] | None) -> None:
        """See :meth:`Executable.limit_rows`."""
        self._common = extent

    def push(self, extent: tuple[int, int] | None) -> None:
        """See :meth:`Executable.push_limit`."""
        self._own.setdefault(threading.get_ident(), []).append(extent)

    def pop(self) -> None:
        """See :meth:`Executable.pop_limit`."""
        own = self._own[threading.get_ident()]
        own.pop()
        if not own:
            del self._own[threading.get_ident()]


def tokens_in_use(tokens: int, padded: Collection[int], extent: tuple[int, int] | None) -> int:
    """The number of leading tokens that are no padding.

    Tokens that come from no input of so many rows, or do not divide into them, all count.

    Args:
        tokens: how many there are.
        padded: the numbers of rows of the inputs that they come from.
        extent: the rows in use, and all; ``None``: all are in use.
    """
    if extent is None or extent[1] not in padded or tokens % max(1, extent[1]):
        return tokens
    actual, upper = extent
    return tokens // upper * actual


def expert_numbers(ids: np.ndarray[Any, Any], experts: int) -> np.ndarray[Any, Any]:
    """Ids as numbers of experts, in int64: negative ones from the end, the others clamped."""
    numbers = ids.astype(np.int64)
    numbers[numbers < 0] += experts
    return numbers.clip(0, experts - 1)
