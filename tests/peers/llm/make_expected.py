"""Store the tokens and logits that transformers computes with tiny random models.

    .venv-peers/bin/python -m tests.peers.llm.make_expected [FAMILY …]

Families are those of :data:`MODELS`; without arguments, all. The files in ``tests/llm/expected``
hold no weights: those follow from the names of tensors and a seed (:mod:`tests.llm.tiny_models`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.llm.tiny_models import (
    ANSWER,
    EXPECTED,
    LENGTHS,
    SEEDS,
    STORED_LOGITS,
    prompt,
    write_folder,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(6)],
    "long_factor": [1.0 + 0.5 * i for i in range(6)],
    "partial_rotary_factor": 0.75,
}

_GPT2 = {
    "vocab_size": 131,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}

_MOE = {"num_local_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 3}

_GPT_OSS = {**_SIZES, **_MOE, "head_dim": 16, "sliding_window": 12, "intermediate_size": 64}

_QWEN3_MOE = {
    "head_dim": 24,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}

_DEEPSEEK = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 40,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.707},
}

_QWEN3_NEXT = {
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 24,
}

#: The class of the configuration of each model, and its arguments.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SIZES),
    "llama_scaled": (
        "LlamaConfig",
        {**_SIZES, "rope_parameters": _LLAMA3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": ("MistralConfig", {**_SIZES, "sliding_window": 40, "head_dim": 24}),
    "qwen2": (
        "Qwen2Config",
        {**_SIZES, "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3Config", {**_SIZES, "head_dim": 24, "rope_parameters": _YARN}),
    "gemma2": ("Gemma2Config", {**_SIZES, "head_dim": 24, "sliding_window": 50}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_SIZES, "head_dim": 24, "sliding_window": 50, "num_hidden_layers": 6},
    ),
    "phi3": (
        "Phi3Config",
        {**_SIZES, "sliding_window": 100, "original_max_position_embeddings": 512},
    ),
    "phi3_long": (
        "Phi3Config",
        {**_SIZES, "original_max_position_embeddings": 128, "rope_parameters": _LONGROPE},
    ),
    "gpt2": ("GPT2Config", _GPT2),
    "gpt_neox": ("GPTNeoXConfig", _SIZES),
    "olmo2": ("Olmo2Config", _SIZES),
    "granite": ("GraniteConfig", {**_SIZES, **_GRANITE}),
    "smollm3": ("SmolLM3Config", _SIZES),
    "mixtral": ("MixtralConfig", {**_SIZES, **_MOE}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_SIZES, **_QWEN3_MOE}),
    "gpt_oss": ("GptOssConfig", _GPT_OSS),
    "gpt_oss_mxfp4": ("GptOssConfig", _GPT_OSS),
    "deepseek_v3": ("DeepseekV3Config", {**_SIZES, **_DEEPSEEK}),
    "deepseek_v3_plain": (
        "DeepseekV3Config",
        {**_SIZES, **_DEEPSEEK, "q_lora_rank": None, "rope_interleave": False},
    ),
    "qwen3_next": ("Qwen3NextConfig", {**_SIZES, **_QWEN3_NEXT}),
}


def described(family: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The ``config.json`` of a model and the shapes of its tensors, as transformers saves them."""
    kind, arguments = MODELS[family]
    config = getattr(transformers, kind)(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        settings = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    if family.endswith("_mxfp4"):
        settings["quantization_config"] = {"quant_method": "mxfp4"}
        shapes = in_blocks(shapes)
    return settings, shapes


def in_blocks(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Shapes of tensors with the experts of a gpt-oss as blocks of 32 elements and their scales."""
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = shape
            found[f"{name}_blocks"] = [experts, outputs, inputs // 32, 16]
            found[f"{name}_scales"] = [experts, outputs, inputs // 32]
        else:
            found[name] = shape
    return found


def widened(folder: Path) -> None:
    """Replace blocks in a folder's file by the elements that they stand for."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        blocks, scales = tensors.pop(name), tensors.pop(f"{stem}_scales")
        tensors[stem] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, path, {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(settings))


def answers(folder: Path, seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Tokens, margins and logits for a prompt of each length."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens, margins, logits = [], [], []
    for length in LENGTHS:
        ids = prompt(model.config.vocab_size, length, seed)
        found: list[Any] = [[], [], []]
        past, fed = None, torch.tensor([ids])
        for number in range(ANSWER):
            with torch.no_grad():
                result = model(fed, past_key_values=past, use_cache=True)
            last = result.logits[0, -1].numpy()
            best = np.sort(last)[-2:]
            found[0].append(int(last.argmax()))
            found[1].append(float(best[1] - best[0]))
            if number in STORED_LOGITS:
                found[2].append(last)
            past, fed = result.past_key_values, torch.tensor([[found[0][-1]]])
        for whole, part in zip((tokens, margins, logits), found, strict=True):
            whole.append(part)
    return tokens, margins, logits


def store(family: str) -> None:
    """Compute and store the results of a family."""
    config, shapes = described(family)
    tokens, margins, logits = [], [], []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), config, shapes, seed)
            if family.endswith("_mxfp4"):
                widened(Path(folder))
            results = answers(Path(folder), seed)
        for whole, part in zip((tokens, margins, logits), results, strict=True):
            whole.append(part)
    EXPECTED.mkdir(exist_ok=True)
    np.savez_compressed(
        EXPECTED / f"{family}.npz",
        config=np.array(json.dumps(config)),
        shapes=np.array(json.dumps(shapes)),
        tokens=np.array(tokens, np.int32),
        margins=np.array(margins, np.float32),
        logits=np.array(logits, np.float32),
    )
    distinct = len(np.unique(np.array(tokens)))
    print(f"{family}: {distinct} distinct tokens, least margin {np.min(margins):.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for chosen in sys.argv[1:] or MODELS:
        store(chosen)
