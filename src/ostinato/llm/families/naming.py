"""The positions of weights in files, from templates of their names."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from ostinato.llm.weights import RowOrder, Stored
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.llm.config import ModelConfig
    from ostinato.llm.weights import RowSpans

__all__ = [
    "changed",
    "interleaved_rows",
    "join_gate_up",
    "join_qkv",
    "named",
    "take_rows",
]

#: A logical name: a layer, or none, the part's name, and the kind of weight.
_LOGICAL: Final = re.compile(r"(?:(\d+)\.)?(.+?)(\.weight|\.bias)?")


def named(
    names: Iterable[str], outer: Mapping[str, str], inner: Mapping[str, str], layer: str
) -> dict[str, Stored]:
    """The tensor of each weight.

    Args:
        names: logical names.
        outer: names in the file of what is in no layer, without ``.weight`` and ``.bias``.
        inner: the same of what is in a layer, after the layer's own.
        layer: the name of a layer, such as ``model.layers.{}.``.
    """
    found = {}
    for name in names:
        parts = _LOGICAL.fullmatch(name)
        assert parts is not None
        number, part, kind = parts.groups(default="")
        stem = layer.format(number) + inner[part] if number else outer[part]
        found[name] = Stored(names=(stem + kind,))
    return found


def _segments(
    places: dict[str, Stored], layers: int, fused: str, parts: Sequence[tuple[str, int]]
) -> None:
    """Let weights of each layer be consecutive rows of one tensor.

    Args:
        places: of all weights; changed.
        layers: how many there are.
        fused: the part whose name in the file is the tensor's.
        parts: the parts and their rows, in order.
    """
    total = sum(rows for _, rows in parts)
    for layer in range(layers):
        start = 0
        for part, rows in parts:
            for kind in (".weight", ".bias"):
                if f"{layer}.{part}{kind}" in places:
                    stem = places[f"{layer}.{fused}{kind}"]
                    places[f"{layer}.{part}{kind}"] = replace(
                        stem, rows=slice(start, start + rows), total=total
                    )
            start += rows


def join_qkv(places: dict[str, Stored], config: ModelConfig) -> None:
    """Let queries, keys and values of each layer be rows of the tensor that is named for ``q``."""
    keys = config.kv_heads
    rows = [
        ("q", config.heads * config.head_dim),
        ("k", keys * config.head_dim),
        ("v", keys * config.value_dim),
    ]
    _segments(places, len(config.layers), "q", rows)


def join_gate_up(places: dict[str, Stored], config: ModelConfig) -> None:
    """Let gates and what they gate be rows of the tensor that is named for ``gate``."""
    rows = [("gate", config.hidden), ("up", config.hidden)]
    _segments(places, len(config.layers), "gate", rows)


def changed(
    places: dict[str, Stored],
    layers: int,
    parts: Iterable[str],
    change: Callable[[Stored], Stored],
    kinds: Sequence[str] = ("weight", "bias"),
) -> None:
    """Change the positions of weights and biases of each layer.

    Args:
        places: of all weights; changed.
        layers: how many there are.
        parts: the parts of layers, those that have them.
        change: gives the position instead of one.
        kinds: the last parts of names.
    """
    listed = [*parts]
    for layer in range(layers):
        for part in listed:
            for kind in kinds:
                if (name := f"{layer}.{part}.{kind}") in places:
                    places[name] = change(places[name])


def take_rows(places: dict[str, Stored], layers: int, part: str, rows: RowOrder | RowSpans) -> None:
    """Let a part of each layer be some rows of its tensor, or all in another order."""
    changed(places, layers, (part,), partial(replace, rows=rows, total=rows.total))


def interleaved_rows(heads: int, features: int) -> RowOrder:
    """The rows of heads in which rotating pairs are neighbours, in the order of halves.

    GGUF files have the queries and keys of some architectures so.
    """
    return RowOrder(shape=(heads, features // 2, 2), axes=(0, 2, 1))
