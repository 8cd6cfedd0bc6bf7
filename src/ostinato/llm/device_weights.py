"""Weights in the formats that a device computes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from ostinato.dtypes import BFLOAT16
from ostinato.llm.expert_files import EXPERT_MATRICES
from ostinato.llm.weight_sources import Decoded
from ostinato.llm.weights import widened_dtype
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.base import Capabilities
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.weights import Weight

__all__ = ["computed_bytes", "for_device"]

#: The ops that read experts where they are, in the width that they have.
_FLOATS: Final = ("expert_mlp", "grouped_matmul")


#: The share of the free memory that matrices take decoded, at most.
_SHARE: Final = 0.6


def for_device(
    checkpoint: Checkpoint, capabilities: Capabilities, free: int | None = None
) -> Checkpoint:
    """The model with packed weights as 16-bit floats, where a device is faster with these.

    That is one that multiplies bfloat16 natively, and packed weights not at all: it decodes each
    matrix once, to bfloat16, if there is memory for all of them. Experts would be decoded to 32
    bits: they become float16 as they are read, those of MXFP4 bfloat16, which loses nothing. A
    device that has packed matmuls takes experts as they are; so does one whose matmuls of experts
    are rewritten, or that has no such floats, and it decodes them to float32.

    Args:
        checkpoint: the model.
        capabilities: of the device.
        free: bytes of memory that are free on it; ``None``: it is the host's.
    """
    native, weights = capabilities.ops, dict(checkpoint.weights)
    if "packed_grouped_block_matmul" not in native and native.issuperset(_FLOATS):
        for name, weight in weights.items():
            if name.endswith(EXPERT_MATRICES):
                weights[name] = _widened(weight, capabilities)
    if "widening_matmul" in native and "packed_block_matmul" not in native and free is not None:
        packed = {
            name: replace(weight, decoded=BFLOAT16)
            for name, weight in weights.items()
            if weight.format is not None and len(weight.shape) == 2
        }
        if sum(map(computed_bytes, packed.values())) <= _SHARE * free:
            weights |= packed
    same = all(weights[name] is weight for name, weight in checkpoint.weights.items())
    return checkpoint if same else replace(checkpoint, weights=weights)


def computed_bytes(weight: Weight) -> int:
    """Bytes of a weight in the format that it is computed in."""
    if weight.decoded is not None:
        return prod(weight.shape) * weight.decoded.itemsize
    return prod(weight.source.shape) * weight.source.dtype.itemsize


def _widened(weight: Weight, capabilities: Capabilities) -> Weight:
    if weight.format is None or (dtype := widened_dtype(weight.format)) not in capabilities.dtypes:
        return weight
    source = Decoded(weight.source, weight.format, dtype, swapped=weight.summed == -2)
    return replace(weight, source=source, format=None, summed=-1)
