"""Configurations as the makers of well-known models publish them."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.errors import ModelFormatError
from ostinato.llm.checkpoints.huggingface import IGNORED
from ostinato.llm.config import ModelConfig
from ostinato.llm.families.registry import family_of
from ostinato.llm.fields import Fields

_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
}


def read(architecture: str, **settings: Any) -> ModelConfig:
    """The configuration in a file with these fields."""
    fields = Fields({**_COMMON, "architectures": [architecture], **settings}, "config.json")
    config = family_of(architecture, "config.json").config(fields, architecture)
    fields.finish(IGNORED)
    return config


def test_llama_3_1():
    config = read(
        "LlamaForCausalLM",
        attention_bias=False,
        bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009],
        hidden_act="silu",
        hidden_size=4096,
        intermediate_size=14336,
        max_position_embeddings=131072,
        mlp_bias=False,
        model_type="llama",
        num_attention_heads=32,
        num_hidden_layers=32,
        num_key_value_heads=8,
        pretraining_tp=1,
        rms_norm_eps=1e-05,
        rope_scaling={
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        rope_theta=500000.0,
        tie_word_embeddings=False,
        vocab_size=128256,
    )
    rope = config.layers[0].rope
    assert rope is not None and rope.scaling is not None
    assert (rope.base, rope.scaling.kind, rope.scaling.original_context) == (5e5, "llama3", 8192)
    assert (config.head_dim, config.kv_heads, config.tied) == (128, 8, False)


def test_smollm2():
    config = read(
        "LlamaForCausalLM",
        hidden_act="silu",
        hidden_size=576,
        intermediate_size=1536,
        is_llama_config=True,
        max_position_embeddings=8192,
        num_attention_heads=9,
        num_hidden_layers=30,
        num_key_value_heads=3,
        rms_norm_eps=1e-05,
        rope_interleaved=False,
        rope_scaling=None,
        rope_theta=100000,
        tie_word_embeddings=True,
        vocab_size=49152,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    )
    assert config.tied and config.head_dim == 64


def test_qwen2_5_has_no_windows_unless_asked_for():
    settings = {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
        "hidden_act": "silu",
    }
    config = read("Qwen2ForCausalLM", use_sliding_window=False, **settings)
    assert {layer.window for layer in config.layers} == {None} and config.attention_bias
    config = read("Qwen2ForCausalLM", use_sliding_window=True, **settings)
    assert [layer.window for layer in config.layers] == [None] * 21 + [32768] * 3


def test_gemma_2():
    config = read(
        "Gemma2ForCausalLM",
        attention_bias=False,
        attn_logit_softcapping=50.0,
        cache_implementation="hybrid",
        final_logit_softcapping=30.0,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        hidden_size=3584,
        intermediate_size=14336,
        max_position_embeddings=8192,
        num_attention_heads=16,
        num_hidden_layers=42,
        num_key_value_heads=8,
        query_pre_attn_scalar=256,
        rms_norm_eps=1e-06,
        rope_theta=10000.0,
        sliding_window=4096,
        sliding_window_size=4096,
        vocab_size=256000,
    )
    assert [layer.window for layer in config.layers[:4]] == [4096, None, 4096, None]
    assert config.tied and config.attention_scale == 1 / 16
    assert (config.attention_softcap, config.logit_softcap) == (50, 30)


@pytest.mark.parametrize("scaled", [False, True])
def test_gemma_3(scaled: bool):
    scaling = {"factor": 8.0, "rope_type": "linear"} if scaled else None
    config = read(
        "Gemma3ForCausalLM",
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=26,
        rope_local_base_freq=10000,
        rope_scaling=scaling,
        rope_theta=1000000,
        sliding_window=512,
        sliding_window_pattern=6,
    )
    near, far = config.layers[0], config.layers[5]
    assert near.rope is not None and far.rope is not None
    assert (near.window, near.rope.base, near.rope.scaling) == (512, 10000, None)
    assert (far.window, far.rope.base, far.rope.scaling is not None) == (None, 1000000, scaled)
    assert (config.vocabulary, config.heads, config.head_dim) == (262208, 8, 256)


def test_phi_4_mini():
    config = read(
        "Phi3ForCausalLM",
        attention_bias=False,
        auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
        embd_pdrop=0.0,
        full_attn_mod=1,
        hidden_act="silu",
        hidden_size=3072,
        interpolate_factor=1,
        intermediate_size=8192,
        lm_head_bias=False,
        max_position_embeddings=131072,
        num_attention_heads=24,
        num_hidden_layers=32,
        num_key_value_heads=8,
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.75,
        resid_pdrop=0.0,
        rms_norm_eps=1e-05,
        rope_scaling={"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        rope_theta=10000.0,
        sliding_window=262144,
        tie_word_embeddings=True,
        vocab_size=200064,
    )
    rope = config.layers[0].rope
    assert rope is not None and rope.scaling is not None
    assert (rope.features, rope.scaling.kind, rope.scaling.factor) == (96, "longrope", 32)


def test_pythia():
    config = read(
        "GPTNeoXForCausalLM",
        hidden_act="gelu",
        hidden_size=512,
        intermediate_size=2048,
        layer_norm_eps=1e-05,
        max_position_embeddings=2048,
        num_attention_heads=8,
        num_hidden_layers=6,
        rotary_emb_base=10000,
        rotary_pct=0.25,
        tie_word_embeddings=False,
        use_parallel_residual=True,
        vocab_size=50304,
    )
    rope = config.layers[0].rope
    assert rope is not None and rope.features == 16 and config.parallel


def test_gpt2():
    config = read(
        "GPT2LMHeadModel",
        activation_function="gelu_new",
        attn_pdrop=0.1,
        embd_pdrop=0.1,
        layer_norm_epsilon=1e-05,
        n_ctx=1024,
        n_embd=768,
        n_head=12,
        n_layer=12,
        n_positions=1024,
        resid_pdrop=0.1,
        summary_activation=None,
        summary_first_dropout=0.1,
        summary_proj_to_labels=True,
        summary_type="cls_index",
        summary_use_proj=True,
        task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
        vocab_size=50257,
    )
    assert config.tied and config.positions == 1024 and config.hidden == 3072


def test_nomic_embed_has_fields_of_its_own_code():
    own = {
        "activation_function": "swiglu",
        "causal": False,
        "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 3072,
        "n_layer": 12,
        "n_positions": 8192,
        "pad_vocab_size_multiple": 64,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "scale_attn_weights": True,
        "type_vocab_size": 2,
        "use_flash_attn": True,
        "vocab_size": 30528,
    }
    config = read("NomicBertModel", **own)
    assert (config.context, config.width, len(config.layers)) == (2048, 768, 12)
    (rope,) = {layer.rope for layer in config.layers}
    assert rope is not None
    assert (rope.base, rope.features) == (1000.0, 64)
    both = {
        "hidden_size": 768,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    }
    assert read("NomicBertModel", **own, **both) == config
    with pytest.raises(ModelFormatError, match="moe_every_n_layers is 2, and only 0 is computed"):
        read("NomicBertModel", **own, moe_every_n_layers=2)
