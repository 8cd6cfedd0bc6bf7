"""Decoders with experts or latent attention, as the metadata of GGUF files describes them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ostinato.llm.config import LatentAttention, Layer, LinearAttention, ModelConfig
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
from ostinato.llm.families.naming import changed, take_rows
from ostinato.llm.families.rope import yarn_magnitude
from ostinato.llm.weights import RowSpans, Stored
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.llm.fields import Fields

__all__ = [
    "deepseek_names",
    "deepseek_v3",
    "gpt_oss",
    "gpt_oss_names",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_next_names",
]


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
    layers = len(config.layers)
    changed(places, layers, ("k_up",), partial(replace, transposed=True, summed=-2))
    changed(places, layers, ("v_up",), partial(replace, summed=-1))
    return places


def qwen3_next(fields: Fields, architecture: str, tensors: Mapping[str, Any]) -> ModelConfig:
    """Qwen3-Next, whose layers of linear attention are those with a convolution."""
    config = plain(fields, "qwen3_next", architecture, tensors, head_norm="each", query_gate=True)
    fields.skip("full_attention_interval")
    heads = fields.size("ssm.time_step_rank")
    inner = fields.size("ssm.inner_size")
    linear = LinearAttention(
        key_heads=fields.size("ssm.group_count"),
        value_heads=heads,
        key_dim=fields.size("ssm.state_size"),
        value_dim=inner // heads,
        kernel=fields.size("ssm.conv_kernel", least=2, most=64),
    )
    if heads % linear.key_heads or inner % heads:
        several = f"a multiple of the {linear.key_heads} key heads, a divisor of {inner}"
        raise fields.error("ssm.time_step_rank", several, heads)
    layers = tuple(
        replace(layer, mixer="linear", rope=None)
        if f"blk.{i}.ssm_conv1d.weight" in tensors
        else layer
        for i, layer in enumerate(config.layers)
    )
    return replace(config, linear=linear, layers=layers)


def qwen3_next_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Qwen3-Next."""
    inner = {
        "hidden_norm": "post_attention_norm",
        "query_gate": "attn_q",
        "qkv": "attn_qkv",
        "z": "attn_gate",
        "beta": "ssm_ba",
        "decay": "ssm_ba",
        "conv": "ssm_conv1d",
        "rate": "ssm_a",
        "gate_norm": "ssm_norm",
    }
    places = block_names(config, inner)
    linear, features = config.linear, config.head_dim
    assert linear is not None
    for part, start in (("q", 0), ("query_gate", features)):
        rows = RowSpans(groups=config.heads, size=2 * features, spans=((start, features),))
        take_rows(places, len(config.layers), part, rows)
    group = linear.value_heads // linear.key_heads
    for part, start in (("beta", 0), ("decay", group)):
        rows = RowSpans(groups=linear.key_heads, size=2 * group, spans=((start, group),))
        take_rows(places, len(config.layers), part, rows)
    for layer, parts in enumerate(config.layers):
        if parts.mixer == "linear":
            block = f"blk.{layer}."
            places[f"{layer}.o.weight"] = Stored(names=(f"{block}ssm_out.weight",))
            places[f"{layer}.decay.bias"] = Stored(names=(f"{block}ssm_dt.bias",))
            places[f"{layer}.rate"] = Stored(names=(f"{block}ssm_a",), logarithm=True)
    changed(places, len(config.layers), ("conv",), partial(replace, flat=True))
    return places
