"""Modules of PyTorch through ``ost.torch.compile``, next to Inductor: first result, steady state.

    python -m bench.torch_models [--only NAME …] [--threads 1 2] [--rounds N] [--json FILE]

Needs PyTorch and transformers (``make test-peers`` makes such an environment). First results are
those of Ostinato and of Inductor in processes of their own, with empty caches. In another process,
Ostinato, Inductor, Inductor with frozen weights, and eager take turns. Ratios are ours over the
better of Inductor's modes.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORDS = {
    "vocab_size": 1000,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
_GPT2 = {"vocab_size": 1000, "n_embd": 384, "n_layer": 6, "n_head": 6}
_T5 = {
    "vocab_size": 1000,
    "d_model": 384,
    "d_kv": 64,
    "d_ff": 1536,
    "num_layers": 6,
    "num_heads": 6,
}
_VIT = {**_WORDS, "image_size": 224, "patch_size": 16}
_WAVES = {
    **_WORDS,
    "conv_dim": (64, 64, 64, 64),
    "conv_stride": (5, 4, 4, 2),
    "conv_kernel": (10, 8, 4, 4),
    "num_feat_extract_layers": 4,
}
_RESNET_18 = {
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
}

#: By name: the library's model type, its configuration, and the shape of its input.
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "bert_8": ("bert", _WORDS, (1, 8)),
    "bert_128": ("bert", _WORDS, (1, 128)),
    "llama_1": ("llama", {**_WORDS, "num_key_value_heads": 2, "use_cache": False}, (1, 1)),
    "llama_64": ("llama", {**_WORDS, "num_key_value_heads": 2, "use_cache": False}, (1, 64)),
    "gpt2_32": ("gpt2", {**_GPT2, "use_cache": False}, (1, 32)),
    "modernbert_64": ("modernbert", {**_WORDS, "pad_token_id": 0}, (1, 64)),
    "t5_encoder_64": ("t5", _T5, (1, 64)),
    "vit_224": ("vit", _VIT, (1, 3, 224, 224)),
    "wav2vec2": ("wav2vec2", _WAVES, (1, 16000)),
    "convnext": ("convnext", {"hidden_sizes": [48, 96, 192, 384]}, (1, 3, 224, 224)),
    "resnet18": ("resnet", _RESNET_18, (1, 3, 224, 224)),
}
MODELS = ("mlp", *_TRANSFORMERS)

_SIDES = ("ostinato", "inductor", "inductor, frozen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--first", choices=_SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, threads = given.one[0], int(given.one[1])
        print(
            json.dumps(
                _first_result(name, threads, given.first)
                if given.first
                else _steady(name, threads, given.rounds)
            )
        )
        return
    rows = []
    for name in given.only:
        for threads in given.threads:
            rows.append(_row(name, threads, given.rounds))
            _show(rows[-1])
    ratios = [row["steady_ratio"] for row in rows]
    geomean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(
        f"steady state over Inductor's better mode: geomean {geomean:.2f}, most {max(ratios):.2f}"
    )
    print(f"first result over Inductor's: most {max(row['cold_ratio'] for row in rows):.2f}")
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


def _row(name: str, threads: int, rounds: int) -> dict[str, Any]:
    cold = {side: _in_process(name, threads, "--first", side) for side in _SIDES[:2]}
    steady = _in_process(name, threads, "--rounds", str(rounds))
    return {**steady, "first_result_s": cold, "cold_ratio": cold["ostinato"] / cold["inductor"]}


def _in_process(name: str, threads: int, *what: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OSTINATO_CACHE_DIR": f"{folder}/ours",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
        }
        done = subprocess.run(
            [sys.executable, "-m", "bench.torch_models", "--one", name, str(threads), *what],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _show(row: dict[str, Any]) -> None:
    cold, steady = row["first_result_s"], row["steady_ms"]
    print(
        f"{row['model']:>14} {row['threads']} threads: first result "
        + ", ".join(f"{side} {taken:.1f} s" for side, taken in cold.items())
        + "; steady "
        + ", ".join(f"{side} {steady[side]:.3f}" for side in (*_SIDES, "eager"))
        + f" ms; {row['steady_ratio']:.2f} of the better, error {row['error']:.1e}",
        flush=True,
    )


def _model(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    torch.manual_seed(0)
    if name == "mlp":
        sizes = [256, 512, 512, 512, 10]
        layers: list[Any] = []
        for before, after in itertools.pairwise(sizes):
            layers += [torch.nn.Linear(before, after), torch.nn.GELU()]
        return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 256),)
    import transformers

    transformers.logging.set_verbosity_error()
    kind, config, shape = _TRANSFORMERS[name]
    made = transformers.AutoConfig.for_model(kind, **config)
    head = transformers.T5EncoderModel._from_config if kind == "t5" else None
    model = (head or transformers.AutoModel.from_config)(made).eval()
    tokens = len(shape) == 2 and kind != "wav2vec2"
    return model, (torch.randint(5, 900, shape) if tokens else torch.randn(*shape),)


def _first(tree: Any) -> Any:
    """The first tensor of a model's outputs."""
    import torch
    from torch.utils import _pytree

    return next(leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _compiled(side: str, model: Any, args: tuple[Any, ...], threads: int) -> Callable[..., Any]:
    import torch

    import ostinato as ost

    if side == "ostinato":
        compiled: Callable[..., Any] = ost.torch.compile(model, args, threads=threads)
        return compiled
    options = {"freezing": True} if side != "inductor" else {}
    return torch.compile(copy.deepcopy(model), options=options)


def _first_result(name: str, threads: int, side: str) -> float:
    """Seconds from a module to the first result of its compiled form."""
    import torch

    torch.set_num_threads(threads)
    model, args = _model(name)
    with torch.no_grad():
        model(*args)
        start = time.perf_counter()
        _compiled(side, model, args, threads)(*args)
        return time.perf_counter() - start


def _steady(name: str, threads: int, rounds: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    model, args = _model(name)
    with torch.no_grad():
        expected = _first(model(*args))
        run = {side: _compiled(side, model, args, threads) for side in _SIDES}
        run["eager"] = model
        error = float((_first(run["ostinato"](*args)) - expected).abs().max())
        times: dict[str, list[float]] = {side: [] for side in run}
        for turn in range(rounds + 5):
            for side, call in run.items():
                start = time.perf_counter()
                call(*args)
                if turn >= 5:
                    times[side].append(time.perf_counter() - start)
    steady = {side: 1e3 * statistics.median(taken) for side, taken in times.items()}
    return {
        "model": name,
        "threads": threads,
        "processor": _processor(),
        "torch": torch.__version__,
        "steady_ms": steady,
        "steady_ratio": steady["ostinato"] / min(steady[side] for side in _SIDES[1:]),
        "error": error / float(expected.abs().max()),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
