"""The sizes of the tiny models, by family, as arguments of the configurations of transformers."""

from __future__ import annotations

from typing import Any

__all__ = ["DECODERS", "ENCODERS"]

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
}
_GPT_OSS = {
    **_GROUPED,
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 12,
    "num_hidden_layers": 2,
}

#: By the name of the stored files: the type of the model, and its sizes.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **_GROUPED,
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gpt_oss": ("gpt_oss", _GPT_OSS),
    "gpt_oss_mxfp4": ("gpt_oss", _GPT_OSS),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_COMMON,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 24,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.7,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "rope_parameters": _YARN,
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **_GROUPED,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
        },
    ),
}

#: The same of encoders.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {**_COMMON, "type_vocab_size": 2, "pad_token_id": 0}),
    "xlm_roberta": ("xlm-roberta", {**_COMMON, "type_vocab_size": 1, "pad_token_id": 1}),
    "modernbert": (
        "modernbert",
        {
            **_COMMON,
            "num_hidden_layers": 4,
            "global_attn_every_n_layers": 3,
            "local_attention": 16,
            "pad_token_id": 0,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
}
