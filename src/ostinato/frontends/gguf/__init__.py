"""GGUF files: metadata, and tensors that stay in the file until they are packed.

- ``values``: the values of metadata, read with every length checked first.
- ``tensor_types``: the types of tensors, by their numbers in files.
- ``file``: a whole file: header, metadata, tensors.
- ``sources``: tensors of a file as params.
- ``writer``: files that are written tensor by tensor.
"""

from __future__ import annotations

from ostinato.frontends.gguf.file import GGUFFile
from ostinato.frontends.gguf.sources import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor"]
