"""Families of dense decoders, as ``config.json`` describes them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.config import Layer, ModelConfig, Norm
from ostinato.llm.families.decoder import shapes
from ostinato.llm.families.huggingface import (
    ACTIVATIONS,
    attention_sizes,
    layer_count,
    layer_windows,
    llama_like,
    rms,
    rope,
    same_windows,
    used_window,
)
from ostinato.llm.families.naming import changed, join_gate_up, join_qkv, named, take_rows
from ostinato.llm.weights import RowOrder
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = [
    "LLAMA_LAYER",
    "LLAMA_NAMES",
    "gemma2",
    "gemma3",
    "gemma_names",
    "gpt2",
    "gpt2_names",
    "gpt_neox",
    "gpt_neox_names",
    "granite",
    "llama",
    "llama_names",
    "mistral",
    "olmo2",
    "olmo2_names",
    "phi3",
    "phi3_names",
    "qwen2",
    "qwen3",
    "smollm3",
]

# -- configurations --------------------------------------------------------------------------------


def llama(fields: Fields, architecture: str) -> ModelConfig:
    """Llama: RMS norms, rotary embeddings, gated feed-forwards."""
    attention, hidden = (fields.flag(name, False) for name in ("attention_bias", "mlp_bias"))
    return llama_like(
        fields,
        "llama",
        architecture,
        attention_bias=attention,
        output_bias=attention,
        hidden_bias=hidden,
    )


def mistral(fields: Fields, architecture: str) -> ModelConfig:
    """Mistral: a llama with windows."""
    windows = same_windows(fields, layer_count(fields), fields.size("sliding_window", None))
    return llama_like(fields, "mistral", architecture, windows=windows)


def _qwen_windows(fields: Fields) -> list[int | None]:
    """Windows of the layers from a number on, if they are used at all."""
    count, window = layer_count(fields), used_window(fields)
    first = fields.size("max_window_layers", 28, least=0)
    types = [window is not None and i >= first for i in range(count)]
    return layer_windows(fields, count, window, types)


def qwen2(fields: Fields, architecture: str) -> ModelConfig:
    """Qwen2: a llama whose queries, keys and values have biases."""
    windows = _qwen_windows(fields)
    return llama_like(fields, "qwen2", architecture, windows=windows, attention_bias=True)


def qwen3(fields: Fields, architecture: str) -> ModelConfig:
    """Qwen3: a llama whose queries and keys are normalised."""
    bias = fields.flag("attention_bias", False)
    return llama_like(
        fields,
        "qwen3",
        architecture,
        windows=_qwen_windows(fields),
        head_dim=128,
        attention_bias=bias,
        output_bias=bias,
        head_norm="each",
    )


def smollm3(fields: Fields, architecture: str) -> ModelConfig:
    """SmolLM3: a llama some of whose layers have no rotary embedding."""
    count = layer_count(fields)
    every = fields.size("no_rope_layer_interval", 4)
    default = tuple(int((i + 1) % every != 0) for i in range(count))
    turned = fields.numbers("no_rope_layers", default, count=count)
    window = used_window(fields)
    fields.skip("max_window_layers")
    slides = [window is not None and not turns for turns in turned]
    windows = layer_windows(fields, count, window, slides)
    bias, hidden = (fields.flag(name, False) for name in ("attention_bias", "mlp_bias"))
    config = llama_like(
        fields,
        "smollm3",
        architecture,
        windows=windows,
        rope_base=2e6,
        attention_bias=bias,
        output_bias=bias,
        hidden_bias=hidden,
        tied=fields.flag("tie_word_embeddings", True),
    )
    layers = zip(config.layers, turned, strict=True)
    return replace(
        config,
        layers=tuple(layer if turns else replace(layer, rope=None) for layer, turns in layers),
    )


def granite(fields: Fields, architecture: str) -> ModelConfig:
    """Granite: a llama with factors."""
    bias, hidden = (fields.flag(name, False) for name in ("attention_bias", "mlp_bias"))
    return llama_like(
        fields,
        "granite",
        architecture,
        attention_bias=bias,
        output_bias=bias,
        hidden_bias=hidden,
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0, above=0),
    )


def olmo2(fields: Fields, architecture: str) -> ModelConfig:
    """OLMo 2: norms after mixer and feed-forward alone, and of all queries and keys at once."""
    bias = fields.flag("attention_bias", False)
    return llama_like(
        fields,
        "olmo2",
        architecture,
        norm=rms(fields, default=1e-5),
        attention_bias=bias,
        output_bias=bias,
        pre_norm=False,
        post_norm=True,
        head_norm="all",
    )


def phi3(fields: Fields, architecture: str) -> ModelConfig:
    """Phi-3: a llama with joint matrices in its files."""
    for name in ("full_attn_mod", "interpolate_factor"):
        fields.expect(name, 1)
    windows = same_windows(fields, layer_count(fields), fields.size("sliding_window", None))
    return llama_like(fields, "phi3", architecture, windows=windows, norm=rms(fields, default=1e-5))


#: Fields that files of Gemma 3 leave to their readers.
_GEMMA3: Final[Mapping[str, int]] = MappingProxyType(
    {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    }
)


def _gemma(
    fields: Fields, family: str, architecture: str, sizes: Mapping[str, Any], **changes: Any
) -> ModelConfig:
    scalar = fields.number("query_pre_attn_scalar", 256.0, above=0)
    fields.expect("use_bidirectional_attention", False)
    fields.skip("hidden_act")
    bias = fields.flag("attention_bias", False)
    settings: dict[str, Any] = {
        "norm": rms(fields),
        "post_norm": True,
        "activation": fields.one_of("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
        "attention_bias": bias,
        "output_bias": bias,
        "attention_scale": scalar**-0.5,
        "embedding_scale": float(sizes["width"]) ** 0.5,
        "tied": fields.flag("tie_word_embeddings", True),
    }
    given = {**sizes, **settings, **changes}
    return ModelConfig(family=family, architecture=architecture, **given)


def gemma2(fields: Fields, architecture: str) -> ModelConfig:
    """Gemma 2: norms before and after, soft caps, windows in every other layer."""
    window = fields.size("sliding_window_size", 4096)
    count, window = layer_count(fields), fields.size("sliding_window", window)
    windows = layer_windows(fields, count, window, [i % 2 == 0 for i in range(count)])
    sizes = attention_sizes(fields, head_dim=256)
    turned = rope(fields, sizes["head_dim"], sizes["context"])
    return _gemma(
        fields,
        "gemma2",
        architecture,
        sizes,
        layers=tuple(Layer(window=window, rope=turned) for window in windows),
        attention_softcap=fields.number("attn_logit_softcapping", None, above=0),
        logit_softcap=fields.number("final_logit_softcapping", None, above=0),
    )


def gemma3(fields: Fields, architecture: str) -> ModelConfig:
    """Gemma 3: as Gemma 2, with a rotary embedding of their own for layers with windows."""
    count, window = layer_count(fields), fields.size("sliding_window", 4096)
    every = fields.size("_sliding_window_pattern", 6)
    every = fields.size("sliding_window_pattern", every)
    windows = layer_windows(fields, count, window, [(i + 1) % every != 0 for i in range(count)])
    sizes = attention_sizes(fields, head_dim=256, defaults=_GEMMA3)
    features, context = sizes["head_dim"], sizes["context"]
    both = fields.part("rope_parameters")
    legacy = fields.part("rope_scaling")
    inner = {
        name: None if both is None else both.part(name)
        for name in ("full_attention", "sliding_attention")
    }
    whole = inner["full_attention"] or legacy
    near = inner["sliding_attention"]
    everywhere = rope(fields, features, context, base=1e6, parameters=whole)
    local = rope(fields, features, context, base_name="rope_local_base_freq", parameters=near)
    if near is None:
        local = replace(local, scaling=None)
    return _gemma(
        fields,
        "gemma3",
        architecture,
        sizes,
        layers=tuple(
            Layer(window=window, rope=everywhere if window is None else local) for window in windows
        ),
        head_norm="each",
        attention_softcap=fields.number("attn_logit_softcapping", None, above=0),
        logit_softcap=fields.number("final_logit_softcapping", None, above=0),
    )


def gpt2(fields: Fields, architecture: str) -> ModelConfig:
    """GPT-2: layer norms, a table of positions, biases everywhere."""
    width, heads = fields.size("n_embd"), fields.size("n_head")
    if width % heads:
        raise fields.error("n_embd", f"a multiple of the {heads} heads", width)
    for name, wanted in (
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
        ("reorder_and_upcast_attn", False),
    ):
        fields.expect(name, wanted)
    positions = fields.size("n_positions")
    scaled = fields.flag("scale_attn_weights", True)
    count = fields.size("n_layer", most=4096)
    return ModelConfig(
        family="gpt2",
        architecture=architecture,
        vocabulary=fields.size("vocab_size"),
        width=width,
        layers=(Layer(),) * count,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        value_dim=width // heads,
        hidden=fields.size("n_inner", 4 * width),
        context=positions,
        positions=positions,
        norm=_layer_norm(fields, "layer_norm_epsilon"),
        activation=fields.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        hidden_bias=True,
        attention_scale=None if scaled else 1.0,
        tied=fields.flag("tie_word_embeddings", True),
    )


def gpt_neox(fields: Fields, architecture: str) -> ModelConfig:
    """GPT-NeoX: layer norms, partial rotary embeddings, mixer and feed-forward side by side."""
    sizes = attention_sizes(fields)
    sizes["kv_heads"] = sizes["heads"]  # whatever the file says
    turned = rope(
        fields,
        sizes["head_dim"],
        sizes["context"],
        partial=0.25,
        base_name="rotary_emb_base",
        partial_name="rotary_pct",
    )
    fields.skip("rope_theta", "partial_rotary_factor", "num_key_value_heads")
    bias = fields.flag("attention_bias", True)
    return ModelConfig(
        family="gpt_neox",
        architecture=architecture,
        **sizes,
        layers=(Layer(rope=turned),) * layer_count(fields),
        norm=_layer_norm(fields, "layer_norm_eps"),
        parallel=fields.flag("use_parallel_residual", True),
        activation=fields.one_of("hidden_act", ACTIVATIONS, "gelu"),
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        hidden_bias=True,
        tied=fields.flag("tie_word_embeddings", False),
    )


def _layer_norm(fields: Fields, name: str) -> Norm:
    return Norm(kind="layer", eps=fields.number(name, 1e-5, above=0), bias=True)


# -- names of weights ------------------------------------------------------------------------------

_OUTER: Final[Mapping[str, str]] = MappingProxyType(
    {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
)

#: The prefix of a llama's layer.
LLAMA_LAYER: Final = "model.layers.{}."

#: Of a llama's layer, without ``.weight`` and ``.bias``.
LLAMA_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "input_layernorm",
        "hidden_norm": "post_attention_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
)

_SANDWICH: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_NAMES,
        "mixer_post_norm": "post_attention_layernorm",
        "hidden_norm": "pre_feedforward_layernorm",
        "hidden_post_norm": "post_feedforward_layernorm",
    }
)

_PHI3: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_NAMES,
        "q": "self_attn.qkv_proj",
        "gate": "mlp.gate_up_proj",
        "k": "self_attn.qkv_proj",
        "v": "self_attn.qkv_proj",
        "up": "mlp.gate_up_proj",
    }
)

_GPT2: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "ln_1",
        "hidden_norm": "ln_2",
        "q": "attn.c_attn",
        "k": "attn.c_attn",
        "v": "attn.c_attn",
        "o": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
)

_GPT_NEOX: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "input_layernorm",
        "hidden_norm": "post_attention_layernorm",
        "q": "attention.query_key_value",
        "k": "attention.query_key_value",
        "v": "attention.query_key_value",
        "o": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    }
)


def llama_names(config: ModelConfig, inner: Mapping[str, str] = LLAMA_NAMES) -> dict[str, Stored]:
    """The names of llamas and their like.

    Args:
        config: of the model.
        inner: the names of parts of a layer.
    """
    return named(shapes(config), _OUTER, inner, LLAMA_LAYER)


def olmo2_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of models with norms after mixer and feed-forward."""
    return llama_names(config, _SANDWICH)


def gemma_names(config: ModelConfig) -> dict[str, Stored]:
    """The same, with norms that lack one in their files."""
    places = olmo2_names(config)
    return {
        name: replace(place, offset=1.0) if name.endswith("norm.weight") else place
        for name, place in places.items()
    }


def phi3_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Phi-3, with joint matrices."""
    places = llama_names(config, _PHI3)
    join_qkv(places, config)
    join_gate_up(places, config)
    return places


def gpt2_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of GPT-2, with matrices as ``[inputs, outputs]``."""
    outer = {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    }
    places = named(shapes(config), outer, _GPT2, "transformer.h.{}.")
    join_qkv(places, config)
    layers = len(config.layers)
    changed(
        places, layers, ("q", "k", "v", "o", "up", "down"), lambda p: replace(p, transposed=True)
    )
    return places


def gpt_neox_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of GPT-NeoX, with queries, keys and values of each head side by side."""
    outer = {
        "embedding": "gpt_neox.embed_in",
        "norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
    }
    places = named(shapes(config), outer, _GPT_NEOX, "gpt_neox.layers.{}.")
    shape = config.heads, 3, config.head_dim
    for position, part in enumerate("qkv"):
        rows = RowOrder(shape=shape, axes=(1, 0, 2), part=position)
        take_rows(places, len(config.layers), part, rows)
    return places
