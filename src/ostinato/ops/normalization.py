"""Softmax and the normalisations: composites of reductions and arithmetic over floats.

The forms are two-pass: a variance is taken of what is centred, so that a large mean costs no
digits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.dtypes import DType
from ostinato.ops.base import Composite
from ostinato.ops.reduction import MEAN
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.ir.types import TensorType
    from ostinato.variables import Dim

__all__ = [
    "BATCH_NORM",
    "FAMILY",
    "GROUP_NORM",
    "INSTANCE_NORM",
    "L2_NORMALIZE",
    "LAYER_NORM",
    "LOCAL_RESPONSE_NORM",
    "LOG_SOFTMAX",
    "RMS_NORM",
    "SOFTMAX",
    "FloatOp",
]


class FloatOp(Composite):
    """A composite over floats whose result has the type of its first operand.

    Attributes:
        cost: floating point operations per element of the first operand, for reports.
        operand_names: what the operands are called, the optional ones last.
    """

    cost: ClassVar[int] = 5
    operand_names: ClassVar[tuple[str, ...]] = ("x",)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * self.cost

    def check_operands(self, operands: Sequence[TensorType], required: int = 1) -> TensorType:
        """The first operand, once their number and dtypes are found to be right."""
        self.expect_count(operands, required, len(self.operand_names))
        for name, operand in zip(self.operand_names, operands, strict=False):
            self.expect(
                operand.dtype.is_float, f"{name} is {operand.dtype}, not a float; cast it first"
            )
        return operands[0]

    def check_shapes(self, operands: Sequence[TensorType], shape: Sequence[Dim]) -> None:
        """Raise unless all operands after the first have this shape."""
        for name, operand in zip(self.operand_names[1:], operands[1:], strict=False):
            self.expect(
                operand.shape == tuple(shape),
                f"{name} is {operand}, expected shape [{','.join(map(str, shape))}]",
            )

    def check_axes(self, axes: Sequence[int], ndim: int) -> None:
        """Raise unless ``axes`` are axes of ``ndim`` dims, counted from the front."""
        fits = all(isinstance(a, int) and 0 <= a < ndim for a in axes)
        self.expect(fits, f"axes {axes} are out of range for {ndim} dimensions")

    def check_eps(self, eps: Any) -> None:
        """Raise unless ``eps`` is a finite number that is not negative."""
        fits = isinstance(eps, int | float) and math.isfinite(eps) and eps >= 0
        self.expect(fits, f"eps is a finite number >= 0, got {eps!r}")


class Softmax(FloatOp):
    """``exp(x) / sum(exp(x))`` over ``axis``, shifted by the maximum so that nothing overflows."""

    name = "softmax"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.check_axes((attrs["axis"],), x.ndim)
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,), axis = operands, attrs["axis"]
        if x.shape[axis] == 0:  # nothing has no maximum
            return x
        exponential = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return exponential / xp.sum(exponential, axis=axis, keepdims=True)


class LogSoftmax(Softmax):
    """``log(softmax(x))`` without the underflow in between."""

    name = "log_softmax"

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,), axis = operands, attrs["axis"]
        if x.shape[axis] == 0:
            return x
        shifted = x - xp.max(x, axis=axis, keepdims=True)
        return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


class LayerNorm(FloatOp):
    """``(x - mean) / sqrt(variance + eps) [* weight [+ bias]]`` over the axes from ``axis`` on.

    ``weight`` and ``bias`` have the shape of those axes. (PyTorch ``layer_norm``, ONNX
    ``LayerNormalization``.)
    """

    name = "layer_norm"
    cost = 8
    operand_names: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.check_axes((attrs["axis"],), x.ndim)
        self.check_shapes(operands, x.shape[attrs["axis"] :])
        self.check_eps(attrs["eps"])
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *affine = operands
        normalized = _standardize(xp, x, tuple(range(attrs["axis"], len(x.shape))), attrs["eps"])
        return _affine(normalized, affine)


class RmsNorm(LayerNorm):
    """``x / sqrt(mean(x^2) + eps) [* weight]`` over the axes from ``axis`` on (PyTorch)."""

    name = "rms_norm"
    cost = 5
    operand_names = ("x", "weight")

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *affine = operands
        axes = tuple(range(attrs["axis"], len(x.shape)))
        power = MEAN.rule(xp, x * x, axis=axes, keepdims=True)
        return _affine(x * xp.rsqrt(power + attrs["eps"]), affine)


class GroupNorm(FloatOp):
    """:class:`LayerNorm` of every group of channels of ``x [N, C, ...]``.

    ``weight`` and ``bias`` are ``[C]``; ``groups`` divides ``C``. (PyTorch ``group_norm``.)
    """

    name = "group_norm"
    cost = 8
    operand_names = ("x", "weight", "bias")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.expect(x.ndim >= 2, f"x is [N, C, ...], got {x}")
        channels, groups = x.shape[1], attrs["groups"]
        fits = isinstance(groups, int) and groups >= 1
        self.expect(fits, f"num_groups must be at least 1, got {groups!r}")
        self.expect(
            channels % groups == 0, f"{channels} channels do not divide into {groups} groups"
        )
        self.check_shapes(operands, (channels,))
        self.check_eps(attrs["eps"])
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *affine = operands
        groups = attrs["groups"]
        batch, channels, *spatial = x.shape
        grouped = xp.reshape(x, (batch, groups, channels // groups * prod(spatial)))
        normalized = xp.reshape(_standardize(xp, grouped, (2,), attrs["eps"]), x.shape)
        return _affine(normalized, _per_channel(xp, affine, len(spatial)))


class InstanceNorm(FloatOp):
    """:class:`LayerNorm` of every channel of ``x [N, C, *spatial]``; weight and bias ``[C]``."""

    name = "instance_norm"
    cost = 8
    operand_names = ("x", "weight", "bias")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.expect(x.ndim >= 3, f"x is [N, C, *spatial], got {x}")
        self.check_shapes(operands, x.shape[1:2])
        self.check_eps(attrs["eps"])
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *affine = operands
        spatial = len(x.shape) - 2
        normalized = _standardize(xp, x, tuple(range(2, 2 + spatial)), attrs["eps"])
        return _affine(normalized, _per_channel(xp, affine, spatial))


class BatchNorm(FloatOp):
    """``(x - mean) / sqrt(var + eps) [* weight [+ bias]]`` for ``x [N, C, ...]``: inference.

    ``mean``, ``var``, ``weight`` and ``bias`` are ``[C]``. What depends on params alone stands by
    itself, to be folded when they are set.
    """

    name = "batch_norm"
    cost = 3
    operand_names = ("x", "mean", "var", "weight", "bias")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands, required=3)
        self.expect(x.ndim >= 2, f"x is [N, C, ...], got {x}")
        self.check_shapes(operands, x.shape[1:2])
        self.check_eps(attrs["eps"])
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, *channelwise = operands
        spatial = len(x.shape) - 2
        mean, var, *affine = _per_channel(xp, channelwise, spatial)
        scale = xp.rsqrt(var + attrs["eps"])
        if affine:
            scale = affine[0] * scale
        scaled = (x - mean) * scale
        return scaled + affine[1] if len(affine) == 2 else scaled


class LocalResponseNorm(FloatOp):
    """``x / (k + alpha / size * s)^beta``, ``s`` the sum of squares over ``size`` channels.

    The window reaches ``(size - 1) // 2`` channels back and ``size // 2`` ahead (ONNX ``LRN``).
    """

    name = "local_response_norm"
    cost = 16

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.expect(x.ndim >= 2, f"x is [N, C, ...], got {x}")
        self.expect(
            isinstance(attrs["size"], int) and attrs["size"] >= 1,
            f"size is an int >= 1, got {attrs['size']!r}",
        )
        for key in ("alpha", "beta", "k"):
            self.expect(
                isinstance(attrs[key], int | float), f"{key} is a number, got {attrs[key]!r}"
            )
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,), size = operands, attrs["size"]
        batch, channels, *rest = x.shape
        before, after = (
            xp.full((batch, count, *rest), 0.0, DType.parse(x.dtype))
            for count in ((size - 1) // 2, size // 2)
        )
        squares = xp.concat([before, x * x, after], axis=1)
        total = squares[:, :channels]
        for start in range(1, size):
            total = total + squares[:, start : start + channels]
        return x / (attrs["k"] + attrs["alpha"] / size * total) ** attrs["beta"]


class L2Normalize(FloatOp):
    """``x / max(norm, eps)`` with the Euclidean norm over ``axes`` (PyTorch ``normalize``)."""

    name = "l2_normalize"
    cost = 3

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands)
        self.check_axes(attrs["axes"], x.ndim)
        self.check_eps(attrs["eps"])
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        norm = xp.sqrt(xp.sum(x * x, axis=attrs["axes"], keepdims=True))
        return x / xp.maximum(norm, attrs["eps"])


def _standardize(xp: Any, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    centred = x - MEAN.rule(xp, x, axis=axes, keepdims=True)
    variance = MEAN.rule(xp, centred * centred, axis=axes, keepdims=True)
    return centred * xp.rsqrt(variance + eps)


def _affine(x: Any, affine: Sequence[Any]) -> Any:
    """``x`` times the first and plus the second of ``affine``, as far as they are given."""
    if affine:
        x = x * affine[0]
    return x + affine[1] if len(affine) == 2 else x


def _per_channel(xp: Any, vectors: Sequence[Any], spatial: int) -> list[Any]:
    """``[C]`` vectors shaped to broadcast along axis 1."""
    return [xp.reshape(v, (*v.shape, *(1,) * spatial)) for v in vectors]


SOFTMAX, LOG_SOFTMAX = Softmax(), LogSoftmax()
LAYER_NORM, RMS_NORM, GROUP_NORM = LayerNorm(), RmsNorm(), GroupNorm()
INSTANCE_NORM, BATCH_NORM = InstanceNorm(), BatchNorm()
LOCAL_RESPONSE_NORM, L2_NORMALIZE = LocalResponseNorm(), L2Normalize()
FAMILY: tuple[Op, ...] = (
    SOFTMAX,
    LOG_SOFTMAX,
    LAYER_NORM,
    RMS_NORM,
    GROUP_NORM,
    INSTANCE_NORM,
    BATCH_NORM,
    LOCAL_RESPONSE_NORM,
    L2_NORMALIZE,
)
