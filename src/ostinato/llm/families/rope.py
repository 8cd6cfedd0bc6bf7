"""The frequencies of rotary position embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError

if TYPE_CHECKING:
    from ostinato.llm.config import Rope, RopeScaling

__all__ = ["frequencies", "magnitude", "yarn_magnitude"]

Array = np.ndarray[Any, Any]


def frequencies(rope: Rope, context: int) -> Array:
    """The angle by which each pair of features turns per position: float32 ``[features / 2]``.

    Args:
        rope: the embedding.
        context: the most tokens of a sequence. ``dynamic`` and ``longrope`` scalings depend on it,
            not on the length of each sequence: so a token's rows never change.

    Raises:
        InputError: the context is beyond what the embedding was extended to.
    """
    scaling, base = rope.scaling, rope.base
    if scaling is not None and scaling.kind == "dynamic" and context > scaling.original_context:
        longer = scaling.factor * context / scaling.original_context - (scaling.factor - 1)
        base *= longer ** (rope.features / (rope.features - 2))
    exponents = np.arange(0, rope.features, 2, dtype=np.float32) / np.float32(rope.features)
    wavelengths = np.float32(base) ** exponents
    if scaling is None:
        return np.float32(1) / wavelengths
    match scaling.kind:
        case "linear":
            return np.float32(1) / wavelengths / np.float32(scaling.factor)
        case "llama3":
            return _llama3(np.float32(1) / wavelengths, scaling)
        case "yarn":
            return _yarn(wavelengths, base, rope.features, scaling)
        case "longrope":
            beyond = context > scaling.original_context
            divisors = np.array(scaling.long if beyond else scaling.short, np.float32)
            return np.float32(1) / (divisors * wavelengths)
        case "factors":
            return np.float32(1) / wavelengths / np.array(scaling.short, np.float32)
        case "dynamic":
            return np.float32(1) / wavelengths
    raise InputError(f"no scaling of rotary embeddings is named {scaling.kind!r:.80}")


def magnitude(rope: Rope) -> float:
    """The factor of cosines and sines."""
    return 1.0 if rope.scaling is None else rope.scaling.magnitude


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """The factor of cosines and sines that YaRN proposes for an extension of contexts."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(plain: Array, scaling: RopeScaling) -> Array:
    """Low frequencies divided, high ones as they are, those between blended."""
    lengths = np.float32(2 * math.pi) / plain
    longest = scaling.original_context / scaling.low
    shortest = scaling.original_context / scaling.high
    divided = plain / np.float32(scaling.factor)
    share = np.float32(scaling.original_context) / lengths - np.float32(scaling.low)
    share /= np.float32(scaling.high - scaling.low)
    blended = (1 - share) * divided + share * plain
    found = np.where(lengths > longest, divided, plain)
    return np.where((lengths <= longest) & (lengths >= shortest), blended, found).astype(np.float32)


def _yarn(wavelengths: Array, base: float, features: int, scaling: RopeScaling) -> Array:
    """Frequencies divided along a ramp between two numbers of rotations (arXiv 2309.00071)."""

    def pair(rotations: float) -> float:
        turned = scaling.original_context / (rotations * 2 * math.pi)
        return features * math.log(turned) / (2 * math.log(base))

    first, last = pair(scaling.high), pair(scaling.low)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, features - 1)
    if first == last:
        last += 0.001
    ramp = (np.arange(features // 2, dtype=np.float32) - np.float32(first)) / np.float32(
        last - first
    )
    kept = 1 - np.clip(ramp, 0, 1)
    divided = np.float32(1) / (np.float32(scaling.factor) * wavelengths)
    plain = np.float32(1) / wavelengths
    found: Array = divided * (1 - kept) + plain * kept
    return found.astype(np.float32)
