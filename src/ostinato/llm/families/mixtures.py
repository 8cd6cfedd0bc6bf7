"""Decoders with experts, latent or linear attention, as ``config.json`` describes them."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.llm.config import Experts, LatentAttention, Layer, LinearAttention, ModelConfig
from ostinato.llm.families.dense import LLAMA_LAYER, LLAMA_NAMES, llama_names
from ostinato.llm.families.huggingface import (
    ACTIVATIONS,
    layer_count,
    layer_windows,
    llama_like,
    rms,
    rope,
    rope_parameters,
    same_windows,
    used_window,
)
from ostinato.llm.families.naming import changed, take_rows
from ostinato.llm.families.rope import yarn_magnitude
from ostinato.llm.weights import RowSpans, Stored
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.llm.fields import Fields

__all__ = [
    "deepseek_names",
    "deepseek_v3",
    "gpt_oss",
    "gpt_oss_names",
    "mixtral",
    "mixtral_names",
    "qwen3_moe",
    "qwen3_moe_names",
    "qwen3_next",
    "qwen3_next_names",
    "stacked",
]

# -- configurations --------------------------------------------------------------------------------

#: Fields about training alone.
_TRAINING: Final = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")


def _experts(fields: Fields, *names: str, **settings: Any) -> Experts:
    """The sizes of experts, their number under one of these names."""
    fields.skip(*_TRAINING)
    found = [name for name in names if name in fields]
    count = fields.size(found[0] if found else names[0], most=1 << 16)
    fields.skip(*names)
    chosen = fields.size("num_experts_per_tok")
    if chosen > count:
        raise fields.error("num_experts_per_tok", f"at most the {count} experts", chosen)
    return Experts(count=count, chosen=chosen, **settings)


def _sparse(fields: Fields, count: int) -> list[str]:
    """The feed-forward of each layer, where a step and a list say which have experts."""
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.numbers("mlp_only_layers", ())
    return ["experts" if (i + 1) % step == 0 and i not in dense else "dense" for i in range(count)]


def mixtral(fields: Fields, architecture: str) -> ModelConfig:
    """Mixtral: a llama with experts."""
    count = layer_count(fields)
    experts = _experts(
        fields, "num_local_experts", "num_experts", hidden=fields.size("intermediate_size")
    )
    return llama_like(
        fields,
        "mixtral",
        architecture,
        windows=same_windows(fields, count, fields.size("sliding_window", None)),
        feed_forward=["experts"] * count,
        rope_base=1e6,
        norm=rms(fields, default=1e-5),
        experts=experts,
    )


def qwen3_moe(fields: Fields, architecture: str) -> ModelConfig:
    """Qwen3 with experts in most layers."""
    count, window = layer_count(fields), used_window(fields)
    fields.skip("max_window_layers")
    bias = fields.flag("attention_bias", False)
    return llama_like(
        fields,
        "qwen3_moe",
        architecture,
        windows=same_windows(fields, count, window),
        feed_forward=_sparse(fields, count),
        attention_bias=bias,
        output_bias=bias,
        head_norm="each",
        experts=_experts(
            fields,
            "num_experts",
            "num_local_experts",
            hidden=fields.size("moe_intermediate_size"),
            normalized=fields.flag("norm_topk_prob", False),
        ),
    )


def gpt_oss(fields: Fields, architecture: str) -> ModelConfig:
    """GPT-OSS: windows in every other layer, sinks, experts with biases and limits."""
    count, window = layer_count(fields), fields.size("sliding_window", 128)
    fields.skip("hidden_act", "initial_context_length", "experts_per_token")
    fields.expect("swiglu_alpha", 1.702)
    if (packing := fields.part("quantization_config")) is not None:
        packing.expect("quant_method", "mxfp4")
    bias = fields.flag("attention_bias", True)
    limit = fields.number("swiglu_limit", 7.0, above=0)
    return llama_like(
        fields,
        "gpt_oss",
        architecture,
        head_dim=64,
        windows=layer_windows(fields, count, window, [i % 2 == 0 for i in range(count)]),
        feed_forward=["experts"] * count,
        rope_base=150000.0,
        norm=rms(fields, default=1e-5),
        activation="swiglu_limited",
        attention_bias=bias,
        output_bias=bias,
        sinks=True,
        experts=_experts(
            fields,
            "num_local_experts",
            "num_experts",
            hidden=fields.size("intermediate_size"),
            softmax_chosen=True,
            bias=True,
            limit=limit,
        ),
    )


def deepseek_v3(fields: Fields, architecture: str) -> ModelConfig:
    """DeepSeek-V3: latent attention, experts chosen among groups, and one for all."""
    fields.skip(
        "head_dim", "qk_head_dim", "num_nextn_predict_layers", "ep_size", "num_key_value_heads"
    )
    fields.expect("topk_method", "noaux_tc")
    fields.expect("scoring_func", "sigmoid")
    fields.expect("moe_layer_freq", 1)
    count, heads = layer_count(fields), fields.size("num_attention_heads")
    latent = LatentAttention(
        query_rank=fields.size("q_lora_rank", 0),
        rank=fields.size("kv_lora_rank"),
        plain=fields.size("qk_nope_head_dim"),
        rotated=fields.size("qk_rope_head_dim"),
        value=fields.size("v_head_dim"),
    )
    context = fields.size("max_position_embeddings")
    turned = rope(fields, latent.rotated, context)
    turned = replace(turned, interleaved=fields.flag("rope_interleave", True))
    dense = fields.size("first_k_dense_replace", 3, least=0)
    bias = fields.flag("attention_bias", False)
    hidden = fields.size("moe_intermediate_size")
    experts = _experts(
        fields,
        "n_routed_experts",
        "num_local_experts",
        hidden=hidden,
        shared_hidden=hidden * fields.size("n_shared_experts", 0, least=0),
        scores="sigmoid",
        normalized=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0, above=0),
        correction=True,
        groups=fields.size("n_group", 1),
        chosen_groups=fields.size("topk_group", 1),
    )
    _check_groups(fields, experts)
    return ModelConfig(
        family="deepseek_v3",
        architecture=architecture,
        vocabulary=fields.size("vocab_size"),
        width=fields.size("hidden_size"),
        layers=tuple(
            Layer(mixer="latent", feed_forward="dense" if i < dense else "experts", rope=turned)
            for i in range(count)
        ),
        heads=heads,
        kv_heads=1,
        head_dim=latent.plain + latent.rotated,
        value_dim=latent.value,
        hidden=fields.size("intermediate_size"),
        context=context,
        norm=rms(fields),
        activation=fields.one_of("hidden_act", ACTIVATIONS, "silu"),
        attention_bias=bias,
        output_bias=bias,
        attention_scale=latent_scale(fields, latent),
        tied=fields.flag("tie_word_embeddings", False),
        experts=experts,
        latent=latent,
    )


def _check_groups(fields: Fields, experts: Experts) -> None:
    if experts.count % experts.groups:
        raise fields.error("n_group", f"a divisor of the {experts.count} experts", experts.groups)
    if experts.chosen_groups > experts.groups:
        groups = f"at most the {experts.groups} groups"
        raise fields.error("topk_group", groups, experts.chosen_groups)
    most = experts.chosen_groups * (experts.count // experts.groups)
    if experts.chosen > most:
        within = f"at most the {most} experts of the chosen groups"
        raise fields.error("num_experts_per_tok", within, experts.chosen)


def latent_scale(fields: Fields, latent: LatentAttention) -> float:
    """The factor of scores, which YaRN raises once more for latent attention."""
    scale = float((latent.plain + latent.rotated) ** -0.5)
    found = rope_parameters(fields)
    if found is None or found.word("rope_type", found.word("type", "default")) == "default":
        return scale
    whole = found.number("mscale_all_dim", 0.0)
    if whole:
        scale *= yarn_magnitude(found.number("factor", 1.0), whole) ** 2
    return scale


def qwen3_next(fields: Fields, architecture: str) -> ModelConfig:
    """Qwen3-Next: linear attention in three of four layers, gated attention, many experts."""
    count, interval = layer_count(fields), fields.size("full_attention_interval", 4)
    kinds = ("linear_attention", "full_attention")
    types = fields.words("layer_types", count, kinds)
    if types is None:
        types = [kinds[(i + 1) % interval == 0] for i in range(count)]
    linear = LinearAttention(
        key_heads=fields.size("linear_num_key_heads", 16),
        value_heads=fields.size("linear_num_value_heads", 32),
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        kernel=fields.size("linear_conv_kernel_dim", 4, least=2, most=64),
    )
    if linear.value_heads % linear.key_heads:
        several = f"a multiple of the {linear.key_heads} key heads"
        raise fields.error("linear_num_value_heads", several, linear.value_heads)
    bias = fields.flag("attention_bias", False)
    config = llama_like(
        fields,
        "qwen3_next",
        architecture,
        head_dim=256,
        feed_forward=_sparse(fields, count),
        rope_partial=0.25,
        attention_bias=bias,
        output_bias=bias,
        head_norm="each",
        query_gate=True,
        linear=linear,
        experts=_experts(
            fields,
            "num_experts",
            "num_local_experts",
            hidden=fields.size("moe_intermediate_size", 512),
            shared_hidden=fields.size("shared_expert_intermediate_size", 512),
            shared_gate=True,
            normalized=fields.flag("norm_topk_prob", True),
        ),
    )
    layers = (
        replace(layer, mixer="linear", rope=None) if kind == "linear_attention" else layer
        for layer, kind in zip(config.layers, types, strict=True)
    )
    return replace(config, layers=tuple(layers))


# -- names of weights ------------------------------------------------------------------------------

_PARTS: Final = ("gate", "up", "down")

#: Of a layer with experts beside those of a llama; stacks are named apart.
_MOE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_NAMES,
        "router": "mlp.gate",
        "experts.gate": "",
        "experts.up": "",
        "experts.down": "",
        "shared_gate": "mlp.shared_expert_gate",
        **{f"shared.{part}": f"mlp.shared_expert.{part}_proj" for part in _PARTS},
    }
)


def stacked(
    places: dict[str, Stored], config: ModelConfig, template: str, names: Sequence[str]
) -> None:
    """Let the matrices of experts be stacks of tensors, one for each expert.

    Args:
        places: of all weights; changed.
        config: of the model.
        template: the name of a tensor, of layer, expert and part.
        names: of the parts in the file, in the order of gate, up and down.
    """
    assert config.experts is not None
    for layer in range(len(config.layers)):
        for part, name in zip(_PARTS, names, strict=True):
            if (weight := f"{layer}.experts.{part}.weight") in places:
                tensors = (template.format(layer, e, name) for e in range(config.experts.count))
                places[weight] = Stored(names=tuple(tensors), transposed=True)


def _expert_names(config: ModelConfig, inner: Mapping[str, str]) -> dict[str, Stored]:
    places = llama_names(config, inner)
    names = [f"{part}_proj" for part in _PARTS]
    stacked(places, config, LLAMA_LAYER + "mlp.experts.{}.{}.weight", names)
    return places


def mixtral_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Mixtral."""
    places = llama_names(config, {**_MOE, "router": "block_sparse_moe.gate"})
    template = LLAMA_LAYER + "block_sparse_moe.experts.{}.{}.weight"
    stacked(places, config, template, ("w1", "w3", "w2"))
    return places


def qwen3_moe_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Qwen3 with experts."""
    return _expert_names(config, _MOE)


def deepseek_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of DeepSeek-V3."""
    inner = {
        **_MOE,
        "correction": "mlp.gate.e_score_correction_bias",
        "q_down": "self_attn.q_a_proj",
        "q_down_norm": "self_attn.q_a_layernorm",
        "q_up": "self_attn.q_b_proj",
        "kv_down": "self_attn.kv_a_proj_with_mqa",
        "kv_down_norm": "self_attn.kv_a_layernorm",
        "k_up": "self_attn.kv_b_proj",
        "v_up": "self_attn.kv_b_proj",
        **{f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in _PARTS},
    }
    places = _expert_names(config, inner)
    latent = config.latent
    assert latent is not None
    each = latent.plain + latent.value
    for part, span in (("k_up", (0, latent.plain)), ("v_up", (latent.plain, latent.value))):
        rows = RowSpans(groups=config.heads, size=each, spans=(span,))
        take_rows(places, len(config.layers), part, rows)
    changed(places, len(config.layers), ("k_up", "v_up"), partial(replace, flat=True))
    return places


def gpt_oss_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of GPT-OSS, with gates and the other factor side by side."""
    inner = {
        **_MOE,
        "router": "mlp.router",
        "sinks": "self_attn.sinks",
        "experts.gate": "mlp.experts.gate_up_proj",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    }
    places = llama_names(config, inner)
    assert config.experts is not None
    total = 2 * config.experts.hidden
    for layer in range(len(config.layers)):
        for part in _PARTS:
            for kind, suffix in ((".weight", ""), (".bias", "_bias")):
                weight = f"{layer}.experts.{part}{kind}"
                stem = places[weight].names[0].removesuffix(kind)
                place = Stored(names=(stem + suffix,), summed=-2 if kind == ".weight" else None)
                if part != "down":
                    first = int(part == "up")
                    place = replace(place, columns=slice(first, total, 2), total=total)
                places[weight] = place
    return places


def qwen3_next_names(config: ModelConfig) -> dict[str, Stored]:
    """The names of Qwen3-Next, with matrices of linear attention joint by key head."""
    inner = {
        **_MOE,
        "query_gate": "self_attn.q_proj",
        "qkv": "linear_attn.in_proj_qkvz",
        "z": "linear_attn.in_proj_qkvz",
        "beta": "linear_attn.in_proj_ba",
        "decay": "linear_attn.in_proj_ba",
        "conv": "linear_attn.conv1d",
        "rate": "linear_attn.A_log",
        "gate_norm": "linear_attn.norm",
    }
    places = _expert_names(config, inner)
    for name, place in places.items():
        if name.endswith("norm.weight") and not name.endswith("gate_norm.weight"):
            places[name] = replace(place, offset=1.0)
    features = config.head_dim
    for part, start in (("q", 0), ("query_gate", features)):
        rows = RowSpans(groups=config.heads, size=2 * features, spans=((start, features),))
        take_rows(places, len(config.layers), part, rows)
    _linear_rows(places, config)
    return places


def _linear_rows(places: dict[str, Stored], config: ModelConfig) -> None:
    """Rows of the joint matrices: of each key head its queries, keys, values and gates."""
    linear = config.linear
    assert linear is not None
    group = linear.value_heads // linear.key_heads
    values = group * linear.value_dim
    keys, heads = linear.key_dim, linear.key_heads

    def rows(*spans: tuple[int, int], size: int = 2 * (keys + values)) -> RowSpans:
        return RowSpans(groups=heads, size=size, spans=spans)

    layers = len(config.layers)
    qkv = rows((0, keys), (keys, keys), (2 * keys, values))
    take_rows(places, layers, "qkv", qkv)
    take_rows(places, layers, "z", rows((2 * keys + values, values)))
    for part, start in (("beta", 0), ("decay", group)):
        take_rows(places, layers, part, rows((start, group), size=2 * group))
    for layer, parts in enumerate(config.layers):
        if parts.mixer == "linear":
            prefix = LLAMA_LAYER.format(layer)
            places[f"{layer}.o.weight"] = Stored(names=(f"{prefix}linear_attn.out_proj.weight",))
            places[f"{layer}.decay.bias"] = Stored(names=(f"{prefix}linear_attn.dt_bias",))
