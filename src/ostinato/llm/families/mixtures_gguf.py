"""Decoders with experts or latent attention, as the metadata of GGUF files describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.llm.config import LatentAttention, Layer, ModelConfig
from ostinato.llm.families.dense_gguf import (
    block_names,
    layer_count,
    plain,
    rms_norm,
    rope,
    sizes,
    windows_of,
)
from ostinato.llm.families.experts_gguf import expert_sizes, feed_forward
from ostinato.llm.families.rope import yarn_magnitude
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields
    from ostinato.llm.weights import Stored

__all__ = ["deepseek_names", "deepseek_v3", "gpt_oss", "gpt_oss_names", "qwen3_moe"]


def qwen3_moe(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Qwen3 with experts."""
    return plain(fields, "qwen3_moe", architecture, tensors, head_norm="each")


def gpt_oss(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """GPT-OSS, whose rotary embedding blends frequencies between parts of pairs."""
    count, window = layer_count(fields), fields.size("attention.sliding_window", 128)
    found = sizes(fields, tensors)
    experts = expert_sizes(fields, tensors, found, softmax_chosen=True, bias=True, limit=7.0)
    config = plain(
        fields,
        "gpt_oss",
        architecture,
        tensors,
        windows=windows_of(fields, count, window, 2),
        experts=experts,
        activation="swiglu_limited",
        sinks=True,
    )
    return replace(config, layers=tuple(_untruncated(layer) for layer in config.layers))


def _untruncated(layer: Layer) -> Layer:
    if layer.rope is None or layer.rope.scaling is None:
        return layer
    scaling = replace(layer.rope.scaling, truncate=False)
    return replace(layer, rope=replace(layer.rope, scaling=scaling))


def gpt_oss_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of GPT-OSS."""
    return block_names(config, {"hidden_norm": "post_attention_norm"})


def deepseek_v3(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """DeepSeek-V2 and V3, with their matrices for absorbed attention."""
    found = sizes(fields, tensors)
    fields.skip("leading_dense_block_count", "vocab_size")
    rotated = fields.size("rope.dimension_count")
    latent = LatentAttention(
        query_rank=fields.size("attention.q_lora_rank", 0, least=0),
        rank=fields.size("attention.kv_lora_rank"),
        plain=fields.size("attention.key_length_mla", found["head_dim"]) - rotated,
        rotated=rotated,
        value=fields.size("attention.value_length_mla", found["value_dim"]),
    )
    if latent.plain < 1:
        raise fields.error(
            "attention.key_length_mla", f"more than {rotated}", latent.plain + rotated
        )
    turned = rope(fields, {**found, "head_dim": rotated}, tensors)
    scale = float((latent.plain + rotated) ** -0.5)
    factor = fields.number("rope.scaling.yarn_log_multiplier", 0.0)
    if turned.scaling is not None and turned.scaling.kind == "yarn":
        raised = yarn_magnitude(turned.scaling.factor, 10 * factor)
        scale *= raised**2
        magnitude = yarn_magnitude(turned.scaling.factor) if not factor else 1.0
        turned = replace(turned, scaling=replace(turned.scaling, magnitude=magnitude))
    turned = replace(turned, interleaved=True)
    experts = expert_sizes(
        fields, tensors, found, default_scores="sigmoid" if latent.query_rank else "softmax"
    )
    sizes_of_heads = {"kv_heads": 1, "head_dim": latent.plain + rotated, "value_dim": latent.value}
    return ModelConfig(
        family="deepseek_v3",
        architecture=architecture,
        **{**found, **sizes_of_heads},
        layers=tuple(
            Layer(mixer="latent", feed_forward=feed_forward(tensors, i), rope=turned)
            for i in range(layer_count(fields))
        ),
        norm=rms_norm(fields),
        attention_scale=scale,
        experts=experts,
        latent=latent,
    )


def deepseek_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of DeepSeek."""
    inner = {
        "q_down": "attn_q_a",
        "q_down_norm": "attn_q_a_norm",
        "q_up": "attn_q_b",
        "kv_down": "attn_kv_a_mqa",
        "kv_down_norm": "attn_kv_a_norm",
        "k_up": "attn_k_b",
        "v_up": "attn_v_b",
    }
    places = block_names(config, inner)
    for layer in range(len(config.layers)):
        name = f"{layer}.k_up.weight"
        places[name] = replace(places[name], transposed=True)
    return places
