"""Families of encoders, as the metadata of GGUF files describes them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.config import Layer, ModelConfig, Norm, Pooling
from ostinato.llm.families.dense_gguf import layer_count, rope, sizes, windows_of
from ostinato.llm.families.encoder import shapes
from ostinato.llm.families.encoders import ALIBI
from ostinato.llm.families.naming import join_gate_up, join_qkv, named
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = [
    "bert",
    "bert_gguf_names",
    "jina_bert_v2",
    "jina_bert_v2_gguf_names",
    "modernbert",
    "modernbert_gguf_names",
    "nomic_bert",
    "nomic_bert_gguf_names",
]

#: By the number in files: none is named, mean, first row, last row, and the head of a reranker.
_POOLINGS: Final[Mapping[int, str]] = MappingProxyType(
    {0: "mean", 1: "mean", 2: "first", 3: "last", 4: "first"}
)


def _pooling(fields: Fields, name: str, default: int) -> Pooling:
    number = fields.size(name, default, least=0)
    if number not in _POOLINGS:
        raise fields.unsupported(name, f"only {', '.join(map(str, _POOLINGS))} are computed")
    return Pooling(kind=_POOLINGS[number])  # type: ignore[arg-type]


def _sizes(fields: Fields, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and settings that all encoders share: arguments of :class:`ModelConfig`."""
    fields.expect("attention.causal", False)
    fields.skip("classifier.output_labels")
    head = tensors.get("cls.output.weight")
    found = sizes(fields, tensors)
    return {
        **found,
        "causal": False,
        "tied": True,
        "embedding_norm": True,
        "labels": 0 if head is None else head.sizes[0],
    }


def _like_bert(fields: Fields, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same of encoders with BERT's norms, which follow each sum, and table of segments."""
    table = tensors.get("token_types.weight")
    eps = fields.number("attention.layer_norm_epsilon", above=0)
    return {
        **_sizes(fields, tensors),
        "norm": Norm(kind="layer", eps=eps, bias=True),
        "pre_norm": False,
        "final_norm": False,
        "segments": 0 if table is None else table.sizes[0],
        "pooling": _pooling(fields, "pooling_type", 1),
    }


def bert(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """BERT, RoBERTa and XLM-RoBERTa, whose files have no rows of positions before the first."""
    found = _like_bert(fields, tensors)
    return ModelConfig(
        family="bert",
        architecture=architecture,
        **found,
        layers=(Layer(),) * layer_count(fields),
        positions=found["context"],
        activation="gelu",
        gated=False,
        attention_bias=True,
        output_bias=True,
        hidden_bias=True,
        head_bias=True,
    )


def nomic_bert(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Nomic BERT."""
    found = _like_bert(fields, tensors)
    return ModelConfig(
        family="nomic_bert",
        architecture=architecture,
        **found,
        layers=(Layer(rope=rope(fields, found, tensors)),) * layer_count(fields),
        activation="silu",
        head_bias=True,
    )


def jina_bert_v2(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Jina BERT v2, with the gates of feed-forwards in the first half of ``ffn_up``."""
    found = _like_bert(fields, tensors)
    return ModelConfig(
        family="jina_bert_v2",
        architecture=architecture,
        **found,
        layers=(Layer(),) * layer_count(fields),
        activation="gelu",
        alibi=ALIBI,
        attention_bias=True,
        output_bias=True,
        down_bias=True,
    )


def modernbert(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """ModernBERT."""
    found, count = _sizes(fields, tensors), layer_count(fields)
    fields.expect("hidden_activation", "gelu")
    width = fields.size("attention.sliding_window", None)
    dense_first = [i % 3 != 0 for i in range(count)]
    windows: list[int | None] = [None] * count
    if width is not None:
        # Half of it on each side, and the token itself.
        reach = width // 2 + 1
        given = "attention.sliding_window_pattern" in fields
        sliding = windows_of(fields, count, reach, 3)
        windows = sliding if given else [reach if slides else None for slides in dense_first]
    far = rope(fields, found, tensors)
    near = replace(far, base=fields.number("rope.freq_base_swa", 10000.0, above=1))
    pooling = _pooling(fields, "pooling_type", 1)
    if found["labels"]:
        pooling = _pooling(fields, "classifier.pooling_type", 1)
    norm_bias, bias = "output_norm.bias" in tensors, "blk.0.attn_qkv.bias" in tensors
    eps = fields.number("attention.layer_norm_epsilon", above=0)
    return ModelConfig(
        family="modernbert",
        architecture=architecture,
        **found,
        layers=tuple(Layer(window=w, rope=far if w is None else near) for w in windows),
        norm=Norm(kind="layer", eps=eps, bias=norm_bias),
        activation="gelu",
        attention_bias=bias,
        output_bias=bias,
        hidden_bias="blk.0.ffn_up.bias" in tensors,
        head_bias="cls.bias" in tensors,
        pooling=pooling,
    )


# -- names of weights ------------------------------------------------------------------------------

_OUTER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "token_embd",
        "positions": "position_embd",
        "segments": "token_types",
        "embedding_norm": "token_embd_norm",
        "norm": "output_norm",
        "pool": "cls",
        "pool_norm": "cls.norm",
        "classifier": "cls.output",
    }
)

_BERT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "mixer_norm": "attn_output_norm",
        "up": "ffn_up",
        "down": "ffn_down",
        "hidden_norm": "layer_output_norm",
    }
)

_NOMIC: Final[Mapping[str, str]] = MappingProxyType(
    {**_BERT, "q": "attn_qkv", "k": "", "v": "", "gate": "ffn_gate"}
)

_JINA: Final[Mapping[str, str]] = MappingProxyType({**_BERT, "gate": "ffn_up", "up": ""})

_MODERN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q": "attn_qkv",
        "k": "",
        "v": "",
        "o": "attn_output",
        "mixer_norm": "attn_norm",
        "gate": "ffn_up",
        "up": "",
        "down": "ffn_down",
        "hidden_norm": "ffn_norm",
    }
)


def bert_gguf_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of BERT."""
    return named(shapes(config), _OUTER, _BERT, "blk.{}.")


def nomic_bert_gguf_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Nomic BERT, with joint queries, keys and values."""
    places = named(shapes(config), _OUTER, _NOMIC, "blk.{}.")
    join_qkv(places, config)
    return places


def jina_bert_v2_gguf_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Jina BERT v2, with gates and what they gate joint."""
    places = named(shapes(config), _OUTER, _JINA, "blk.{}.")
    join_gate_up(places, config)
    return places


def modernbert_gguf_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of ModernBERT, with joint matrices."""
    places = named(shapes(config), _OUTER, _MODERN, "blk.{}.")
    join_qkv(places, config)
    join_gate_up(places, config)
    return places
