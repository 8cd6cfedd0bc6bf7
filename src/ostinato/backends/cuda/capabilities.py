"""The ops and dtypes that the CUDA device takes as they are, and the settings of its lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.base import Capabilities
from ostinato.backends.common.lowering_options import lowering_options as shared_options
from ostinato.backends.cuda.rules.library import LibrarySettings
from ostinato.backends.cuda.rules.table import LOWERED_OPS, CudaLowering
from ostinato.dtypes import ALL_DTYPES, NARROW_DTYPES
from ostinato.ir.leaves import LEAVES
from ostinato.lower.loopir.builder import INDEX_OPS, POINTWISE
from ostinato.lower.loopir.views import VIEWS
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.options import CompileOptions

__all__ = ["CAPABILITIES", "lowering_options", "rounds_rows"]

#: All that is not listed is rewritten into what is.
CAPABILITIES = Capabilities(
    ops=frozenset({*ELEMENTWISE, *LEAVES, *VIEWS, *INDEX_OPS, *POINTWISE, *LOWERED_OPS}),
    dtypes=frozenset((*ALL_DTYPES, *NARROW_DTYPES)),
    padded_conv=False,
    inouts=True,
    known_sizes=True,
    shared_weights=True,
    single_ops=True,
    expert_residency=True,
    experts_in_file=True,
)


#: The first GPUs whose tensor cores multiply bfloat16.
_BFLOAT16 = 80

#: The first GPUs whose tensor cores multiply 8-bit floats, and those for which cuBLASLt scales them
#: by rows and columns.
_FLOAT8, _ROW_SCALES = 89, 90


def lowering_options(
    options: CompileOptions,
    *,
    has_products: bool = False,
    capability: int = 0,
    bulk_tiles: bool = False,
    wide_rings: bool = False,
) -> CudaLowering:
    """The settings of lowering under these switches.

    Args:
        options: the switches.
        has_products: whether there is a library of matrix products.
        capability: the GPU's compute capability, 90 for 9.0; 0: it is not known.
        bulk_tiles: whether the device's own kernels copy the operands of large products in bulk.
        wide_rings: whether blocks of segments have rings, whatever else is in shared memory.
    """
    shared, on = shared_options(options), options.optimize
    shared = replace(shared, fusion=replace(shared.fusion, row_factors=on))
    library = LibrarySettings(
        options.tf32,
        options.time_products,
        float8=capability >= _FLOAT8,
        row_scales=capability == _ROW_SCALES,
        joint=options.joint_weights,
    )
    return CudaLowering(
        shared,
        templates=on,
        split_reductions=on,
        segments=on and options.segments,
        stream_weights=options.stream_weights,
        exchange=options.segment_exchange,
        segment_experts=options.segment_experts,
        one_block=options.single_block_segments,
        layers=options.segment_layers,
        join=options.joint_parts,
        wide_rings=wide_rings,
        bulk_tiles=on and bulk_tiles,
        rounds=on and rounds_rows(options, capability) is not None,
        library=library if on and has_products and options.library_products else None,
    )


def rounds_rows(options: CompileOptions, capability: int) -> Callable[[], bool] | None:
    """Whether float32 rows are rounded to bfloat16 for weights that are; ``None``: they are not.

    Args:
        options: the switches.
        capability: see :func:`lowering_options`.
    """
    return (lambda: True) if options.bfloat16_dots and capability >= _BFLOAT16 else None
