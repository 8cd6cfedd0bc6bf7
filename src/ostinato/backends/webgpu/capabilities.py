"""The ops and dtypes that the WebGPU device takes, and the settings of its lowering."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.base import Capabilities
from ostinato.backends.common.lowering_options import lowering_options as shared_options
from ostinato.backends.webgpu.rules.table import LOWERED_OPS, WebGpuLowering
from ostinato.dtypes import ALL_DTYPES, FLOAT64, NARROW_DTYPES
from ostinato.ir.leaves import LEAVES
from ostinato.lower.loopir.builder import INDEX_OPS, POINTWISE
from ostinato.lower.loopir.views import VIEWS
from ostinato.ops.elementwise import ELEMENTWISE

if TYPE_CHECKING:
    from ostinato.backends.options import CompileOptions

__all__ = ["CAPABILITIES", "lowering_options"]

#: All that is not listed is rewritten into what is. Kernels of float64 run on the CPU.
CAPABILITIES = Capabilities(
    ops=frozenset({*ELEMENTWISE, *LEAVES, *VIEWS, *INDEX_OPS, *POINTWISE, *LOWERED_OPS}),
    dtypes=frozenset((*ALL_DTYPES, *NARROW_DTYPES)),
    excluded=frozenset((op, FLOAT64) for op in ("attention", "recurrent_scan")),
    padded_conv=False,
    single_ops=True,
    inouts=True,
    row_limits=True,
    shared_weights=True,
    expert_residency=True,
    experts_in_file=True,
)


def lowering_options(options: CompileOptions) -> WebGpuLowering:
    """The settings of lowering under these switches."""
    return WebGpuLowering(shared_options(options), templates=options.optimize)
