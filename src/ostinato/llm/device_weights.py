"""Weights in the formats that a device computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ostinato.llm.expert_files import EXPERT_MATRICES
from ostinato.llm.weight_sources import Decoded
from ostinato.llm.weights import widened_dtype
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.base import Capabilities
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.weights import Weight

__all__ = ["for_device"]

#: The ops that read experts where they are, in the width that they have.
_FLOATS: Final = ("expert_mlp", "grouped_matmul")


def for_device(checkpoint: Checkpoint, capabilities: Capabilities) -> Checkpoint:
    """The model with packed experts as 16-bit floats, where a device would decode them to 32 bits.

    Floats are float16; those of MXFP4 bfloat16, which loses nothing. A device that has packed
    matmuls takes experts as they are; so does one whose matmuls of experts are rewritten, or that
    has no such floats, and it decodes them to float32.
    """
    native = capabilities.ops
    if "packed_grouped_block_matmul" in native or not native.issuperset(_FLOATS):
        return checkpoint
    weights = {
        name: _widened(weight, capabilities) if name.endswith(EXPERT_MATRICES) else weight
        for name, weight in checkpoint.weights.items()
    }
    return replace(checkpoint, weights=weights)


def _widened(weight: Weight, capabilities: Capabilities) -> Weight:
    if weight.format is None or (dtype := widened_dtype(weight.format)) not in capabilities.dtypes:
        return weight
    source = Decoded(weight.source, weight.format, dtype, swapped=weight.summed == -2)
    return replace(weight, source=source, format=None, summed=-1)
