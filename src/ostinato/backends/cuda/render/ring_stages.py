"""Sizes of a ring's stages, and of the warps that multiply with them.

See ``rings.cuh`` and ``staged_codes.cuh``.
"""

from __future__ import annotations

from ostinato.backends.cuda.target import SEGMENT_BLOCK, WARP

__all__ = ["CODE_COLUMNS", "CODE_PIECE", "COLUMNS", "GROUPS", "LINE", "MOST_ROWS", "PIECE", "WARPS"]

WARPS = SEGMENT_BLOCK // WARP
"""Warps that multiply."""

GROUPS = 2
"""Groups of warps, which read a stage each: those of ``ost::ring``."""

COLUMNS = 8
"""Rows of memory of a stage: columns of the matmul."""

CODE_COLUMNS = 16
"""The same of codes that one row multiplies."""

PIECE = 2048
"""Bytes of a column in a stage: those of ``ost::ring``."""

LINE = 128
"""Bytes of a column that are together in a stage, in front of those of the next column."""

CODE_PIECE = 1024
"""Bytes of a column of codes in a stage, without its scales: half of ``ost::stage_codes``."""

MOST_ROWS = 16
"""The most rows of a left operand: those of a tensor core's tile."""
