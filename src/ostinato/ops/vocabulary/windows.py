"""The methods that slide windows over spatial axes: convolution and pooling.

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
    from ostinato.ir.op import Op
    from ostinato.ops import convolution, pooling, windows
    from ostinato.ops.windows import Padding, PaddingSpec
    from ostinato.variables import Dim
else:
    convolution = LazyModule("ostinato.ops.convolution")
    pooling = LazyModule("ostinato.ops.pooling")
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

    def max_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> T:
        """The greatest value of every window; NaN wins, padding never does.

        ``stride`` is ``kernel`` unless given. With ``ceil_mode`` a last window may hang over the
        end, if it starts before the padding there.
        """
        return self._pool(
            pooling.MAX_POOL, x, kernel, stride, padding, dilation, ceil_mode=ceil_mode
        )

    def avg_pool(
        self,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None = None,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> T:
        """The mean of every window of floats; see :meth:`max_pool`.

        The zeros of the padding count as elements unless ``count_include_pad`` is false; what hangs
        over the end in ``ceil_mode`` never counts.
        """
        return self._pool(
            pooling.AVG_POOL,
            x,
            kernel,
            stride,
            padding,
            dilation,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )

    def global_avg_pool(self, x: Any) -> T:
        """The mean over all spatial axes, which stay as size 1."""
        x, sizes = self._spatial(x)
        return self.mean(x, axis=tuple(range(2, 2 + len(sizes))), keepdims=True)

    def global_max_pool(self, x: Any) -> T:
        """The greatest value over all spatial axes, which stay as size 1."""
        x, sizes = self._spatial(x)
        return self.max(x, axis=tuple(range(2, 2 + len(sizes))), keepdims=True)

    def _pool(
        self,
        op: Op,
        x: Any,
        kernel: PerAxis,
        stride: PerAxis | None,
        padding: PaddingSpec,
        dilation: PerAxis,
        **attrs: bool,
    ) -> T:
        x, sizes = self._spatial(x)
        extents = windows.per_axis("kernel", kernel, len(sizes))
        strides = windows.per_axis("stride", extents if stride is None else stride, len(sizes))
        dilations = windows.per_axis("dilation", dilation, len(sizes))
        pads = windows.resolve_padding(padding, sizes, extents, strides, dilations)
        return self._one(
            op,
            x,
            kernel=extents,
            stride=strides,
            padding=pads,
            dilation=dilations,
            **{name: bool(value) for name, value in attrs.items()},
        )

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
