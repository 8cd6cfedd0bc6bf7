"""Names of the tensors within nested arguments and results. This module imports PyTorch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["argument_names", "result_names"]

#: The lists of keys and values that a cache of Transformers is flattened to.
_CACHE_LISTS = re.compile(r"\b(key|value)_cache\.(\d+)\b")


def argument_names(spec: Any, arguments: Sequence[str]) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``, such as ``past_key_values.0.key``.

    Args:
        spec: the tree.
        arguments: the names of the arguments, those by position first.
    """
    names = []
    for path in _paths(spec):
        kind, *keys = path
        by_position = kind.idx == 0 and bool(keys) and keys[0].idx < len(arguments)
        words = [arguments[keys[0].idx]] if by_position else [_word(keys[0])]
        names.append(_joined([*words, *map(_word, keys[1:])]))
    return names


def result_names(spec: Any) -> list[str]:
    """The names of the leaves of a result, such as ``logits``; ``output_0`` where it has none."""
    names = []
    for path in _paths(spec):
        words = [_word(key) for key in path]
        if not words or words[0].isdigit():
            words = [f"output_{words[0] if words else 0}", *words[1:]]
        names.append(_joined(words))
    return names


def _paths(spec: Any) -> Iterator[tuple[Any, ...]]:
    tree = _pytree.tree_unflatten([*range(spec.num_leaves)], spec)
    for path, _ in _pytree.tree_flatten_with_path(tree)[0]:
        yield path


def _word(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _joined(words: Sequence[str]) -> str:
    return _CACHE_LISTS.sub(r"\2.\1", ".".join(words))
