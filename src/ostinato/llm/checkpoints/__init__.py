"""Checkpoints: the files of a language model, opened and checked.

- ``checkpoint``: the record of an opened model.
- ``huggingface``: folders with ``config.json`` and safetensors.
- ``gguf``: GGUF files.
- ``opening``: either of them, by its path.
"""

from __future__ import annotations

from ostinato.llm.checkpoints.checkpoint import Checkpoint
from ostinato.llm.checkpoints.opening import open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
