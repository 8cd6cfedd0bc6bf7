"""Write the results that transformers gives for tiny random models, for tests without it.

Run in the environment of the peers: ``python -m tests.peers.llm.make_expected [FAMILY ...]``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tests.llm.tiny_models import EXPECTED, SEEDS, Expected, write_folder
from tests.peers.llm.tiny_configs import DECODERS, ENCODERS

torch.set_num_threads(1)  # tiny matrices; others may need the processor

TOKENS = 64
LENGTHS = (1, 17, 300)

#: Experts of a gpt-oss as blocks: of each matrix, the blocks of 32 elements and their scales.
_MXFP4 = ("gate_up_proj", "down_proj")


def described(name: str) -> Expected:
    """The config and the shapes of the tensors of a family, as transformers saves them."""
    kind, sizes = (DECODERS | ENCODERS)[name]
    config = AutoConfig.for_model(kind, **sizes)
    loader = AutoModelForCausalLM if name in DECODERS else AutoModel
    torch.manual_seed(0)
    model = loader.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    saved.pop("transformers_version", None)
    dtypes = {}
    if name.endswith("_mxfp4"):
        saved["quantization_config"] = {"quant_method": "mxfp4"}
        shapes, dtypes = _in_blocks(shapes)
    return Expected(name, saved, shapes, dtypes, [])


def _in_blocks(shapes: dict[str, list[int]]) -> tuple[dict[str, list[int]], dict[str, str]]:
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        if name.endswith(_MXFP4):
            experts, inputs, outputs = shape
            found[f"{name}_blocks"] = [experts, outputs, inputs // 32, 16]
            found[f"{name}_scales"] = [experts, outputs, inputs // 32]
        else:
            found[name] = shape
    return found, {name: "uint8" for name in found if name.endswith(("_blocks", "_scales"))}


def prompt_of(model: Expected, seed: int, length: int) -> list[int]:
    """Random tokens, above the special ones."""
    rng = np.random.default_rng([seed, length])
    return [int(token) for token in rng.integers(3, model.config["vocab_size"], length)]


@torch.no_grad()
def continued(model: Any, prompt: list[int]) -> tuple[list[int], list[float], Any]:
    """The greedy continuation, margins, and the first and the last logits."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(out.logits).float().numpy()
    tokens = out.sequences[0, len(prompt) :].tolist()
    best = np.sort(logits, axis=1)
    margins = [round(float(margin), 6) for margin in best[:, -1] - best[:, -2]]
    return tokens, margins, logits[[0, -1]]


@torch.no_grad()
def encoded(model: Any, prompt: list[int]) -> Any:
    """Of the rows after the last layer the first one, the last one, and their mean."""
    rows = model(torch.tensor([prompt])).last_hidden_state[0].double().numpy()
    return np.stack([rows[0], rows[-1], rows.mean(axis=0)])


def make(name: str) -> None:
    """Write the files of a family."""
    model = described(name)
    cases: list[dict[str, Any]] = []
    results: list[Any] = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(model, seed, Path(folder))
            loader = AutoModelForCausalLM if name in DECODERS else AutoModel
            options = {"dtype": torch.float32, "attn_implementation": "eager"}
            loaded = loader.from_pretrained(folder, **options).float().eval()
        for length in LENGTHS:
            prompt = prompt_of(model, seed, length)
            tokens: list[int] = []
            margins: list[float] = []
            if name in DECODERS:
                tokens, margins, found = continued(loaded, prompt)
            else:
                found = encoded(loaded, prompt)
            cases.append({"seed": seed, "prompt": prompt, "tokens": tokens, "margins": margins})
            results.append(found.astype(np.float32))
    stored = {
        "config": model.config,
        "shapes": model.shapes,
        "dtypes": model.dtypes,
        "cases": cases,
    }
    text = json.dumps(stored, separators=(",", ":"))
    (EXPECTED / f"{name}.json").write_text(text.replace('{"seed"', '\n{"seed"') + "\n", "utf-8")
    np.savez_compressed(EXPECTED / f"{name}.npz", **{str(i): r for i, r in enumerate(results)})
    least = min((m for case in cases for m in case["margins"]), default=0.0)
    distinct = len({token for case in cases for token in case["tokens"]})
    print(f"{name}: {len(cases)} cases, least margin {least:.2g}, {distinct} tokens", flush=True)


def main() -> None:
    """Write the files of the families that are named, by default all."""
    every = [*DECODERS, *ENCODERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", choices=[*every, []], default=every)
    for name in parser.parse_args().family:
        make(name)


if __name__ == "__main__":
    main()
