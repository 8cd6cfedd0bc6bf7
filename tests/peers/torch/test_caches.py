"""Caches of decoders: static ones are written in place, dynamic ones are arguments and results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import ostinato as ost

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def decoder() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.cache_implementation = "static"
    model.generation_config.use_cache = True
    return model


class Rows(torch.nn.Module):
    """A cache of rows, written at run-time positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, length, 16))

    def forward(self, x: Any, position: Any) -> Any:
        self.keys.index_copy_(2, position, x)
        return self.keys[:, :, :4].sum(-1)


def test_a_step_copies_nothing_of_the_cache():
    """The memory of a run does not grow with the cache, and the buffer's memory is the cache."""
    arenas = []
    for length in (64, 4096):
        module, twin = Rows(length), Rows(length)
        x, position = torch.randn(1, 2, 1, 16), torch.tensor([2])
        compiled = ost.torch.compile(module, (x, position), threads=1)
        address = module.keys.data_ptr()
        for step in (2, 3, 2):
            position.fill_(step)
            torch.testing.assert_close(compiled(x, position), twin(x, position))
        assert torch.equal(module.keys, twin.keys)
        assert module.keys.data_ptr() == address
        (graph,) = compiled.compiled
        arenas.append(graph.plan.memory.arena_bytes)
    assert arenas[0] == arenas[1]


def test_a_static_cache_gives_the_tokens_of_eager(decoder):
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    eager = TorchExportableModuleWithStaticCache(decoder, batch_size=1, max_cache_len=32)
    module = copy.deepcopy(eager)
    token, position = torch.tensor([[5]]), torch.tensor([0])
    example = {"input_ids": token, "cache_position": position}
    compiled = ost.torch.compile(module, (), example, threads=1)
    tokens: list[list[int]] = [[5], [5]]
    for step in range(10):
        for run, found in zip((eager, compiled), tokens, strict=True):
            with torch.no_grad():
                logits = run(
                    input_ids=torch.tensor([found[-1:]]), cache_position=torch.tensor([step])
                )
            found.append(int(logits[0, -1].argmax()))
    assert tokens[0] == tokens[1]
    assert len(compiled.graphs) == 1
    for (name, wanted), buffer in zip(eager.named_buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(buffer, wanted, rtol=1e-4, atol=1e-5, msg=name)


def test_a_static_cache_as_an_argument_is_written_in_place(decoder):
    def filled() -> Any:
        cache = transformers.StaticCache(config=decoder.config, max_cache_len=16)
        prompt = torch.tensor([[1, 2, 3]])
        with torch.no_grad():
            decoder(input_ids=prompt, past_key_values=cache, use_cache=True)
        return cache

    caches = filled(), filled()
    layer, twin = caches[0].layers[1], caches[1].layers[1]
    address = layer.keys.data_ptr()
    example = {"input_ids": torch.tensor([[4]]), "past_key_values": caches[0], "use_cache": True}
    compiled = ost.torch.compile(decoder, (), example, threads=1)
    assert layer.cumulative_length == 3
    tokens: list[list[int]] = [[4], [4]]
    for _ in range(6):
        for run, cache, found in zip((compiled, decoder), caches, tokens, strict=True):
            ids = torch.tensor([found[-1:]])
            with torch.no_grad():
                result = run(input_ids=ids, past_key_values=cache, use_cache=True)
            assert result.past_key_values.layers[0].keys is cache.layers[0].keys
            found.append(int(result.logits[0, -1].argmax()))
        torch.testing.assert_close(layer.keys, twin.keys, rtol=1e-4, atol=1e-5)
        assert layer.cumulative_length == twin.cumulative_length
    assert tokens[0] == tokens[1]
    assert layer.keys.data_ptr() == address
    assert len(compiled.graphs) == 1
    assert "past_key_values.1.key" in compiled.graphs[0].states


def test_a_dynamic_cache_is_an_argument_and_a_result(decoder):
    ids, token = torch.randint(0, 64, (1, 8)), torch.tensor([[7]])
    compiled = ost.torch.compile(decoder, (), {"input_ids": ids, "use_cache": True}, threads=1)
    with torch.no_grad():
        wanted = decoder(input_ids=ids, use_cache=True)
    found = compiled(input_ids=ids, use_cache=True)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-4, atol=1e-5)
    assert isinstance(found.past_key_values, transformers.DynamicCache)
    again = {"input_ids": token, "past_key_values": found.past_key_values, "use_cache": True}
    graph = ost.from_torch(decoder, (), again)
    assert "past_key_values.0.key" in graph.inputs
    # Results have the names of their fields: the cache is "cache" from Transformers 5.24 on.
    (field,) = (
        name for name, value in found.items() if isinstance(value, transformers.DynamicCache)
    )
    assert f"{field}.1.value" in graph.outputs
    step = compiled(**again)
    with torch.no_grad():
        wanted = decoder(input_ids=token, past_key_values=wanted.past_key_values, use_cache=True)
    torch.testing.assert_close(step.logits, wanted.logits, rtol=1e-4, atol=1e-5)
    assert step.past_key_values.get_seq_length() == 9
