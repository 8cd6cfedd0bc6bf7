"""Memory of keys and values: sizes of blocks, and how many of them a model is given."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import DType
from ostinato.errors import InputError
from ostinato.llm.step import BLOCK_TOKENS, StepLimits, step_graph
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["Limits", "block_bytes", "byte_count", "count_blocks", "free_memory"]

#: Context of a model that allows more, unless it is asked for.
DEFAULT_CONTEXT: Final = 8192

#: The part of the free memory that keys and values take at most, unless it is asked for.
_FREE_SHARE: Final = 4

_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)

_KV_DTYPES = ("bfloat16", "float16", "float32", "int8")


@dataclass(frozen=True)
class Limits:
    """Limits of a loaded model.

    Attributes:
        context: most tokens of a prompt and its answer.
        sequences: most answers that are generated at a time.
        kv_blocks: blocks of 64 tokens for keys and values.
        kv_bytes: memory of keys and values; it is taken as it is used.
        weight_bytes: bytes of the weights in their files' formats.
    """

    context: int
    sequences: int
    kv_blocks: int
    kv_bytes: int
    weight_bytes: int


def byte_count(name: str, value: int | str) -> int:
    """A number of bytes, given as such or as a text such as ``"2GiB"`` or ``"500MB"``.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise InputError(
            f"{name} is a number of bytes, or a text such as '2GiB', got {value!r:.80}"
        )
    power = _UNITS[match[2].upper()]
    unit = 1 << power if match[3] else 1000 ** (power // 10)
    return int(float(match[1]) * unit)


def free_memory() -> int:
    """Bytes of memory that are free, or can be freed without swapping."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def checked_kv_dtype(kv_dtype: str) -> str:
    """``kv_dtype``, if pools can have it.

    Raises:
        InputError: it is no dtype of keys and values.
    """
    if kv_dtype not in _KV_DTYPES:
        raise InputError(f"kv_dtype is one of {', '.join(_KV_DTYPES)}, got {kv_dtype!r:.80}")
    return kv_dtype


def block_bytes(checkpoint: Checkpoint, kv_dtype: str) -> int:
    """Bytes of the keys and values of 64 tokens, in all layers."""
    config = checkpoint.config
    if kv_dtype != "int8" and all(layer.mixer == "attention" for layer in config.layers):
        numbers = len(config.layers) * config.kv_heads * (config.head_dim + config.value_dim)
        return BLOCK_TOKENS * numbers * DType.parse(kv_dtype).itemsize
    one = StepLimits(rows=1, sequences=1, picks=1, blocks=1, context=BLOCK_TOKENS, adjustments=1)
    _, states = step_graph(checkpoint, one, kv_dtype)
    pools = (state for state in states.values() if state.kind == "block")
    return sum(_size(pool.shape) * pool.dtype.itemsize for pool in pools)


def count_blocks(size: int, sequences: int, context: int, kv_memory: int | str | None) -> int:
    """Number of blocks for the keys and values of a model.

    Args:
        size: bytes of a block.
        sequences: at a time.
        context: tokens of each.
        kv_memory: bytes to use; ``None``: for whole contexts of all sequences, but a quarter of
            the free memory at most.

    Raises:
        InputError: ``kv_memory`` is no number of bytes, or too little for a block.
    """
    wanted = sequences * -(-context // BLOCK_TOKENS)
    if kv_memory is None:
        return max(min(wanted, free_memory() // _FREE_SHARE // size), 1)
    given = byte_count("kv_memory", kv_memory)
    if given < size:
        raise InputError(
            f"kv_memory of {given:,} bytes holds no block of 64 tokens: {size:,} bytes"
        )
    return min(given // size, wanted)


def _size(shape: tuple[Any, ...]) -> int:
    count = 1
    for extent in shape:
        count *= int(extent)
    return count
