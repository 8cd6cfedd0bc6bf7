"""Instruction set levels, and pairs of them and sizes: not every level compiles every size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.backends.cpu.llvm.toolchain import TargetSpec

#: By the bytes of its vectors, each level of x86; the fixture ``level`` has them all.
_LEVELS = {64: "avx512", 32: "avx2", 16: "sse2"}


def widest_level() -> str:
    """This machine's widest level."""
    return _LEVELS.get(TargetSpec.host().vector_bytes, "sse2")


def narrower_levels() -> list[str]:
    """The levels that this machine has, too, and that are there for older ones."""
    levels = [*_LEVELS.values()]
    return levels[levels.index(widest_level()) + 1 :]


def across_levels(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """Every value on this machine's widest level; on each other one every second, in turn.

    For values that meet the same code on each level: sizes, whose edges differ by the vectors.
    """
    widest = widest_level()
    others = [level for level in _LEVELS.values() if level != widest]
    pairs = [(widest, value) for value in values]
    for start, level in enumerate(others):
        pairs += [(level, value) for value in values[start % 2 :: 2]]
    return pairs
