"""Caches of Transformers as arguments and results of exports. This module imports PyTorch.

An export takes nested tensors of classes that PyTorch has registered: dynamic caches by a function
of Transformers, static ones here. The tensors of a static cache are arguments that the model writes
to in place.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

__all__ = ["register_caches"]

#: Of an object without its tensors: its class, the names of its tensors, and its other attributes.
_Rest: TypeAlias = "tuple[type, tuple[str, ...], tuple[tuple[str, Any], ...]]"


def register_caches() -> None:
    """Register the caches of Transformers, where that is in use."""
    module = sys.modules.get("transformers.cache_utils")
    if module is None or module.StaticCache in _pytree.SUPPORTED_NODES:
        return
    try:
        from transformers.integrations.executorch import register_dynamic_cache_export_support
    except ImportError:
        return
    register_dynamic_cache_export_support()
    static = module.StaticCache
    _pytree.register_pytree_node(
        static,
        _flatten,
        _unflatten,
        serialized_type_name=f"{static.__module__}.{static.__name__}",
        flatten_with_keys_fn=_flatten_with_keys,
    )


def _flatten(cache: Any) -> tuple[list[torch.Tensor], tuple[_Rest, ...]]:
    """The tensors of a cache, layer by layer, and all else."""
    named, rest = _flatten_with_keys(cache)
    return [tensor for _, tensor in named], rest


def _flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, torch.Tensor]], tuple[_Rest, ...]]:
    own = {name: value for name, value in vars(cache).items() if name != "layers"}
    rest = [(type(cache), (), tuple(own.items()))]
    named = []
    for position, layer in enumerate(cache.layers):
        tensors = {n: v for n, v in vars(layer).items() if isinstance(v, torch.Tensor)}
        others = {n: v for n, v in vars(layer).items() if n not in tensors}
        rest.append((type(layer), tuple(tensors), tuple(others.items())))
        for name, tensor in tensors.items():
            named.append((_pytree.MappingKey(f"{position}.{_WORDS.get(name, name)}"), tensor))
    return named, tuple(rest)


def _unflatten(tensors: Any, rest: tuple[_Rest, ...]) -> Any:
    remaining = iter(tensors)
    (kind, _, own), *layers = rest
    cache = _with_attributes(kind, dict(own))
    cache.layers = [
        _with_attributes(of, {**dict(others), **{name: next(remaining) for name in names}})
        for of, names, others in layers
    ]
    return cache


def _with_attributes(kind: type, attributes: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    vars(made).update(attributes)
    return made


#: The names of a layer's tensors within the names of inputs.
_WORDS = {"keys": "key", "values": "value"}
