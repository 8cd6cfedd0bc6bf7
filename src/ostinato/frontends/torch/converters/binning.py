"""Converters of sums, means and counts of elements by bin or bag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.call import Unavailable

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

_MODES = ("sum", "mean", "max")


def _counts(call: Call, self: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:
    """``histc``; PyTorch finds the bin of a number by arithmetic in its own dtype."""
    return call.g.histc(self, bins, float(min), float(max))


def _histogram(
    call: Call,
    self: Value,
    bins: Value,
    *,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    return call.rounded(call.g.histogram(self, bins, weight, density=density)), bins


def _embedding_bag(
    call: Call,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, ...]:
    """The bags; what PyTorch keeps for their gradient is not available."""
    bags = call.g.embedding_bag(
        weight,
        indices,
        offsets,
        mode=_MODES[mode],  # type: ignore[arg-type]
        weights=per_sample_weights,
        padding_id=None if padding_idx in (None, -1) else padding_idx,
        include_last_offset=include_last_offset,
    )
    absent = Unavailable("what an embedding bag keeps for its gradient")
    return bags, absent, absent, absent


CONVERTERS: dict[str, Converter] = {
    "aten.histc": _counts,
    "aten.histogram.bins_tensor": _histogram,
    "aten.embedding_bag": _embedding_bag,
    "aten._embedding_bag": _embedding_bag,
    "aten._embedding_bag_forward_only": _embedding_bag,
}
