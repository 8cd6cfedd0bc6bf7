"""Signals: ``DFT``, ``STFT``, ``MelWeightMatrix``, and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.dtypes import FLOAT32
from ostinato.frontends.onnx.known import as_known
from ostinato.frontends.onnx.tensors import ELEMENT_TYPES
from ostinato.ops.base import normalize_axis
from ostinato.ops.fourier import fitted, mirrored, transform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value

    Array = np.ndarray[Any, Any]

__all__ = ["CONVERTERS"]

#: Windows and matrices with more elements are not written out while loading.
_LARGEST = 2**24


# -- Fourier transforms ----------------------------------------------------------------------------


def convert_dft(call: Call) -> Result:
    g, x = call.g, call.value(0)
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        call.malformed(f"expected a signal [...,1] or [...,2], got {x.type}")
    axis = _dft_axis(call, x.ndim)
    inverse, onesided = call.flag("inverse", 0), call.flag("onesided", 0)
    length = x.shape[axis]
    if call.has(1):
        length = call.single(1, "length")
    elif inverse and onesided:
        length = 2 * (length - 1)
    if not isinstance(length, int):
        call.unsupported(f"its length depends on a Variable ({length}); fix it with dims=")
    if length < 1:
        call.malformed(f"a length of {length}")
    parts = [
        g.moveaxis(g.reshape(g.slice(x, [i], [i + 1], axes=[-1]), x.shape[:-1]), axis, -1)
        for i in range(x.shape[-1])  # type: ignore[arg-type]
    ]
    bins = length // 2 + 1 if onesided else length
    real, *rest = (fitted(g, part, bins if inverse else length) for part in parts)
    signal = (real, rest[0] if rest else None)
    if inverse and onesided:
        signal = mirrored(g, signal, length)
    results: Sequence[Value] = transform(g, signal, bool(inverse))
    if inverse:
        results = [g.multiply(part, 1 / length) for part in results[: 1 if onesided else 2]]
    elif onesided:
        results = [g.slice(part, [0], [bins], axes=[-1]) for part in results]
    return g.stack([g.moveaxis(part, -1, axis) for part in results], axis=-1)


def _dft_axis(call: Call, ndim: int) -> int:
    if call.opset < 20:
        axis = call.integer("axis", 1)
    else:
        axis = int(call.scalar(2, "axis")) if call.has(2) else -2
    axis = normalize_axis(axis, ndim)
    if axis == ndim - 1:
        call.malformed("its axis is that of real and imaginary parts")
    return axis


def convert_stft(call: Call) -> Result:
    """Convert ``STFT``: overlapping frames, each times the window, then transformed."""
    g, x = call.g, call.value(0)
    if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[2] not in (1, 2)):
        call.malformed(f"expected a signal [batch,length,1 or 2], got {x.type}")
    signal = g.expand_dims(x, 2) if x.ndim == 2 else x
    step = int(call.scalar(1, "frame step"))
    size = call.shape(2)[0] if call.has(2) else None
    if call.has(3):
        size = int(call.scalar(3, "frame length"))
    length = signal.shape[1]
    if not isinstance(size, int):
        call.malformed("its window and its frame length are missing")
    if not isinstance(length, int):
        call.unsupported(f"its signal's length depends on a Variable ({length}); fix it with dims=")
    if step < 1 or not 1 <= size <= length:
        call.malformed(f"frames of {size} every {step} of {length} samples")
    frames = (length - size) // step + 1
    at = np.arange(frames)[:, None] * step + np.arange(size)
    window = call.optional(2)
    parts = []
    for index in range(signal.shape[2]):  # type: ignore[arg-type]
        part = g.reshape(g.slice(signal, [index], [index + 1], axes=[2]), signal.shape[:2])
        part = g.take(part, g.constant(at), axis=1)  # [batch, frames, size]
        parts.append(part if window is None else g.multiply(part, window))
    imaginary = parts[1] if len(parts) == 2 else None
    results: Sequence[Value] = transform(g, (parts[0], imaginary), False)
    if call.flag("onesided", 1):
        results = [g.slice(part, [0], [size // 2 + 1], axes=[-1]) for part in results]
    return g.stack(list(results), axis=-1)


# -- tables that depend on sizes alone -------------------------------------------------------------


def convert_mel_weight_matrix(call: Call) -> Result:
    """Triangular filters whose edges are evenly spaced on the mel scale."""
    bins, length, rate = (int(call.scalar(i, "size")) for i in range(3))
    edges = [float(call.scalar(i, "frequency")) for i in (3, 4)]
    if min(bins, length, rate) < 1 or (length // 2 + 1) * bins > _LARGEST:
        call.malformed(f"{bins} bins of {length} points at {rate} Hz")
    low, high = (2595 * np.log10(1 + edge / 700) for edge in edges)
    mels = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    points = (length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate
    rows = np.arange(length // 2 + 1)[:, None]
    lower, center, upper = points[:-2], points[1:-1], points[2:]
    rising = (rows - lower) / np.where(center > lower, center - lower, 1)
    falling = (upper - rows) / np.where(upper > center, upper - center, 1)
    left = (rows >= lower) & (rows <= center) & (center > lower)
    peak = (rows == center) & (center == lower)
    right = (rows >= center) & (rows < upper) & (upper > center)
    table = np.where(right, falling, np.where(peak, 1.0, np.where(left, rising, 0.0)))
    dtype = ELEMENT_TYPES.get(call.integer("output_datatype", 1), FLOAT32)
    return as_known(table.astype(dtype.numpy), call.outputs[0])


def convert_window(call: Call) -> Result:
    """Hann, Hamming and Blackman windows of a known length; NaN for a symmetric one of length 1."""
    size = int(call.scalar(0, "size"))
    dtype = ELEMENT_TYPES.get(call.integer("output_datatype", 1), FLOAT32)
    if not 0 <= size <= _LARGEST:
        call.malformed(f"impossible size {size}")
    with np.errstate(all="ignore"):
        angle = np.arange(size) * (2 * np.pi / np.float64(size - (not call.flag("periodic", 1))))
    offset, first, second = _WINDOWS[call.op_type]
    values = offset - first * np.cos(angle) + second * np.cos(2 * angle)
    return as_known(values.astype(dtype.numpy), call.outputs[0])


#: The weights of the constant, of ``cos`` and of ``cos(2·)`` in each window.
_WINDOWS = {
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "HannWindow": (0.5, 0.5, 0.0),
}

CONVERTERS: Mapping[str, Converter] = {
    "BlackmanWindow": convert_window,
    "DFT": convert_dft,
    "HammingWindow": convert_window,
    "HannWindow": convert_window,
    "MelWeightMatrix": convert_mel_weight_matrix,
    "STFT": convert_stft,
}
