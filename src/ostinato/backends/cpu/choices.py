"""The CPU's capabilities, and its options of lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.base import Capabilities
from ostinato.dtypes import ALL_DTYPES, BFLOAT16, FLOAT16
from ostinato.ir.leaves import LEAVES
from ostinato.lower.builder import INDEX_OPS, POINTWISE
from ostinato.lower.lowering import LOWERED_OPS, LoweringOptions
from ostinato.lower.products import RegisterFile
from ostinato.lower.regions import REDUCTIONS, FusionOptions
from ostinato.lower.views import VIEWS
from ostinato.ops.elementwise import ELEMENTWISE

if TYPE_CHECKING:
    from ostinato.backends.options import CompileOptions
    from ostinato.codegen.llvm.toolchain import TargetSpec
    from ostinato.lower.products import Tiling

__all__ = ["CAPABILITIES", "lowering_options"]

CAPABILITIES = Capabilities(
    ops=frozenset(
        {*ELEMENTWISE, *LEAVES, *VIEWS, *INDEX_OPS, *POINTWISE, *REDUCTIONS, *LOWERED_OPS}
    ),
    dtypes=frozenset(ALL_DTYPES),
    padded_conv=False,
    experts_in_file=True,
)


def lowering_options(
    options: CompileOptions, target: TargetSpec, tiling: Tiling | None = None
) -> LoweringOptions:
    """The options of lowering for ``target`` under these switches.

    Args:
        tiling: see :class:`~ostinato.lower.lowering.LoweringOptions`.
    """
    on = options.optimize
    fusion = FusionOptions(
        elementwise=on and options.elementwise_fusion,
        epilogue=on and options.epilogue_fusion,
        rowwise=on and options.rowwise_fusion,
        products=on and options.product_fusion,
    )
    return LoweringOptions(
        _registers(options, target),
        fusion,
        channels_last=on and options.channels_last and not options.keep_intermediates,
        winograd=on and options.winograd,
        in_place=on and options.in_place and not options.keep_intermediates,
        ready_copies=on,
        tiling=tiling,
    )


def _registers(options: CompileOptions, target: TargetSpec) -> RegisterFile:
    narrow = {BFLOAT16, *([FLOAT16] if target.has_half_conversions else [])}
    wanted = frozenset(narrow) if options.narrow_weights else frozenset()
    count = _vector_registers(target)
    return RegisterFile(target.vector_bytes, count, wanted, target.has_byte_dots)


def _vector_registers(target: TargetSpec) -> int:
    """AVX-512 and 64-bit Arm have 32 vector registers, older x86 levels 16."""
    return 16 if target.triple.startswith("x86") and target.vector_bytes < 64 else 32
