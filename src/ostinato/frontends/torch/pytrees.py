"""Paths of the tensors within nested arguments and results. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils import _pytree

if TYPE_CHECKING:
    from ostinato.frontends.torch.leaf_names import Path

__all__ = ["leaf_paths"]


def leaf_paths(spec: Any) -> list[Path]:
    """The paths of the leaves of a tree, in order."""
    tree = _pytree.tree_unflatten([*range(spec.num_leaves)], spec)
    flat = _pytree.tree_flatten_with_path(tree)[0]
    return [tuple(_key(key) for key in path) for path, _ in flat]


def _key(key: Any) -> int | str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            found = getattr(key, attribute)
            return found if isinstance(found, int) else str(found)
    return str(key)
