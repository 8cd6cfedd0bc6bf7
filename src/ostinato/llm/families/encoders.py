"""Families of encoders, as ``config.json`` describes them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.config import Layer, ModelConfig, Norm, Pooling
from ostinato.llm.families.encoder import shapes
from ostinato.llm.families.huggingface import ACTIVATIONS, layer_count, layer_windows, rope
from ostinato.llm.families.naming import join_gate_up, join_qkv, named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = [
    "bert",
    "bert_names",
    "jina_bert_v2",
    "jina_bert_v2_names",
    "modernbert",
    "modernbert_names",
    "nomic_bert",
    "nomic_bert_names",
    "roberta_names",
    "xlm_roberta",
]


def _sizes(fields: Fields) -> dict[str, Any]:
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if width % heads:
        raise fields.error("hidden_size", f"a multiple of the {heads} heads", width)
    features = width // heads
    return {
        "vocabulary": fields.size("vocab_size"),
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": features,
        "value_dim": features,
        "hidden": fields.size("intermediate_size"),
        "causal": False,
        "tied": True,
    }


def _labels(fields: Fields, architecture: str) -> int:
    """The classes of a head; 0 of a model without one."""
    if not architecture.endswith("ForSequenceClassification"):
        return 0
    count: int = fields.count("id2label", fields.size("num_labels", 2))
    return count


def _bert(fields: Fields, family: str, architecture: str, reserved: int) -> ModelConfig:
    positions = fields.size("max_position_embeddings")
    if positions <= reserved:
        raise fields.error("max_position_embeddings", f"more than {reserved}", positions)
    fields.expect("position_embedding_type", "absolute")
    fields.expect("is_decoder", False)
    fields.skip("attention_probs_dropout_prob", "hidden_dropout_prob", "tie_word_embeddings")
    return ModelConfig(
        family=family,
        architecture=architecture,
        **_sizes(fields),
        layers=(Layer(),) * layer_count(fields),
        context=positions - reserved,
        positions=positions,
        norm=Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-12, above=0), bias=True),
        pre_norm=False,
        final_norm=False,
        embedding_norm=True,
        activation=fields.one_of("hidden_act", ACTIVATIONS, "gelu"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        hidden_bias=True,
        head_bias=True,
        segments=fields.size("type_vocab_size", 2),
        labels=_labels(fields, architecture),
        pooling=Pooling(),
    )


def bert(fields: Fields, architecture: str) -> ModelConfig:
    """BERT: norms after each sum, tables of positions and of segments."""
    return _bert(fields, "bert", architecture, 0)


def xlm_roberta(fields: Fields, architecture: str) -> ModelConfig:
    """XLM-RoBERTa and RoBERTa: BERTs whose positions begin behind the padding token."""
    reserved = fields.size("pad_token_id", 1, least=0) + 1
    return _bert(fields, "xlm_roberta", architecture, reserved)


def modernbert(fields: Fields, architecture: str) -> ModelConfig:
    """ModernBERT: norms before, rotary embeddings, gated feed-forwards, windows."""
    sizes, count = _sizes(fields), layer_count(fields)
    reach = fields.size("local_attention", 128) // 2
    every = fields.size("global_attn_every_n_layers", 3)
    windows = layer_windows(fields, count, reach + 1, [i % every != 0 for i in range(count)])
    context, features = fields.size("max_position_embeddings"), sizes["head_dim"]
    both = fields.part("rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    inner = [None if both is None else both.part(kind) for kind in kinds]
    bases = (("global_rope_theta", 160000.0), ("local_rope_theta", 10000.0))
    far, near = (
        rope(fields, features, context, base=base, base_name=name, parameters=part)
        for (name, base), part in zip(bases, inner, strict=True)
    )
    fields.skip("classifier_activation", "classifier_dropout", "attention_dropout")
    fields.skip("initializer_cutoff_factor", "embedding_dropout", "mlp_dropout", "decoder_bias")
    fields.skip("cls_token_id", "sparse_pred_ignore_index", "sparse_prediction")
    fields.skip("deterministic_flash_attn", "reference_compile")
    fields.skip("tie_word_embeddings", "layer_norm_eps", "position_embedding_type")
    pooled = fields.one_of("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")
    bias, hidden_bias = (fields.flag(f"{name}_bias", False) for name in ("attention", "mlp"))
    norm_bias = fields.flag("norm_bias", False)
    norm = Norm(kind="layer", eps=fields.number("norm_eps", 1e-5, above=0), bias=norm_bias)
    return ModelConfig(
        family="modernbert",
        architecture=architecture,
        **sizes,
        layers=tuple(Layer(window=w, rope=far if w is None else near) for w in windows),
        context=context,
        norm=norm,
        embedding_norm=True,
        activation=fields.one_of("hidden_activation", ACTIVATIONS, "gelu"),
        attention_bias=bias,
        output_bias=bias,
        hidden_bias=hidden_bias,
        head_bias=fields.flag("classifier_bias", False),
        labels=_labels(fields, architecture),
        pooling=Pooling(kind=pooled),  # type: ignore[arg-type]
    )


#: The exponent of the factors of distances.
ALIBI: Final = 8.0


def jina_bert_v2(fields: Fields, architecture: str) -> ModelConfig:
    """Jina BERT v2: a BERT with gated feed-forwards, whose scores fall with distances (ALiBi)."""
    fields.expect("position_embedding_type", "alibi")
    fields.expect("feed_forward_type", "geglu")
    fields.expect("is_decoder", False)
    fields.expect("hidden_act", "gelu")
    fields.skip("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout")
    fields.skip("attn_implementation", "model_max_length", "emb_pooler", "tie_word_embeddings")
    return ModelConfig(
        family="jina_bert_v2",
        architecture=architecture,
        **_sizes(fields),
        layers=(Layer(),) * layer_count(fields),
        context=fields.size("max_position_embeddings"),
        norm=Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-12, above=0), bias=True),
        pre_norm=False,
        final_norm=False,
        embedding_norm=True,
        activation="gelu",
        alibi=ALIBI,
        attention_bias=True,
        output_bias=True,
        down_bias=True,
        segments=fields.size("type_vocab_size", 2),
        pooling=Pooling(),
    )


#: Fields of nomic-embed-text's own code, which change no result, and those with one known value.
_NOMIC_SKIPPED: Final = (
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "pad_vocab_size_multiple", "dense_seq_output"),
    *("fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy"),
    *("reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "rotary_scaling_factor"),
    *("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    *("tie_word_embeddings", "initializer_range", "max_trained_positions"),
)
_NOMIC_EXPECTED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "activation_function": "swiglu",
        "causal": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "moe_every_n_layers": 0,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "use_rms_norm": False,
    }
)

#: The names that nomic-embed-text's own code has for fields.
_NOMIC_OWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "layer_norm_eps": "layer_norm_epsilon",
        "rope_theta": "rotary_emb_base",
    }
)


def nomic_bert(fields: Fields, architecture: str) -> ModelConfig:
    """Nomic BERT: norms after each sum, rotary embeddings, gated feed-forwards, few biases.

    Configurations are read as transformers writes them, and as nomic-embed-text's own code does;
    contexts beyond those of the training, which that code stretches, are not.
    """
    fields.also_called(_NOMIC_OWN)
    trained = fields.size("max_trained_positions", None)
    fields.skip(*_NOMIC_SKIPPED)
    fields.expect("rotary_emb_scale_base", None)
    for name, value in _NOMIC_EXPECTED.items():
        fields.expect(name, value)
    sizes, context = _sizes(fields), fields.size("max_position_embeddings")
    context = context if trained is None else min(context, trained)
    fields.expect("head_dim", sizes["head_dim"])
    turned = rope(fields, sizes["head_dim"], context, base=1000.0)
    return ModelConfig(
        family="nomic_bert",
        architecture=architecture,
        **sizes,
        layers=(Layer(rope=turned),) * layer_count(fields),
        context=context,
        norm=Norm(kind="layer", eps=fields.number("layer_norm_eps", 1e-12, above=0), bias=True),
        pre_norm=False,
        final_norm=False,
        embedding_norm=True,
        activation=fields.one_of("hidden_act", ACTIVATIONS, "silu"),
        head_bias=True,
        segments=fields.size("type_vocab_size", 2),
        labels=_labels(fields, architecture),
        pooling=Pooling(),
    )


# -- names of weights ------------------------------------------------------------------------------

_OUTER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "segments": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "pool": "pooler.dense",
        "classifier": "classifier",
    }
)

_LAYER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "mixer_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "hidden_norm": "output.LayerNorm",
    }
)

_NOMIC_OUTER: Final[Mapping[str, str]] = MappingProxyType({**_OUTER, "embedding_norm": "emb_ln"})

_NOMIC_LAYER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q": "attn.Wqkv",
        "k": "",
        "v": "",
        "o": "attn.out_proj",
        "mixer_norm": "norm1",
        "up": "mlp.fc11",
        "gate": "mlp.fc12",
        "down": "mlp.fc2",
        "hidden_norm": "norm2",
    }
)

_JINA_LAYER: Final[Mapping[str, str]] = MappingProxyType(
    {
        **_LAYER,
        "gate": "mlp.gated_layers",
        "up": "",
        "down": "mlp.wo",
        "hidden_norm": "mlp.layernorm",
    }
)

_MODERN_OUTER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "embedding": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "norm": "final_norm",
        "pool": "head.dense",
        "pool_norm": "head.norm",
        "classifier": "classifier",
    }
)

_MODERN_LAYER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q": "attn.Wqkv",
        "k": "",
        "v": "",
        "o": "attn.Wo",
        "mixer_norm": "attn_norm",
        "gate": "mlp.Wi",
        "up": "",
        "down": "mlp.Wo",
        "hidden_norm": "mlp_norm",
    }
)


def bert_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of BERT."""
    return named(shapes(config), _OUTER, _LAYER, "encoder.layer.{}.")


def roberta_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of RoBERTas."""
    outer = {**_OUTER, "pool": "classifier.dense", "classifier": "classifier.out_proj"}
    return named(shapes(config), outer, _LAYER, "encoder.layer.{}.")


def nomic_bert_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Nomic BERT, with joint queries, keys and values."""
    places = named(shapes(config), _NOMIC_OUTER, _NOMIC_LAYER, "encoder.layers.{}.")
    join_qkv(places, config)
    return places


def jina_bert_v2_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Jina BERT v2, with gates and what they gate joint."""
    places = named(shapes(config), _OUTER, _JINA_LAYER, "encoder.layer.{}.")
    join_gate_up(places, config)
    return places


def modernbert_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of ModernBERT, with joint matrices."""
    places = named(shapes(config), _MODERN_OUTER, _MODERN_LAYER, "layers.{}.")
    join_qkv(places, config)
    join_gate_up(places, config)
    return places
