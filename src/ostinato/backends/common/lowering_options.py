"""The settings of shared lowering, from the options of a compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.fusion.regions import FusionOptions
from ostinato.lower.lowering import LoweringOptions

if TYPE_CHECKING:
    from ostinato.backends.options import CompileOptions

__all__ = ["lowering_options"]


def lowering_options(options: CompileOptions) -> LoweringOptions:
    """The optimisations of lowering that ``options`` leaves on, the same on every device."""
    on = options.optimize
    fusion = FusionOptions(
        elementwise=on and options.elementwise_fusion,
        epilogue=on and options.epilogue_fusion,
        rowwise=on and options.rowwise_fusion,
        products=on and options.product_fusion,
    )
    apart = options.keep_intermediates
    return LoweringOptions(
        fusion,
        channels_last=on and options.channels_last and not apart,
        in_place=on and options.in_place and not apart,
    )
