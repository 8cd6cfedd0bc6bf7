"""Hugging Face's ``generate`` with caches of a fixed length, compiled, next to eager."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.generation.configuration_utils import CompileConfig

from ostinato.frontends.torch.dynamo import backend, report

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}

#: By architecture its configuration, and the kinds of caches that its layers have.
DECODERS = {
    "llama": (GROUPED, 1),
    "gemma3_text": (GROUPED, 2),
    "gpt2": ({**SIZES, **GPT2}, 1),
    "qwen3": (GROUPED, 1),
    "mistral": (GROUPED, 1),
    "phi3": (GROUPED, 1),
    "gpt_neox": (SIZES, 1),
    "olmo2": (GROUPED, 1),
}

#: The others take as long each.
QUICK = ("llama", "gemma3_text")


def decoder(name):
    config = AutoConfig.for_model(name, **DECODERS[name][0])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)  # or every token would be as likely as any other
    return model


def tokens(model, ids, count, **settings):
    with torch.no_grad():
        return model.generate(
            ids, max_new_tokens=count, do_sample=False, cache_implementation="static", **settings
        )


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DECODERS]
)
def test_tokens_are_those_of_eager(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = decoder(name)
    ids = torch.randint(2, 120, (1, 5))
    config = CompileConfig(backend=backend, fullgraph=False, dynamic=None)
    config._compile_all_devices = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = tokens(model, ids, 16, compile_config=config)
        again = tokens(model, ids, 16, compile_config=config)
    wanted = tokens(model, ids, 16, disable_compile=True)
    assert len(set(wanted[0].tolist())) > 2
    assert torch.equal(found, wanted) and torch.equal(again, wanted)
    result = report(model._compiled_call)
    assert 1 <= len(result.graphs) <= 2 * DECODERS[name][1]
    assert result.native_nodes and not result.eager_nodes and not result.failures
