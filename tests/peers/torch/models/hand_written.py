"""Configurations for architectures whose defaults, made small, would not do."""

from __future__ import annotations

from tests.peers.hugging_face.architectures import (
    ARCHITECTURES,
    GROUPED,
    PATCHES,
    WORDS,
    Architecture,
    area,
    decoder,
    image,
    text_and_image,
)

__all__ = ["HAND_WRITTEN"]

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

_MORE = (
    decoder("cohere", GROUPED, pad_token_id=0),
    decoder(
        "deepseek_v3",
        WORDS,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=24,
        first_k_dense_replace=1,
    ),
    image(
        "dpt",
        {**PATCHES, "image_size": 64, "patch_size": 8, "num_hidden_layers": 4},
        "AutoModelForDepthEstimation",
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=16,
    ),
    area(
        "efficientnet",
        {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    ),
    decoder("gemma3_text", GROUPED, head_dim=8, sliding_window=4),
    decoder(
        "gpt_oss", GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4
    ),
    decoder("granite", GROUPED),
    decoder(
        "mamba", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    ),
    decoder(
        "mamba2",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
    ),
    area("mobilenet_v1", {"depth_multiplier": 0.25}),
    decoder(
        "mpt", {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
    ),
    decoder("olmo2", GROUPED),
    decoder("qwen2_moe", GROUPED, **_EXPERTS, shared_expert_intermediate_size=24),
    decoder("qwen3_moe", GROUPED, **_EXPERTS, head_dim=8),
    decoder("rwkv", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}),
    text_and_image("siglip"),
    decoder("smollm3", GROUPED, pad_token_id=0),
    decoder("stablelm", GROUPED),
    area(
        "swinv2",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
)

#: The architectures without a cache of keys and values among their inputs, by model type.
HAND_WRITTEN: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (*ARCHITECTURES.values(), *_MORE)
    if not architecture.cached
}
