"""The tiny models as GGUF files, with tensors named, ordered and changed as converters do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, Any]
Config = Mapping[str, Any]

#: The architecture of each model of ``expected``.
ARCHITECTURES = {
    "llama": "llama",
    "llama_scaled": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "phi3_long": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "olmo2": "olmo2",
    "granite": "granite",
    "smollm3": "smollm3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "deepseek2",
    "qwen3_next": "qwen3next",
}

#: Those whose queries and keys have rotating pairs side by side.
_PAIRED = ("llama", "granite", "smollm3")


def expressible(model: str, config: Config) -> dict[str, Any]:
    """Changes of a ``config.json`` without which no GGUF file could have it."""
    if model == "qwen2":  # no file says that some layers of it have windows
        full = ["full_attention"] * config["num_hidden_layers"]
        return {"use_sliding_window": False, "layer_types": full, "sliding_window": None}
    if model.startswith("gemma"):  # nor another factor of the scores
        return {"query_pre_attn_scalar": config["head_dim"]}
    if model == "deepseek_v3":  # nor a factor of angles beside that of scores
        rope = dict(config["rope_parameters"])
        return {"rope_parameters": rope | {"mscale": rope["mscale_all_dim"]}}
    return {}


def write_gguf(
    path: Path,
    model: str,
    config: Config,
    tensors: Mapping[str, Array],
    packed: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Write a model.

    Args:
        path: of the file.
        model: its name in ``expected``.
        config: ``config.json``.
        tensors: as in a Hugging Face folder.
        packed: the formats of matrices, by a part of their names in the file.
    """
    name = ARCHITECTURES[model]
    writer = gguf.GGUFWriter(path, name)
    metadata = _experts if "num_local_experts" in config else _METADATA.get(name, _llama)
    metadata(writer, config)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == name)
    names = gguf.get_tensor_name_map(kind, layers)
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for theirs, array in _converted(name, config, tensors).items():
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        ours = ours or dense.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        changed = np.ascontiguousarray(_changed(name, config, theirs, array))
        form = next((f for part, f in (packed or {}).items() if part in ours), None)
        if form is None or changed.ndim < 2:
            writer.add_tensor(ours, changed)
        else:
            blocks = gguf.quants.quantize(changed, form)
            writer.add_tensor(ours, blocks, raw_dtype=form)
    for extra, array in _factors(config).items():
        writer.add_tensor(extra, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _converted(architecture: str, config: Config, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors with experts as stacks, and joint matrices apart."""
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, array in tensors.items():
        if match := re.fullmatch(r"(.*experts)\.\d+\.(.*)", name):
            stacks.setdefault(f"{match[1]}.{match[2]}", []).append(array)
        elif architecture == "gpt-oss" and ".experts." in name:
            found |= _gpt_oss_experts(name, array)
        elif ".linear_attn." in name:
            found |= _linear_attention(name, config, array)
        elif name.endswith("kv_b_proj.weight"):
            stem = name.removesuffix("kv_b_proj.weight")
            joint = array.reshape(config["num_attention_heads"], -1, array.shape[1])
            plain = config["qk_nope_head_dim"]
            found[stem + "k_b_proj.weight"] = joint[:, :plain].swapaxes(1, 2)
            found[stem + "v_b_proj.weight"] = joint[:, plain:]
        else:
            ours = name.replace("e_score_correction_bias", "e_score_correction.bias")
            found[ours + ".weight" * ours.endswith("sinks")] = array
    return found | {name: np.stack(arrays) for name, arrays in stacks.items()}


def _linear_attention(name: str, config: Config, array: Array) -> dict[str, Array]:
    if name.endswith("A_log"):
        return {name: -np.exp(array)}
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt_proj.bias"): array}
    if "conv1d" in name:
        return {name: array[:, 0]}
    if not name.endswith("in_proj_qkvz.weight"):
        return {name: array}
    heads, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    grouped = array.reshape(heads, 2 * (keys + values), -1)
    ends = np.cumsum([keys, keys, values])
    q, k, v, z = (x.reshape(-1, array.shape[1]) for x in np.split(grouped, ends, axis=1))
    stem = name.removesuffix("in_proj_qkvz.weight")
    return {f"{stem}in_proj_qkv.weight": np.concatenate([q, k, v]), f"{stem}in_proj_z.weight": z}


def _gpt_oss_experts(name: str, array: Array) -> dict[str, Array]:
    kind = "bias" if name.endswith("_bias") else "weight"
    stem = name.removesuffix("_bias")
    if kind == "weight":
        array = array.swapaxes(1, 2)
    if stem.endswith("gate_up_proj"):
        stem = stem.removesuffix("gate_up_proj")
        parts = {"gate_proj": array[:, ::2], "up_proj": array[:, 1::2]}
        return {f"{stem}{part}.{kind}": values for part, values in parts.items()}
    return {f"{stem}.{kind}": array}


def _changed(architecture: str, config: Config, name: str, array: Array) -> Array:
    if architecture in _PAIRED and ".self_attn." in name:
        for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                halves = array.reshape(config[key], 2, -1, *array.shape[1:])
                return halves.swapaxes(1, 2).reshape(array.shape)
    less_one = architecture.startswith("gemma") or architecture == "qwen3next"
    if less_one and name.endswith("norm.weight") and "linear_attn" not in name:
        return array + np.float32(1)
    if architecture == "gpt2" and array.ndim == 2 and ".h." in name:
        return array.T
    if architecture == "gptneox" and "query_key_value" in name:
        parts = array.reshape(config["num_attention_heads"], 3, -1, *array.shape[1:])
        return parts.swapaxes(0, 1).reshape(array.shape)
    return array


def _common(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_file_type(0)


def _llama(writer: gguf.GGUFWriter, config: Config) -> None:
    _common(writer, config)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    width = config["hidden_size"] // config["num_attention_heads"]
    features = config.get("head_dim") or width
    writer.add_key_length(features)
    writer.add_value_length(features)
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_dimension_count(int(features * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    window = config.get("sliding_window")
    if window is not None and config.get("use_sliding_window", True):
        writer.add_sliding_window(window)
    kind = rope["rope_type"]
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _gemma(writer: gguf.GGUFWriter, config: Config) -> None:
    _llama(writer, config)
    if (cap := config.get("attn_logit_softcapping")) is not None:
        writer.add_attn_logit_softcapping(cap)
    if (cap := config.get("final_logit_softcapping")) is not None:
        writer.add_final_logit_softcapping(cap)


def _granite(writer: gguf.GGUFWriter, config: Config) -> None:
    _llama(writer, config)
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _gpt2(writer: gguf.GGUFWriter, config: Config) -> None:
    names = {
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    _common(writer, {**sizes, "intermediate_size": 4 * config["n_embd"]})
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def _gpt_neox(writer: gguf.GGUFWriter, config: Config) -> None:
    _common(writer, config)
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    features = config["hidden_size"] // config["num_attention_heads"]
    partial = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(features * partial))
    writer.add_parallel_residual(config["use_parallel_residual"])


def _experts(writer: gguf.GGUFWriter, config: Config) -> None:
    _llama(writer, config)
    count = config.get("num_local_experts", config.get("num_experts"))
    writer.add_expert_count(count)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _qwen3_next(writer: gguf.GGUFWriter, config: Config) -> None:
    _experts(writer, config)
    heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])
    writer.add_full_attention_interval(4)


def _deepseek(writer: gguf.GGUFWriter, config: Config) -> None:
    _common(writer, config)
    rope, rotated = config["rope_parameters"], config["qk_rope_head_dim"]
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + rotated)
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])


_METADATA: dict[str, Callable[[gguf.GGUFWriter, Config], None]] = {
    "gemma2": _gemma,
    "gemma3": _gemma,
    "granite": _granite,
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "qwen3moe": _experts,
    "gpt-oss": _experts,
    "deepseek2": _deepseek,
    "qwen3next": _qwen3_next,
}


def _factors(config: Config) -> dict[str, Array]:
    """The tensors of divisors of frequencies."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    features = config["hidden_size"] // config["num_attention_heads"]
    found = []
    for pair in range(features // 2):
        length = 2 * math.pi * rope["rope_theta"] ** (2 * pair / features)
        turns = rope["original_max_position_embeddings"] / length
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / ((1 - share) / rope["factor"] + share))
    return {"rope_freqs.weight": np.array(found, np.float32)}
