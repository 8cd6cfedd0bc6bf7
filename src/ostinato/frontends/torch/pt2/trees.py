"""Trees of nested arguments and results, as ``.pt2`` files describe them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.frontends.torch.leaf_names import Path

__all__ = ["leaf_paths"]

#: The version of the description that is read here.
_VERSION = 1


def leaf_paths(text: str, what: str) -> list[Path]:
    """The paths of the leaves of a tree, in order.

    Args:
        text: the description, as JSON.
        what: for messages.

    Raises:
        ModelFormatError: it describes no tree.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, list) or len(found) != 2 or found[0] != _VERSION:
            raise ModelFormatError(f"{what} is no description of a tree of version {_VERSION}")
        return list(_paths(found[1], (), what))
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{what} is no JSON document: {error}") from error


def _paths(tree: Any, path: Path, what: str) -> Iterator[Path]:
    if not isinstance(tree, dict) or not isinstance(tree.get("children_spec"), list):
        raise ModelFormatError(f"{what}: a tree has no children at {list(path)}")
    children = tree["children_spec"]
    if tree.get("type") is None:
        yield path
        return
    keys = _keys(tree.get("context"), len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, (*path, key), what)


def _keys(context: Any, count: int) -> list[int | str]:
    """The keys of children: those that the context lists, else their positions."""
    try:
        listed = json.loads(context) if isinstance(context, str) else context
    except ValueError:
        listed = None
    named = isinstance(listed, list) and len(listed) == count
    if named and all(isinstance(key, int | str) for key in listed):
        return list(listed)
    return [*range(count)]
