"""The operations: one class per op holds all its rules, one file per family holds its ops."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.ops.special import MODULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.op import Op

    #: Every op by its canonical name. Leaves are apart, in :data:`ostinato.ir.leaves.LEAVES`.
    OPS: Mapping[str, Op]

__all__ = ["OPS"]

_FAMILIES = (
    "elementwise",
    *(f"special.{module}" for module in MODULES),
    "shape",
    "strided",
    "indexing",
    "order",
    "tokens",
    "sizes",
    "reduction",
    "linalg",
    "convolution",
    "pooling",
    "normalization",
    "attention",
    "paged_attention",
    "recurrent",
    "sequence_states",
    "quant",
    "float8",
    "packed_weights",
    "affine",
    "moe",
    "packed_experts",
    "control",
)


def __getattr__(name: str) -> Any:
    """Build ``OPS`` at its first use: few models need all families."""
    if name != "OPS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    families = [import_module(f"{__name__}.{family}").FAMILY for family in _FAMILIES]
    ops = MappingProxyType({op.name: op for family in families for op in family})
    return globals().setdefault("OPS", ops)
