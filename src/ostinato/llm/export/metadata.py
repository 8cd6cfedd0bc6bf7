"""Configurations as the metadata of GGUF files: what ``gguf_config`` of a family reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import InputError
from ostinato.llm.families.rope import frequencies, magnitude, yarn_magnitude
from ostinato.records import field_names

if TYPE_CHECKING:
    from ostinato.llm.config import Experts, Layer, ModelConfig, Pooling, Rope, RopeScaling

__all__ = ["model_metadata", "rope_tensors", "unexpressed"]

Array = np.ndarray[Any, Any]

#: Fields that name a model, or that another comparison is made of.
_NAMES: Final = ("family", "architecture", "layers")

#: Numbers are float32 in files.
_ROUNDING: Final = 1e-6

#: Numbers of poolings in files.
_POOLINGS: Final = {"mean": 1, "first": 2, "last": 3}

#: The pooling of rerankers, by their head.
_HEAD: Final = 4

_GATING: Final = {"softmax": 1, "sigmoid": 2}


def model_metadata(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """The metadata of a model, without the architecture's prefix.

    Args:
        config: of the model.
        architecture: its name in GGUF files.

    Raises:
        InputError: the layers of a hybrid model do not alternate as files describe it.
    """
    found: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "context_length": config.context,
        "embedding_length": config.width,
        "block_count": len(config.layers),
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.value_dim,
    }
    norm = "attention.layer_norm_rms_epsilon" if config.norm.kind == "rms" else _LAYER_NORM
    found[norm] = config.norm.eps
    found |= _windows(config) | _rope(config)
    if config.attention_softcap is not None:
        found["attn_logit_softcapping"] = config.attention_softcap
    if config.logit_softcap is not None:
        found["final_logit_softcapping"] = config.logit_softcap
    if config.experts is not None:
        found |= _experts(config, config.experts, architecture)
    if not config.causal:
        found["attention.causal"] = False
    if config.pooling is not None:
        found |= _pooling(config, config.pooling)
    match architecture:
        case "granite":
            found |= _granite(config)
        case "gptneox":
            found["use_parallel_residual"] = config.parallel
        case "deepseek2":
            found |= _latent(config)
        case "qwen3next":
            found |= _linear(config)
    return found


_LAYER_NORM: Final = "attention.layer_norm_epsilon"


def _pooling(config: ModelConfig, pooling: Pooling) -> dict[str, Any]:
    number = _POOLINGS[pooling.kind]
    if not config.labels:
        return {"pooling_type": number}
    found: dict[str, Any] = {
        "pooling_type": _HEAD,
        "classifier.output_labels": [f"LABEL_{number}" for number in range(config.labels)],
    }
    # Other encoders take the first row for their head.
    return found | ({"classifier.pooling_type": number} if config.pre_norm else {})


def _windows(config: ModelConfig) -> dict[str, Any]:
    sliding = [layer.window is not None for layer in config.layers]
    if not any(sliding):
        return {}
    # Those of encoders reach to both sides.
    widths = {layer.window for layer in config.layers if layer.window is not None}
    width = max(widths)
    found: dict[str, Any] = {
        "attention.sliding_window": width if config.causal else 2 * (width - 1)
    }
    if not all(sliding):
        found["attention.sliding_window_pattern"] = np.array(sliding)
    return found


def _granite(config: ModelConfig) -> dict[str, Any]:
    found = {
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "logit_scale": 1 / config.logit_scale,
    }
    if config.attention_scale is not None:
        found["attention.scale"] = config.attention_scale
    return found


def _experts(config: ModelConfig, experts: Experts, architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "expert_count": experts.count,
        "expert_used_count": experts.chosen,
        "expert_feed_forward_length": experts.hidden,
    }
    if experts.shared_hidden:
        found["expert_shared_feed_forward_length"] = experts.shared_hidden
    if experts.groups > 1:
        found["expert_group_count"] = experts.groups
        found["expert_group_used_count"] = experts.chosen_groups
    if not experts.softmax_chosen:
        found["expert_weights_norm"] = experts.normalized
    if experts.scale != 1:
        found["expert_weights_scale"] = experts.scale
    if architecture == "deepseek2":
        dense = [layer.feed_forward for layer in config.layers]
        found["leading_dense_block_count"] = dense.index("experts") if "experts" in dense else 0
        found["expert_gating_func"] = _GATING[experts.scores]
        found["expert_shared_count"] = experts.shared_hidden // experts.hidden
    return found


def _latent(config: ModelConfig) -> dict[str, Any]:
    latent = config.latent
    assert latent is not None, "the architecture has latent attention"
    found: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": latent.rank,
        "attention.key_length": latent.rank + latent.rotated,
        "attention.value_length": latent.rank,
        "attention.key_length_mla": latent.plain + latent.rotated,
        "attention.value_length_mla": latent.value,
    }
    if latent.query_rank:
        found["attention.q_lora_rank"] = latent.query_rank
    rope = config.layers[0].rope
    scaling = None if rope is None else rope.scaling
    if scaling is not None and scaling.kind == "yarn" and config.attention_scale is not None:
        raised = math.sqrt(config.attention_scale * math.sqrt(latent.plain + latent.rotated))
        multiplier = (raised - 1) / math.log(scaling.factor)
        if multiplier > _ROUNDING:
            found["rope.scaling.yarn_log_multiplier"] = multiplier
    return found


def _linear(config: ModelConfig) -> dict[str, Any]:
    linear = config.linear
    assert linear is not None, "the architecture has linear attention"
    mixers = [layer.mixer for layer in config.layers]
    every = mixers.index("attention") + 1 if "attention" in mixers else len(mixers) + 1
    if any((mixer == "attention") != ((i + 1) % every == 0) for i, mixer in enumerate(mixers)):
        raise InputError(
            "GGUF files have layers of attention at equal distances, which this model has not"
        )
    return {
        "full_attention_interval": every,
        "ssm.conv_kernel": linear.kernel,
        "ssm.state_size": linear.key_dim,
        "ssm.group_count": linear.key_heads,
        "ssm.time_step_rank": linear.value_heads,
        "ssm.inner_size": linear.value_heads * linear.value_dim,
    }


# -- rotary embeddings -----------------------------------------------------------------------------


def _rope(config: ModelConfig) -> dict[str, Any]:
    rope = _main_rope(config)
    if rope is None:
        return {}
    found: dict[str, Any] = {
        "rope.dimension_count": rope.features,
        "rope.freq_base": rope.base,
    }
    near = _window_rope(config)
    if near is not None and near != rope:
        found["rope.freq_base_swa"] = near.base
    if rope.scaling is not None:
        found |= _scaling(rope.scaling, latent=config.latent is not None)
    return found


def _main_rope(config: ModelConfig) -> Rope | None:
    """The rotary embedding of layers without a window, or else of all."""
    ropes = [layer.rope for layer in config.layers if layer.window is None]
    ropes += [layer.rope for layer in config.layers]
    return next((rope for rope in ropes if rope is not None), None)


def _window_rope(config: ModelConfig) -> Rope | None:
    ropes = (layer.rope for layer in config.layers if layer.window is not None)
    return next((rope for rope in ropes if rope is not None), None)


def _scaling(scaling: RopeScaling, *, latent: bool) -> dict[str, Any]:
    match scaling.kind:
        case "linear":
            return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
        case "yarn":
            plain = scaling.magnitude / yarn_magnitude(scaling.factor)
            found: dict[str, Any] = {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": scaling.factor,
                "rope.scaling.original_context_length": scaling.original_context,
                "rope.scaling.yarn_beta_slow": scaling.low,
                "rope.scaling.yarn_beta_fast": scaling.high,
            }
            if not latent and not math.isclose(plain, 1, rel_tol=_ROUNDING):
                found["rope.scaling.attn_factor"] = plain
            return found
        case "longrope":
            return {
                "rope.scaling.original_context_length": scaling.original_context,
                "rope.scaling.attn_factor": scaling.magnitude,
            }
    return {}


def rope_tensors(config: ModelConfig) -> dict[str, Array]:
    """Tensors of divisors of frequencies, by the names in files; most models have none."""
    rope = _main_rope(config)
    scaling = None if rope is None else rope.scaling
    if rope is None or scaling is None:
        return {}
    if scaling.kind == "longrope":
        return {
            "rope_factors_short.weight": np.array(scaling.short, np.float32),
            "rope_factors_long.weight": np.array(scaling.long, np.float32),
        }
    if scaling.kind not in ("llama3", "factors"):
        return {}
    exponents = np.arange(0, rope.features, 2, dtype=np.float32) / np.float32(rope.features)
    plain = np.float32(1) / np.float32(rope.base) ** exponents
    return {"rope_freqs.weight": (plain / frequencies(rope, config.context)).astype(np.float32)}


# -- comparison ------------------------------------------------------------------------------------


def unexpressed(config: ModelConfig, read: ModelConfig) -> list[str]:
    """The fields of a configuration that its metadata, read again, have not.

    Args:
        config: of the model.
        read: what a family reads from the metadata.
    """
    found = [
        name
        for name in field_names(config)
        if name not in _NAMES and not _same(getattr(config, name), getattr(read, name))
    ]
    if len(config.layers) != len(read.layers):
        return [*found, "layers"]
    for ours, theirs in zip(config.layers, read.layers, strict=True):
        found += _layer_differences(ours, theirs, config.context)
    return list(dict.fromkeys(found))


def _layer_differences(ours: Layer, theirs: Layer, context: int) -> list[str]:
    found = [
        f"layers.{name}"
        for name in ("mixer", "feed_forward", "window")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    return found if _same_rope(ours.rope, theirs.rope, context) else [*found, "layers.rope"]


def _same_rope(ours: Rope | None, theirs: Rope | None, context: int) -> bool:
    """Whether two rotary embeddings turn by the same angles, however they are described."""
    if ours is None or theirs is None:
        return ours is theirs
    if ours.features != theirs.features or ours.interleaved != theirs.interleaved:
        return False
    angles = all(
        np.allclose(frequencies(ours, length), frequencies(theirs, length), rtol=1e-5, atol=0)
        for length in {1, context}
    )
    return angles and _same(magnitude(ours), magnitude(theirs))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=_ROUNDING)
    if hasattr(type(ours), "__record__") and type(ours) is type(theirs):
        return all(_same(getattr(ours, n), getattr(theirs, n)) for n in field_names(ours))
    return bool(ours == theirs)
