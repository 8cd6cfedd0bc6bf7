"""Files of prefixes: tokens with their keys and values, checked when they are read.

A file is a magic number, the length of a JSON header, the header, the tokens as little-endian
int32, the blocks, and the SHA-256 of all that.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.llm.engine.interfaces import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["model_identity", "read_prefix", "write_prefix"]

_MAGIC: Final = b"OSTPFX01"
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
    blocks: Sequence[Any],
) -> int:
    """Write whole blocks of a prefix; the file is there entirely or not at all.

    Args:
        path: of the file.
        identity: of the model and its options.
        tokens: of the prefix; those beyond the blocks are not written.
        blocks: the data of each block.

    Returns:
        The number of tokens in the file.
    """
    count = len(blocks) * BLOCK_TOKENS
    header = {"identity": identity, "tokens": count, "block_bytes": len(blocks[0])}
    text = json.dumps(header, sort_keys=True).encode()
    parts = [
        _MAGIC,
        len(text).to_bytes(_LENGTH_BYTES, "little"),
        text,
        tokens[:count].astype("<i4").tobytes(),
        *blocks,
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
    return count


def read_prefix(
    path: str | os.PathLike[str], identity: str, block_bytes: int
) -> tuple[NDArray[np.int32], list[memoryview]]:
    """The tokens and blocks of a file.

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
        found, count, size = header["identity"], header["tokens"], header["block_bytes"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refuse("has a damaged header") from None
    if found != identity or size != block_bytes:
        raise refuse("was saved with another model, other weights or another kv_dtype")
    body = start + length
    if not isinstance(count, int) or count < BLOCK_TOKENS or count % BLOCK_TOKENS:
        raise refuse(f"has {count!r:.40} tokens, which are no whole blocks")
    blocks = count // BLOCK_TOKENS
    if end - body != count * 4 + blocks * size:
        raise refuse(f"has {end - body:,} bytes for {count} tokens, which is another number")
    tokens = np.frombuffer(data[body : body + count * 4], "<i4").astype(np.int32)
    body += count * 4
    return tokens, [data[body + n * size : body + (n + 1) * size] for n in range(blocks)]
