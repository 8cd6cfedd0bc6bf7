"""The ops and dtypes that the CPU takes as they are, and the settings of its lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.base import Capabilities
from ostinato.backends.common.lowering_options import lowering_options as shared_options
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.rules.table import LOWERED_OPS, CpuLowering
from ostinato.backends.cpu.rules.tiles import RegisterFile
from ostinato.backends.cpu.work_items import MANY_ITEMS
from ostinato.dtypes import (
    ALL_DTYPES,
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    NARROW_DTYPES,
)
from ostinato.ir.leaves import LEAVES
from ostinato.lower.loopir.builder import INDEX_OPS, POINTWISE
from ostinato.lower.loopir.views import VIEWS
from ostinato.ops.elementwise import ELEMENTWISE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.packed_matmul import ChooseTiles
    from ostinato.backends.options import CompileOptions
    from ostinato.dtypes import DType

__all__ = ["CAPABILITIES", "fast_bfloat16_dots", "lowering_options", "rounds_rows", "widens_rows"]

#: Without rope: spelled out, its halves are loops over neighbours, which fill vectors.
_OPS = {*ELEMENTWISE, *LEAVES, *VIEWS, *INDEX_OPS, *POINTWISE, *LOWERED_OPS} - {"rope"}

CAPABILITIES = Capabilities(
    ops=frozenset(_OPS),
    dtypes=frozenset((*ALL_DTYPES, *NARROW_DTYPES)),
    padded_conv=False,
    experts_in_file=True,
    shared_weights=True,
    inouts=True,
    single_ops=True,
    row_limits=True,
    expert_residency=True,
)


def lowering_options(
    options: CompileOptions,
    target: TargetSpec,
    choose_tiles: ChooseTiles | None = None,
    *,
    items: int = MANY_ITEMS,
) -> CpuLowering:
    """The settings of lowering for ``target`` under these switches.

    Args:
        choose_tiles: see :class:`~ostinato.backends.cpu.rules.table.CpuLowering`.
        items: see :class:`~ostinato.backends.cpu.rules.tiles.RegisterFile`.
    """
    on = options.optimize
    return CpuLowering(
        _registers(options, target, items),
        shared_options(options),
        winograd=on and options.winograd,
        builtin_copies=on,
        streaming_stores=on and options.streaming_stores,
        shared_temps=on,
        choose_tiles=choose_tiles,
    )


def _registers(options: CompileOptions, target: TargetSpec, items: int) -> RegisterFile:
    narrow = {BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2}
    if target.has_half_conversions:
        narrow.add(FLOAT16)
    wanted = frozenset(narrow) if options.narrow_weights else frozenset()
    count = _vector_registers(target)
    return RegisterFile(
        target.vector_bytes,
        count,
        wanted,
        target.has_byte_dots,
        target.has_byte_pairs,
        target.caches,
        prefetches=options.optimize and options.prefetch,
        bfloat16_dots=fast_bfloat16_dots(options, target),
        amx_dtypes=_amx_dtypes(options, target),
        few_rows_prefetch=processor_facts.few_rows_prefetch,
        slow_memory=processor_facts.slow_memory,
        strips=processor_facts.strips_are_faster,
        row_strips=processor_facts.row_strips_are_faster,
        items=items,
    )


def fast_bfloat16_dots(options: CompileOptions, target: TargetSpec) -> Callable[[], bool] | None:
    """Finds whether dot products of bfloat16 take less time than widening.

    Returns:
        ``None`` where there are none, or the options do not ask for them.
    """
    wanted = options.bfloat16_dots and target.has_bfloat16_dots
    return processor_facts.bfloat16_dots_are_fast if wanted else None


def rounds_rows(options: CompileOptions, target: TargetSpec) -> Callable[[], bool] | None:
    """Finds whether an instruction multiplies rows that are rounded to bfloat16 faster.

    Returns:
        ``None`` where there is none, or the options do not ask for it.
    """
    if options.bfloat16_dots and BFLOAT16 in _amx_dtypes(options, target):
        return lambda: True
    return fast_bfloat16_dots(options, target)


def widens_rows(options: CompileOptions, target: TargetSpec, dtype: DType) -> bool:
    """Whether no instruction multiplies rows of a 16-bit float with weights of the same."""
    if dtype in _amx_dtypes(options, target):
        return False
    dots = fast_bfloat16_dots(options, target)
    return dtype != BFLOAT16 or dots is None or not dots()


def _amx_dtypes(options: CompileOptions, target: TargetSpec) -> frozenset[DType]:
    """The dtypes of matrices to multiply in tile registers.

    By default those whose results are the same, and bfloat16 where dot products of it are wanted.
    """
    if options.amx is None:
        return target.amx_dtypes if options.bfloat16_dots else target.amx_dtypes - {BFLOAT16}
    return target.amx_dtypes if options.amx else frozenset()


def _vector_registers(target: TargetSpec) -> int:
    """AVX-512 and 64-bit Arm have 32 vector registers, older x86 levels 16."""
    return 16 if target.triple.startswith("x86") and target.vector_bytes < 64 else 32
