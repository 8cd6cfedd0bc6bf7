"""Memory of keys and values: sizes of blocks, and how many of them a model is given."""

from __future__ import annotations

import os
import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ostinato.dtypes import DType
from ostinato.errors import InputError
from ostinato.llm.engine.blocks import blocks_for, most_blocks
from ostinato.llm.families.builder import BLOCK_TOKENS
from ostinato.llm.step_graph import step_graph
from ostinato.llm.step_sizes import StepLimits
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["Limits", "Pools", "block_bytes", "byte_count", "free_memory", "size_pools"]

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
        window_blocks: blocks of layers with a window, where these have some apart: beside layers
            without one, if whole contexts take more of them.
    """

    context: int
    sequences: int
    kv_blocks: int
    kv_bytes: int
    weight_bytes: int
    window_blocks: int = 0


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


@dataclass(frozen=True)
class Pools:
    """Sizes of the pools of keys and values.

    Attributes:
        blocks: in pools of all layers, or of those without a window.
        window_blocks: in pools of layers with a window; 0: they have none apart.
        nbytes: of all.
    """

    blocks: int
    window_blocks: int
    nbytes: int


def block_bytes(checkpoint: Checkpoint, kv_dtype: str) -> tuple[int, int]:
    """Bytes of the keys and values of 64 tokens in layers without a window, and in those with one.

    The second number is 0 unless a model has layers of both kinds: then the first one is of all.
    """
    config = checkpoint.config
    if kv_dtype != "int8" and all(layer.mixer == "attention" for layer in config.layers):
        numbers = BLOCK_TOKENS * config.kv_heads * (config.head_dim + config.value_dim)
        size = numbers * DType.parse(kv_dtype).itemsize
        windows = sum(layer.window is not None for layer in config.layers)
        near = windows if config.mixes_windows else 0
        return (len(config.layers) - near) * size, near * size
    one = StepLimits(
        rows=1,
        sequences=1,
        picks=1,
        blocks=1,
        context=BLOCK_TOKENS,
        adjustments=1,
        window_blocks=int(config.mixes_windows),
    )
    _, states = step_graph(checkpoint, one, kv_dtype)
    sizes = {"block": 0, "window": 0, "slot": 0}
    for state in states.values():
        shape: Any = state.shape  # numbers, of limits that are not shared
        sizes[state.kind] += prod(shape) * state.dtype.itemsize
    return sizes["block"], sizes["window"]


def size_pools(
    checkpoint: Checkpoint,
    kv_dtype: str,
    *,
    sequences: int,
    context: int,
    rows: int,
    kv_memory: int | str | None,
    free: int | None = None,
) -> Pools:
    """Sizes of pools for the keys and values of a model.

    Args:
        checkpoint: the model.
        kv_dtype: of keys and values.
        sequences: at a time.
        context: tokens of each.
        rows: of a step.
        kv_memory: bytes to use; ``None``: for whole contexts of all sequences, but a quarter of
            the free memory at most.
        free: bytes that are free where the pools will be; ``None``: on the host.

    Raises:
        InputError: ``kv_memory`` is no number of bytes, or too little for a block.
    """
    whole, near = block_bytes(checkpoint, kv_dtype)
    each = blocks_for(context)
    each_near = most_blocks(context, checkpoint.config.longest_window, rows)
    if not near or each_near == each:  # nothing ever leaves a window
        whole, near, each_near = max(whole + near, 1), 0, 0
    wanted = sequences * (each * whole + each_near * near)
    given = (free_memory() if free is None else free) // _FREE_SHARE
    if kv_memory is not None:
        given = byte_count("kv_memory", kv_memory)
        if given < whole + near:
            raise InputError(
                f"kv_memory of {given:,} bytes holds no block of 64 tokens: {whole + near:,} bytes"
            )
    share = min(given / wanted, 1)
    window_blocks = max(int(share * sequences * each_near), each_near)
    if near:  # less than the windows of one sequence serve no long one
        window_blocks = min(window_blocks, given // (whole + near))
        # Beyond what sequences need, as many again keep the ends of cached prefixes.
        spare = max(given - wanted, 0) // near
        window_blocks += min(spare, sequences * min(each_near, each - each_near))
    blocks = min((given - window_blocks * near) // whole, sequences * each)
    return Pools(max(blocks, 1), window_blocks, max(blocks, 1) * whole + window_blocks * near)
