"""The attributes of sliding windows, which convolutions and pools share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.ops.windows import resolve_padding

if TYPE_CHECKING:
    from ostinato.frontends.onnx.call import Call
    from ostinato.ops.windows import Padding

__all__ = ["padding", "per_axis", "window_padding"]

_NAMED = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}


def per_axis(call: Call, name: str, ndim: int) -> tuple[int, ...]:
    """An attribute of one positive int per spatial axis, 1 by default."""
    found = call.integer_list(name, (1,) * ndim)
    if len(found) != ndim or any(entry < 1 for entry in found):
        call.malformed(f"{name} {list(found)} should be {ndim} positive ints")
    return found


def padding(call: Call, ndim: int) -> Any:
    """The padding as the vocabulary takes it, from ``auto_pad`` or ``pads``."""
    auto = call.text("auto_pad", "NOTSET")
    if auto in _NAMED:
        return _NAMED[auto]
    if auto not in ("", "NOTSET"):
        call.malformed(f"unknown auto_pad {auto!r}")
    pads = call.integer_list("pads", (0,) * (2 * ndim))
    if len(pads) != 2 * ndim:
        call.malformed(f"pads {list(pads)} should be {2 * ndim} ints")
    return list(zip(pads[:ndim], pads[ndim:], strict=True))


def window_padding(call: Call, kernel: tuple[int, ...]) -> Padding:
    """The padding as ``(low, high)`` for each spatial axis of the first operand."""
    ndim = len(kernel)
    strides, dilations = per_axis(call, "strides", ndim), per_axis(call, "dilations", ndim)
    given = padding(call, ndim)
    return resolve_padding(given, call.shape(0)[2:], kernel, strides, dilations)
