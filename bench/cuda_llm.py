"""Language models from a folder or a GGUF file on a GPU: steps, prompts and answers.

    python -m bench.cuda_llm [--model PATH] [--packed q4_k] [--layers 16] [--position 512]
        [--runs 100] [--transformers] [--profile] [--device cuda] [--json FILE]

Without ``--model`` it is a folder of random weights in bfloat16 in the shape of Llama 3.2 1B, which
stays in ``build/llm``; ``--packed`` takes a GGUF file of a llama of 1.1 billion weights in blocks
of that format instead. Steps are those of the engine, of 1 and of 8 sequences at a position, and of
prompts of 512 and 2,048 tokens, and of 505 tokens of a prompt behind 7 sequences: least and median
of single runs by the host's clock. Answers are
those of ``ost.llm.load(...).generate``: 128 tokens after a prompt of 500, greedy, sampled, and 8
at a time; the time of a step is that of an answer less that of one token. ``--transformers`` adds
``generate`` of transformers, eagerly. ``--profile`` prints the kernels of each step, and the parts
of segments as :mod:`bench.cuda_profile` does. Prints a JSON line, or writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench.cuda_profile import merged
from bench.synthetic_llama import write_llama

import ostinato as ost
from ostinato.llm.checkpoints import Checkpoint, open_checkpoint
from ostinato.llm.step import StepGraph
from ostinato.llm.step_sizes import StepLimits
from ostinato.moe.safetensors import write_safetensors
from ostinato.records import field_names

_FOLDER = Path("build/llm")

_WIDTH, _HIDDEN, _HEADS, _KEY_HEADS, _FEATURES, _VOCABULARY = 2048, 8192, 32, 8, 64, 128256

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": _VOCABULARY,
    "hidden_size": _WIDTH,
    "intermediate_size": _HIDDEN,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KEY_HEADS,
    "head_dim": _FEATURES,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: By the part of a layer: rows and columns.
_MATRICES = {
    "self_attn.q_proj": (_HEADS * _FEATURES, _WIDTH),
    "self_attn.k_proj": (_KEY_HEADS * _FEATURES, _WIDTH),
    "self_attn.v_proj": (_KEY_HEADS * _FEATURES, _WIDTH),
    "self_attn.o_proj": (_WIDTH, _HEADS * _FEATURES),
    "mlp.gate_proj": (_HIDDEN, _WIDTH),
    "mlp.up_proj": (_HIDDEN, _WIDTH),
    "mlp.down_proj": (_WIDTH, _HIDDEN),
}
_NORMS = ("input_layernorm", "post_attention_layernorm")

_SEQUENCES, _PROMPT, _ANSWER = 8, 500, 128


def write_folder(path: Path, layers: int) -> None:
    """Write a model with random weights, and a tokenizer whose tokens are words."""
    path.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).standard_normal(1 << 24, np.float32)

    def matrix(rows: int, columns: int) -> Any:
        return np.resize((noise / columns**0.5).astype(ml_dtypes.bfloat16), (rows, columns))

    ones = np.ones(_WIDTH, ml_dtypes.bfloat16)
    tensors = {"model.embed_tokens.weight": matrix(_VOCABULARY, _WIDTH), "model.norm.weight": ones}
    for layer in range(layers):
        for part, size in _MATRICES.items():
            tensors[f"model.layers.{layer}.{part}.weight"] = matrix(*size)
        for part in _NORMS:
            tensors[f"model.layers.{layer}.{part}.weight"] = ones
    write_safetensors(path / "model.safetensors", tensors)
    words = ["<unk>", "<s>", "</s>", *(f"t{number}" for number in range(_VOCABULARY - 3))]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(special))
    (path / "config.json").write_text(json.dumps({**_CONFIG, "num_hidden_layers": layers}))


def feed(step: StepGraph, count: int, start: int, sequence: int = 0, at: int = 0) -> None:
    """Write rows of a sequence into the inputs of a step."""
    inputs, rows = step.inputs, slice(at, at + count)
    inputs.tokens[rows] = (np.arange(count) * 7919 + sequence) % step.config.vocabulary
    inputs.position[rows] = np.arange(start, start + count)
    inputs.sequence[rows] = sequence


def times(call: Callable[[], object], runs: int) -> list[float]:
    """Least and median milliseconds of a call."""
    call()
    call()
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return [round(min(found), 4), round(statistics.median(found), 4)]


def profile(step: StepGraph, what: str) -> None:
    """Print the fastest profile of the last step: kernels by their time, and parts of segments."""
    plan = step.plan
    for name in plan.inputs.keys() & set(field_names(step.inputs)):
        given, shape = getattr(step.inputs, name), plan.inputs[name].shape
        values = np.zeros(shape, given.dtype)
        there = tuple(slice(min(size)) for size in zip(shape, given.shape, strict=True))
        values[there] = given[there]
        plan.inputs[name].copyin(values)
    best = min((plan.execute_profiled() for _ in range(5)), key=lambda found: found.elapsed)
    print(f"{what}: {1e3 * best.elapsed:.4f} ms")
    kernels: dict[str, list[float]] = {}
    for record in best:
        kernels.setdefault(record.name, []).append(1e6 * record.elapsed)
    for name, spent in sorted(kernels.items(), key=lambda row: -sum(row[1])):
        print(f"    {name:50.50} {len(spent):4} {sum(spent):9.1f} µs")
    for record in best:
        if record.parts and len(record.parts) > 20:
            print("\n".join(merged(record.parts)))


def steps(
    checkpoint: Checkpoint, session: ost.Session, options: argparse.Namespace
) -> dict[str, list[float]]:
    """The times of steps of known sizes."""
    position, runs = options.position, options.runs
    rows, context = 2048, max(2048, position + 64)
    pages = -(-context // 64)
    limits = StepLimits(
        rows=rows,
        sequences=_SEQUENCES,
        picks=_SEQUENCES,
        blocks=_SEQUENCES * pages,
        context=context,
        adjustments=2,
    )
    step = StepGraph(checkpoint, limits, session=session)
    step.inputs.table[:] = np.arange(_SEQUENCES * pages).reshape(_SEQUENCES, pages)
    found = {}
    for count in (2048, 512):
        feed(step, count, 0)
        step.inputs.pick[0] = count - 1
        name = f"prompt of {count}"
        found[name] = times(lambda n=count: step.run(n, 1, 1), max(5, runs // 10))
        if options.profile:
            profile(step, name)
    for count in (1, _SEQUENCES):
        for row in range(count):
            feed(step, 1, position, row, row)
            step.inputs.pick[row] = row
        name = f"{count} at position {position}"
        found[name] = times(lambda n=count: step.run(n, n, 1), runs)
        if options.profile:
            profile(step, name)
    answers, count = _SEQUENCES - 1, 505
    for row in range(answers):
        feed(step, 1, position, row, row)
        step.inputs.pick[row] = row
    feed(step, count, 0, answers, answers)
    step.inputs.pick[answers] = answers + count - 1
    name = f"{answers} at position {position}, {count} of a prompt"
    found[name] = times(lambda: step.run(answers + count, _SEQUENCES, 1), max(5, runs // 10))
    if options.profile:
        profile(step, name)
    step.close()
    return found


def answers(path: Path, device: str) -> dict[str, float]:
    """Milliseconds of a step, and tokens in a second, of whole answers."""
    prompt = " ".join(f"t{number * 7919 % 128000}" for number in range(_PROMPT))
    ways: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1},
        "8 sampled": {"temperature": 0.8, "seed": 1, "n": 8},
    }
    found = {}
    start = time.perf_counter()
    with ost.llm.load(path, device=device, context=1024, sequences=_SEQUENCES) as model:
        found["load, s"] = round(time.perf_counter() - start, 2)
        for name, way in ways.items():

            def seconds(tokens: int, way: dict[str, Any] = way) -> float:
                start = time.perf_counter()
                model.generate(prompt, max_tokens=tokens, **way)
                return time.perf_counter() - start

            seconds(4)
            first, whole = (min(seconds(n) for _ in range(3)) for n in (1, _ANSWER))
            found[f"{name}, ms a step"] = round(1e3 * (whole - first) / (_ANSWER - 1), 3)
            found[f"{name}, tokens/s"] = round(way.get("n", 1) * _ANSWER / whole)
    return found


def transformers_steps(path: Path) -> dict[str, float]:
    """Milliseconds of a step of transformers, eagerly."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.bfloat16).cuda().eval()
    found = {}
    for count in (1, _SEQUENCES):
        ids = torch.randint(0, 128000, (count, _PROMPT), device="cuda")

        def seconds(tokens: int, ids: Any = ids) -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
            model.generate(ids, do_sample=False, pad_token_id=0, **lengths)
            torch.cuda.synchronize()
            return time.perf_counter() - start

        seconds(4)
        first, whole = (min(seconds(n) for _ in range(3)) for n in (1, _ANSWER))
        found[f"{count}, ms a step"] = round(1e3 * (whole - first) / (_ANSWER - 1), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--packed", help="a format of blocks, such as q4_k")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--position", type=int, default=512)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path, words = options.model, True
    if path is None and options.packed:
        path, words = _FOLDER / f"{options.packed}.gguf", False
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_llama(path, options.packed)
    elif path is None:
        path = _FOLDER / f"llama-{options.layers}"
        if not (path / "config.json").exists():
            write_folder(path, options.layers)
    start = time.perf_counter()
    checkpoint, session = open_checkpoint(path), ost.Session(options.device)
    found: dict[str, Any] = {"model": path.name}
    found["steps, ms"] = steps(checkpoint, session, options)
    found["steps, s in all"] = round(time.perf_counter() - start, 1)
    if words:
        found["answers"] = answers(path, options.device)
    if options.transformers:
        found["transformers"] = transformers_steps(path)
    text = json.dumps(found, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
