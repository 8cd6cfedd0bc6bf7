"""Store what transformers computes with tiny random encoders and rerankers.

    .venv-peers/bin/python -m tests.peers.llm.make_encoders [FAMILY …]

Files in ``tests/llm/expected_encoders`` hold no weights; see :mod:`tests.llm.tiny_models`.
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

from tests.llm.tiny_encoders import EXPECTED_ENCODERS, segments_of
from tests.llm.tiny_models import LENGTHS, SEEDS, prompt, write_folder

_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
_ROBERTA = {**_SIZES, "type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 514}
_MODERN = {
    **_SIZES,
    "num_hidden_layers": 4,
    "local_attention": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

#: The class of the configuration of each model, its arguments, and whether it has a head.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("BertConfig", _SIZES, False),
    "bert_reranker": ("BertConfig", {**_SIZES, "num_labels": 1}, True),
    "xlm_roberta": ("XLMRobertaConfig", _ROBERTA, False),
    "xlm_roberta_reranker": ("XLMRobertaConfig", {**_ROBERTA, "num_labels": 1}, True),
    "nomic_bert": ("NomicBertConfig", _SIZES, False),
    "modernbert": ("ModernBertConfig", _MODERN, False),
    "modernbert_reranker": (
        "ModernBertConfig",
        {**_MODERN, "num_labels": 1, "classifier_pooling": "mean"},
        True,
    ),
}


def store(family: str) -> None:
    """Compute and store the results of a family."""
    kind, arguments, has_head = MODELS[family]
    transformer = transformers.AutoModel
    if has_head:
        transformer = transformers.AutoModelForSequenceClassification
    config = getattr(transformers, kind)(**arguments)
    with tempfile.TemporaryDirectory() as folder:
        transformer.from_config(config).save_pretrained(folder)
        settings = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    results = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), settings, shapes, seed)
            options = {"dtype": torch.float32, "attn_implementation": "eager"}
            model = transformer.from_pretrained(folder, **options).eval()
        results.append([_result(model, settings, length, seed, has_head) for length in LENGTHS])
    EXPECTED_ENCODERS.mkdir(exist_ok=True)
    np.savez_compressed(
        EXPECTED_ENCODERS / f"{family}.npz",
        config=np.array(json.dumps(settings)),
        shapes=np.array(json.dumps(shapes)),
        results=np.array(results, np.float32),
    )
    print(f"{family}: {np.std(results):.3f}", flush=True)


@torch.no_grad()
def _result(model: Any, settings: Any, length: int, seed: int, has_head: bool) -> Any:
    """The score of a text, or of its rows the first, the last, and the mean."""
    ids = prompt(settings["vocab_size"], length, seed)
    given = {"input_ids": torch.tensor([ids])}
    if settings.get("type_vocab_size", 0) > 1:
        given["token_type_ids"] = torch.tensor([segments_of(length)])
    if has_head:
        return model(**given).logits[0].numpy()
    rows = model(**given).last_hidden_state[0].double().numpy()
    return np.stack([rows[0], rows[-1], rows.mean(axis=0)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for chosen in sys.argv[1:] or MODELS:
        store(chosen)
