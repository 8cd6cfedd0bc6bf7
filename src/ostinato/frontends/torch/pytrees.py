"""Paths of the tensors within nested arguments and results. This module imports PyTorch."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.frontends.torch.leaf_names import Path

__all__ = ["leaf_paths"]


def leaf_paths(spec: Any) -> list[Path]:
    """The paths of the leaves of a tree, in order.

    Only objects have paths: one is made of small tensors, as classes of the user's expect them. The
    paths of classes that refuse these are positions.
    """
    try:
        leaves = [torch.zeros(1, 1, 1, 1) for _ in range(spec.num_leaves)]
        flat = _pytree.tree_flatten_with_path(_pytree.tree_unflatten(leaves, spec))[0]
        if len(flat) == spec.num_leaves:
            return [tuple(_key(key) for key in path) for path, _ in flat]
    except Exception:  # what a class of the user's raises is its own choice
        pass
    return [*_positions(spec, ())]


def _positions(spec: Any, path: Path) -> Iterator[Path]:
    if spec.is_leaf():
        yield path
        return
    keyed = spec.type in (dict, OrderedDict)
    for position, child in enumerate(spec.children()):
        key = spec.context[position] if keyed else position
        yield from _positions(child, (*path, key if isinstance(key, int) else str(key)))


def _key(key: Any) -> int | str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            found = getattr(key, attribute)
            return found if isinstance(found, int) else str(found)
    return str(key)
