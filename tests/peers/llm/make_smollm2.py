"""Store the tokens that transformers computes with the weights of SmolLM2, widened to float32.

    .venv-peers/bin/python -m tests.peers.llm.make_smollm2

It writes ``tests/llm/smollm2.npz``; :mod:`tests.llm.model_files` says where the model comes from.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

import ostinato as ost
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.tokenizers.gguf import tokenizer_from_gguf
from tests.llm.model_files import FOLDER, SMOLLM2
from tests.llm.test_smollm2 import ANSWER, STORED
from tests.llm.widened import elements_of

#: Beginnings of texts; each is cut to :data:`LENGTH` tokens.
BEGINNINGS = (
    "The capital of France is a city that has been known for its museums and for its",
    "Once upon a time there was a small village at the foot of a mountain, and in it",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "Water boils at a temperature of one hundred degrees, but on top of a mountain it",
    "To make a good bread you need flour, water, salt and yeast. First, you have to",
    "The quick brown fox jumps over the lazy dog, which is a sentence that has all the",
    "In the year 1969, two men walked on the moon for the first time. The third one",
    "Photosynthesis is the process by which plants turn the light of the sun into",
    "Dear Sir or Madam, I am writing to you because of the letter that I received on",
    "The most important thing that a student of mathematics has to learn is that every",
    "import numpy as np\n\nx = np.linspace(0, 1, 100)\ny = np.sin(2 * np.pi * x)\n",
    "My grandmother always told us the same story when it rained, about a cat that had",
    "The human heart beats about a hundred thousand times each day, and it moves more",
    "When the train arrived at the station, no one was there but an old man with a dog",
    "A prime number is a number greater than one that has no divisors other than one",
    "She opened the door and saw that all of the furniture had been moved to the other",
    "There are three kinds of rocks: igneous, sedimentary and metamorphic. The first",
    "The economy of the island depends on fishing and on the visitors that come in the",
    "Question: What is the difference between a virus and a bacterium? Answer: A virus",
    "List of ten useful things to take with you on a long walk: 1. Water 2. A map 3. A",
)

LENGTH = 14

#: Tensors of a llama in a Hugging Face folder, by the ends of logical names.
_NAMES = {
    "mixer_norm": "input_layernorm",
    "hidden_norm": "post_attention_layernorm",
    **{part: f"self_attn.{part}_proj" for part in "qkvo"},
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def tensor_name(logical: str) -> str:
    """The name of a tensor in a Hugging Face folder."""
    outer = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if logical in outer:
        return outer[logical]
    layer, part, kind = logical.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.{kind}"


def write_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the folder of a model with its weights in float32."""
    config = checkpoint.config
    rope = config.layers[0].rope
    assert rope is not None
    settings = transformers.LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.width,
        intermediate_size=config.hidden,
        num_hidden_layers=len(config.layers),
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm.eps,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": rope.base},
        architectures=["LlamaForCausalLM"],
    )
    weights = {tensor_name(n): elements_of(w) for n, w in checkpoint.weights.items()}
    ost.moe.write_safetensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(settings.to_dict()))


def main() -> None:
    """Compute and store the tokens."""
    path = FOLDER / SMOLLM2
    with tempfile.TemporaryDirectory() as folder:
        write_model(open_checkpoint(path), Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = tokenizer_from_gguf(GGUFFile(path).metadata)
    prompts = [tokenizer.encode(text)[:LENGTH] for text in BEGINNINGS]
    assert all(len(prompt) == LENGTH for prompt in prompts)
    fed, past = torch.tensor(prompts), None
    tokens, margins, logits = [], [], []
    for number in range(ANSWER):
        with torch.no_grad():
            result = model.eval()(fed, past_key_values=past, use_cache=True)
        last = result.logits[:, -1]
        best = torch.topk(last, 2).values.numpy()
        tokens.append(last.argmax(1).numpy())
        margins.append(best[:, 0] - best[:, 1])
        if number in STORED:
            logits.append(last[:, :: STORED[number]].numpy())
        fed, past = last.argmax(1)[:, None], result.past_key_values
        print(number, end=" ", flush=True)
    np.savez_compressed(
        Path(__file__).parents[2] / "llm" / "smollm2.npz",
        prompts=np.array(prompts, np.int32),
        tokens=np.array(tokens, np.int32).T,
        margins=np.array(margins, np.float32).T,
        logits=np.array(logits, np.float32),
    )
    print(f"least margin {np.min(margins):.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
