"""Files of prefixes: tokens with their keys and values, checked when they are read.

A file is a magic number, the length of a JSON header, the header, the tokens as little-endian
int32, the blocks of each kind but those that no later token attends to, and the SHA-256 of all of
that.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.engine.kv_cache import SavedBlocks
from ostinato.llm.families.builder import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.families.builder import BlockName

__all__ = ["model_identity", "read_prefix", "write_prefix"]

_MAGIC: Final = b"OSTPFX02"
_LENGTH_BYTES: Final = 4
_MOST_HEADER: Final = 1 << 16
_DIGEST_BYTES: Final = 32


def model_identity(checkpoint: Checkpoint, kv_dtype: str) -> str:
    """A digest of everything that keys and values depend on: configuration, weights and dtype."""
    digest = hashlib.sha256(f"{checkpoint.config!r} {kv_dtype}".encode())
    for name, weight in sorted(checkpoint.weights.items()):
        digest.update(f"{name} {weight.format} {weight.shape} ".encode())
        key = weight.source.content_key
        if key is None:
            digest.update(np.ascontiguousarray(weight.source.read()).tobytes())
            weight.source.release()
        else:
            digest.update(key.encode())
    return digest.hexdigest()


def write_prefix(
    path: str | os.PathLike[str],
    identity: str,
    tokens: NDArray[np.int32],
    saved: Mapping[BlockName, SavedBlocks],
) -> int:
    """Write whole blocks of a prefix; the file is there entirely or not at all.

    Args:
        path: of the file.
        identity: of the model and its options.
        tokens: of the prefix, as many as the blocks hold.
        saved: the blocks of each kind.

    Returns:
        The number of tokens in the file.
    """
    first = {kind: blocks.first for kind, blocks in saved.items()}
    sizes = {kind: len(blocks.data[0]) for kind, blocks in saved.items()}
    header = {"identity": identity, "tokens": len(tokens), "first": first, "block_bytes": sizes}
    text = json.dumps(header, sort_keys=True).encode()
    parts = [
        _MAGIC,
        len(text).to_bytes(_LENGTH_BYTES, "little"),
        text,
        tokens.astype("<i4").tobytes(),
        *(data for blocks in saved.values() for data in blocks.data),
    ]
    target = Path(path)
    digest = hashlib.sha256()
    try:
        number, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r:.300}: {error.strerror}") from error
    try:
        with os.fdopen(number, "wb") as file:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return len(tokens)


def read_prefix(
    path: str | os.PathLike[str], identity: str, block_bytes: Mapping[BlockName, int]
) -> tuple[NDArray[np.int32], list[SavedBlocks]]:
    """The tokens of a file, and the blocks of each kind.

    Args:
        path: of the file.
        identity: of the model and its options.
        block_bytes: of a block of each kind.

    Raises:
        InputError: there is no such file.
        ModelFormatError: the file is damaged, or of another model or other options.
    """
    name = str(path)
    try:
        data = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {name!r:.300}: {error.strerror}") from error

    def refuse(problem: str) -> ModelFormatError:
        return ModelFormatError(f"{name!r:.300} {problem}")

    start = len(_MAGIC) + _LENGTH_BYTES
    if len(data) < start + _DIGEST_BYTES or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise refuse("is no prefix of save_prefix")
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    if length > min(_MOST_HEADER, len(data) - start - _DIGEST_BYTES):
        raise refuse("has a header that is too long")
    end = len(data) - _DIGEST_BYTES
    if hashlib.sha256(data[:end]).digest() != data[end:]:
        raise refuse("is damaged: its checksum differs")
    try:
        header = json.loads(bytes(data[start : start + length]))
        found, count, sizes = header["identity"], header["tokens"], header["block_bytes"]
        first = [header["first"][kind] for kind in block_bytes]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refuse("has a damaged header") from None
    if found != identity or sizes != block_bytes:
        raise refuse("was saved with another model, other weights or another kv_dtype")
    body = start + length
    if not isinstance(count, int) or count < BLOCK_TOKENS or count % BLOCK_TOKENS:
        raise refuse(f"has {count!r:.40} tokens, which are no whole blocks")
    blocks = count // BLOCK_TOKENS
    if not all(isinstance(n, int) and 0 <= n < blocks for n in first):
        raise refuse("has a damaged header")
    size = sum((blocks - n) * each for n, each in zip(first, block_bytes.values(), strict=True))
    if end - body != count * 4 + size:
        raise refuse(f"has {end - body:,} bytes for {count} tokens, which is another number")
    tokens = np.frombuffer(data[body : body + count * 4], "<i4").astype(np.int32)
    body += count * 4
    saved = []
    for n, each in zip(first, block_bytes.values(), strict=True):
        parts = [data[body + i * each : body + (i + 1) * each] for i in range(blocks - n)]
        saved.append(SavedBlocks(n, parts))
        body += len(parts) * each
    return tokens, saved
