"""Small models of any type: the library's default configuration with its sizes made tiny."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from tests.peers.hugging_face.architectures import Architecture
from tests.peers.torch.models.hand_written import HAND_WRITTEN

__all__ = ["MODEL_TYPES", "build_dynamic", "build_hand_written", "build_small", "randomize"]

#: Model types that can be built so, without a configuration written for them.
MODEL_TYPES = [
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "bailing_hybrid",
    "beam",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "bitnet",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "cohere2",
    "cohere2_moe",
    "convbert",
    "cpmant",
    "ctrl",
    "cvt",
    "cwm",
    "data2vec-audio",
    "data2vec-text",
    "data2vec-vision",
    "deberta",
    "deepseek_v4",
    "diffllama",
    "dinov2_with_registers",
    "doge",
    "ernie",
    "ernie4_5",
    "ernie4_5_moe",
    "esm",
    "eurobert",
    "exaone4",
    "exaone_moe",
    "falcon_h1",
    "falcon_mamba",
    "flaubert",
    "flex_olmo",
    "flint",
    "fnet",
    "focalnet",
    "fsmt",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt-sw3",
    "gpt_bigcode",
    "gpt_neox_japanese",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoeshared",
    "gte",
    "helium",
    "hgnet_v2",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "hyperclovax",
    "ibert",
    "ijepa",
    "inkling2_text",
    "inkling_text",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jamba",
    "jetmoe",
    "jina_embeddings_v3",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "layoutlm",
    "led",
    "lfm2",
    "lfm3",
    "llama4_text",
    "longformer",
    "longt5",
    "m2m_100",
    "mbart",
    "megatron-bert",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "mobilebert",
    "modernbert-decoder",
    "moshi",
    "mra",
    "mt5",
    "mvp",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "nllb-moe",
    "nomic_bert",
    "nystromformer",
    "olmo",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "openai-gpt",
    "pegasus",
    "pegasus_x",
    "persimmon",
    "phimoe",
    "plbart",
    "poolformer",
    "pvt",
    "pvt_v2",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "qwen4_exp_text",
    "recurrent_gemma",
    "rembert",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "seamless_m4t",
    "seamless_m4t_v2",
    "seed_oss",
    "sew",
    "sew-d",
    "solar_open",
    "squeezebert",
    "starcoder2",
    "swiftformer",
    "switch_transformers",
    "tapas",
    "textnet",
    "trocr",
    "ultrabert",
    "umt5",
    "unispeech",
    "unispeech-sat",
    "vaultgemma",
    "vit_msn",
    "wav2vec2-conformer",
    "xglm",
    "xlm",
    "xlm-roberta-xl",
    "yoso",
]

#: By the name that configurations have for a size, a tiny one.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2
    ),
    **dict.fromkeys(("decoder_layers", "num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "hidden_dim", "n_inner", "d_inner", "dff"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), 8),
    **dict.fromkeys(("vocab_size",), 99),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    "moe_intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
    "sliding_window": 4,
    "pad_token_id": 0,
    "use_cache": False,
}

#: Sizes of types whose defaults have none.
_OPEN_SIZES: dict[str, dict[str, int]] = {
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2},
    "hunyuan_v1_dense": {"head_dim": 8, "num_key_value_heads": 2},
    "hunyuan_v1_moe": {"head_dim": 8, "num_key_value_heads": 2, "moe_topk": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
}


def build_small(model_type: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of this type and arguments for it.

    Raises:
        Exception: none can be built so: whatever the library raises.
    """
    default = transformers.AutoConfig.for_model(model_type)
    sizes = {
        name: size for name, size in _SIZES.items() if isinstance(getattr(default, name, None), int)
    }
    sizes |= _OPEN_SIZES.get(model_type, {})
    config = transformers.AutoConfig.for_model(model_type, **{**sizes, "use_cache": False})
    torch.manual_seed(0)
    heads = (transformers.AutoModel, transformers.AutoModelForCausalLM)
    head = next((h for h in heads if type(config) in h._model_mapping), heads[0])
    model = head.from_config(config, attn_implementation="eager").eval()
    if sum(p.numel() for p in model.parameters()) > 3e7:
        raise ValueError("its default sizes are not made small")
    randomize(model)
    taken = inspect.signature(model.forward).parameters
    kwargs: dict[str, torch.Tensor] = {}
    ids = torch.randint(5, 60, (2, 8))
    if "input_ids" in taken:
        kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "decoder_input_ids" in taken:
            kwargs["decoder_input_ids"] = torch.randint(5, 60, (2, 5))
    elif "input_values" in taken:
        kwargs = {"input_values": torch.randn(2, 4000)}
    if "pixel_values" in taken:
        side = getattr(config, "image_size", 32)
        height, width = (side, side) if isinstance(side, int) else side
        kwargs["pixel_values"] = torch.randn(2, getattr(config, "num_channels", 3), height, width)
    kwargs = {name: value for name, value in kwargs.items() if name in taken}
    with torch.no_grad():
        model(**kwargs)
    return model, kwargs


def build_hand_written(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model of a configuration of the table, and arguments for it."""
    architecture = HAND_WRITTEN[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.config)
    head = getattr(transformers, architecture.head)
    build = head.from_config if architecture.head.startswith("Auto") else head
    model = build(config).eval()
    randomize(model)
    return model, _tensors(architecture, architecture.exported_sizes)


def _tensors(architecture: Architecture, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    arrays = architecture.arrays(sizes)
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def build_dynamic(
    name: str,
) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]], dict[str, dict[int, Any]]]:
    """A model of the table, arguments of six shapes, and the axes whose sizes vary.

    Among the shapes are those with one row, and with one token.
    """
    architecture = HAND_WRITTEN[name]
    model, _ = build_hand_written(name)
    first = architecture.exported_sizes
    examples = [_tensors(architecture, first)]
    for batch, length in ((1, 1), (1, 8), (3, 1), (5, 13), (2, 7)):
        sizes = {**first, "batch": batch, "length": length, "target": max(length - 1, 1)}
        examples.append(_tensors(architecture, sizes))
    dims = {dim: torch.export.Dim(dim, min=1, max=64) for dim in first}
    shapes = {
        operand.name: {axis: dims[dim] for axis, dim in enumerate(operand.dims) if dim in dims}
        for operand in architecture.inputs
    }
    return model, examples, shapes


def randomize(model: torch.nn.Module) -> None:
    """Give a model weights that are so large that each part matters to the result."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn_like(parameter) / fan_in**0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
