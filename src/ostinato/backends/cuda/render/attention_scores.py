"""The scores of many queries, as blocks and groups of warps have them in registers.

Without a mask and a cap, scores stay products of queries and keys, and the scale is part of the
exponent. Then only tiles at the ends of the keys that rows attend to need conditions on each key.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel

__all__ = [
    "MINUS_INFINITY",
    "MOST",
    "SLACK",
    "exponent",
    "exponent_of",
    "is_plain",
    "key_limits",
    "sure_keys",
]

MOST = 1 << 30
"""Keys, and rows, from which on their numbers might not be ints."""

MINUS_INFINITY = "ost::number<float>::least()"
"""The score of a key that a row does not attend to."""

_LOG2E = math.log2(math.e)
"""The factor from powers of e to powers of 2."""

SLACK = "8.0f"
"""Powers of 2 by which weights may exceed 1."""


def is_plain(attention: AttentionKernel) -> bool:
    """Whether scores are products of queries and keys, but for a positive factor."""
    spec = attention.spec
    return spec.mask is None and spec.softcap is None and spec.scale > 0


def exponent(attention: AttentionKernel) -> str:
    """The factor from scores to powers of 2."""
    return exponent_of(attention.spec.scale if is_plain(attention) else 1)


def exponent_of(scale: float) -> str:
    """The factor to powers of 2, from scores that are to be multiplied by a scale first."""
    return f"{_LOG2E * scale!r}f"


def sure_keys(attention: AttentionKernel) -> str:
    """Statements that find the keys that every row of a block attends to."""
    lines = []
    if attention.spec.causal:
        lines.append("certain = least + 1;")
    if attention.spec.window is not None:
        lines.append(f"sure = most - {attention.spec.window - 1};")
    return "\n".join(f"            {line}" for line in lines)


def key_limits(
    key: str, end: str, depth: int, *, causal: bool, window: int | None
) -> tuple[str, str]:
    """Statements that find the keys that a row attends to, and the condition on one.

    Args:
        key: the variable that has its number within the tile.
        end: the one that has the end of such keys.
        depth: of the statements' indentation.
        causal: whether a row attends to no key behind its position.
        window: the keys up to its position that it attends to; ``None``: all.
    """
    lines, holds = [], [f"{key} < {end}"]
    if causal:
        lines.append("before = position + 1 < high ? position + 1 : high;")
    if window is not None:
        lines.append(f"first = position - {window - 1};")
        holds.append(f"{key} >= begin")
    text = "\n".join(f"{' ' * 4 * depth}{line}" for line in lines)
    return text, " && ".join(holds)
