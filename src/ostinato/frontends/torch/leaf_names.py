"""Names of the tensors within nested arguments and results, by their paths.

A path has a key for each level: an index, or the key of a dict or the name of an attribute.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Path", "argument_names", "result_names"]

Path: TypeAlias = "tuple[int | str, ...]"

#: The lists of keys and values that a cache of Transformers is flattened to.
_CACHE_LISTS = re.compile(r"\b(key|value)_cache\.(\d+)\b")


def argument_names(paths: Iterable[Path], arguments: Sequence[str]) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``, such as ``past_key_values.0.key``.

    Args:
        paths: of the leaves; each begins with 0 for arguments by position, 1 for those by name.
        arguments: the names of the arguments, those by position first.
    """
    names = []
    for kind, first, *keys in paths:
        by_position = kind == 0 and isinstance(first, int) and first < len(arguments)
        word = arguments[int(first)] if by_position else str(first)
        names.append(_joined([word, *map(str, keys)]))
    return names


def result_names(paths: Iterable[Path]) -> list[str]:
    """The names of the leaves of a result, such as ``logits``; ``output_0`` where it has none."""
    names = []
    for path in paths:
        words = [str(key) for key in path]
        if not words or words[0].isdigit():
            words = [f"output_{words[0] if words else 0}", *words[1:]]
        names.append(_joined(words))
    return names


def _joined(words: Sequence[str]) -> str:
    return _CACHE_LISTS.sub(r"\2.\1", ".".join(words))
