"""The methods that slide windows of weights over spatial axes: convolutions.

Arrays are ``[N, C, *spatial]`` with one to three spatial axes. ``stride``, ``dilation`` and
``kernel`` are an int, or one int per spatial axis. ``padding`` is an int, one int per axis, one
``(low, high)`` per axis, ``"valid"`` (none), ``"same"`` (as many windows as ``ceil(size /
stride)``, an odd position at the end) or ``"same_lower"`` (an odd position at the start).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.reduction import ReductionVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary

if TYPE_CHECKING:
    from ostinato.ops import convolution, windows
    from ostinato.ops.windows import Padding, PaddingSpec
    from ostinato.variables import Dim
else:
    convolution = LazyModule("ostinato.ops.convolution")
    windows = LazyModule("ostinato.ops.windows")

__all__ = ["WindowVocabulary"]

PerAxis: TypeAlias = int | Sequence[int]
PaddingMode: TypeAlias = Literal["zeros", "reflect", "replicate", "circular"]

#: PyTorch's names of padding modes in convolutions, and those of ``pad``.
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class WindowVocabulary(ReductionVocabulary[T], ShapeVocabulary[T]):
    """Methods over sliding windows; all raise :class:`~ostinato.errors.GraphError` for misfits."""

    def conv(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        *,
        padding_mode: PaddingMode = "zeros",
    ) -> T:
        """Cross-correlation of ``x [N, C, *spatial]`` with ``w [O, C / groups, *kernel]``.

        Returns:
            ``[N, O, *windows]``, plus ``bias [O]`` if given; the dtype of all operands.

        Raises:
            GraphError: channels, groups, dtypes or dims do not fit, or no window does.
        """
        x, sizes = self._spatial(x)
        w, kernel = self._kernel(w, len(sizes))
        ndim = len(sizes)
        strides = windows.per_axis("stride", stride, ndim)
        dilations = windows.per_axis("dilation", dilation, ndim)
        pads = windows.resolve_padding(padding, sizes, kernel, strides, dilations)
        if padding_mode != "zeros":
            if padding_mode not in _MODES:
                raise GraphError(f"there is no padding mode {padding_mode!r}")
            x = self.pad(x, ((0, 0), (0, 0), *pads), mode=_MODES[padding_mode])
            pads = ((0, 0),) * ndim
        operands = (x, w) if bias is None else (x, w, *self._lift(bias))
        return self._one(
            convolution.CONV,
            *operands,
            stride=strides,
            padding=pads,
            dilation=dilations,
            groups=groups,
        )

    def conv_transpose(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        output_padding: PerAxis = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> T:
        """The transpose of :meth:`conv`, with ``w [C, O / groups, *kernel]``.

        ``padding`` takes away from the result, ``output_padding`` adds to its end. ``"same"``
        makes it ``size * stride``, taking an odd position from the end (``"same_lower"``: start).

        Returns:
            ``[N, O, *result]`` with ``result = (size - 1) * stride - low - high
            + dilation * (kernel - 1) + 1 + output_padding``.
        """
        x, sizes = self._spatial(x)
        w, kernel = self._kernel(w, len(sizes))
        ndim = len(sizes)
        strides = windows.per_axis("stride", stride, ndim)
        dilations = windows.per_axis("dilation", dilation, ndim)
        extra = windows.per_axis("output_padding", output_padding, ndim, least=0)
        if padding in ("same", "same_lower"):
            spans = map(windows.dilated, kernel, dilations)
            pads, extra = _cropped_to_same(spans, strides, extra, padding == "same_lower")
        else:
            pads = windows.resolve_padding(padding, sizes, kernel, strides, dilations)
        operands = (x, w) if bias is None else (x, w, *self._lift(bias))
        return self._one(
            convolution.CONV_TRANSPOSE,
            *operands,
            stride=strides,
            padding=pads,
            output_padding=extra,
            dilation=dilations,
            groups=groups,
        )

    # -- machinery --------------------------------------------------------------------------

    def _spatial(self, x: Any) -> tuple[T, tuple[Dim, ...]]:
        """``x`` lifted, and the sizes of its spatial axes."""
        lifted, type_ = self._typed(x)
        if not 3 <= type_.ndim <= 5:
            raise GraphError(f"x is [N, C, *spatial] with 1 to 3 spatial axes, got {type_}")
        return lifted, type_.shape[2:]

    def _kernel(self, w: Any, ndim: int) -> tuple[T, tuple[int, ...]]:
        """A weight lifted, and the sizes of its kernel."""
        lifted, type_ = self._typed(w)
        kernel = tuple(d for d in type_.shape[2:] if isinstance(d, int) and d > 0)
        if type_.ndim != ndim + 2 or len(kernel) != ndim:
            raise GraphError(
                f"the weight is {type_}, expected 2 dims of channels and a kernel of "
                f"{ndim} positive ints"
            )
        return lifted, kernel


def _cropped_to_same(
    spans: Iterable[int], stride: Sequence[int], extra: Sequence[int], lower: bool
) -> tuple[Padding, tuple[int, ...]]:
    """Padding and output padding with which a transposed convolution gives ``size * stride``."""
    totals = [span - s + e for span, s, e in zip(spans, stride, extra, strict=True)]
    pads = [(t // 2, t - t // 2) if t > 0 else (0, 0) for t in totals]
    longer = tuple(e - min(t, 0) for e, t in zip(extra, totals, strict=True))
    return tuple((high, low) if lower else (low, high) for low, high in pads), longer
