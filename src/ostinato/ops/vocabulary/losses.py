"""The methods for losses, by PyTorch's names.

``reduction`` is ``"mean"``, ``"sum"`` or ``"none"``. Losses have the dtype of ``x``; those of
16-bit floats are computed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.indexing import IndexingVocabulary
from ostinato.ops.vocabulary.normalization import NormalizationVocabulary
from ostinato.ops.vocabulary.special import SpecialVocabulary

if TYPE_CHECKING:
    from ostinato.dtypes import DType

__all__ = ["LossVocabulary"]

#: The logarithm of a probability in binary cross-entropy is no less, as PyTorch has it.
_LEAST_LOGARITHM = -100.0


class LossVocabulary(NormalizationVocabulary[T], IndexingVocabulary[T], SpecialVocabulary[T]):
    """Methods that compare predictions with targets; they raise the errors of their parts."""

    # -- distances --------------------------------------------------------------------------

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> T:
        """``abs(x - target)``."""
        (left, right), dtype = self._widened(x, target)
        return self._reduced(self.abs(self.subtract(left, right)), reduction, dtype)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> T:
        """``(x - target)**2``."""
        (left, right), dtype = self._widened(x, target)
        return self._reduced(self.square(self.subtract(left, right)), reduction, dtype)

    def smooth_l1_loss(self, x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> T:
        """``d**2 / (2 beta)`` of a distance below ``beta``, else ``d - beta / 2``."""
        if beta < 0:
            raise GraphError(f"beta is not negative, got {beta!r}")
        if beta == 0:
            return self.l1_loss(x, target, reduction)
        (left, right), dtype = self._widened(x, target)
        distance = self.abs(self.subtract(left, right))
        near = self.multiply(self.square(distance), 0.5 / beta)
        far = self.subtract(distance, 0.5 * beta)
        return self._reduced(self.where(self.less(distance, beta), near, far), reduction, dtype)

    def huber_loss(self, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> T:
        """``d**2 / 2`` of a distance up to ``delta``, else ``delta * (d - delta / 2)``."""
        if not delta > 0:
            raise GraphError(f"delta is above zero, got {delta!r}")
        (left, right), dtype = self._widened(x, target)
        distance = self.abs(self.subtract(left, right))
        near = self.multiply(self.square(distance), 0.5)
        far = self.multiply(self.subtract(distance, 0.5 * delta), delta)
        loss = self.where(self.less_equal(distance, delta), near, far)
        return self._reduced(loss, reduction, dtype)

    # -- probabilities ----------------------------------------------------------------------

    def kl_div(self, x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> T:
        """The divergence of log-probabilities ``x`` from ``target``, elementwise.

        Args:
            reduction: besides, ``"batchmean"``: the sum over the size of the first axis.
            log_target: whether ``target`` is log-probabilities, too.
        """
        (likely, wanted), dtype = self._widened(x, target)
        if log_target:
            loss = self.multiply(self.exp(wanted), self.subtract(wanted, likely))
        else:
            loss = self.subtract(self.xlogy(wanted, wanted), self.multiply(wanted, likely))
        if reduction != "batchmean":
            return self._reduced(loss, reduction, dtype)
        type_ = self._typed(loss)[1]
        rows = self.cast(self.dim_value(type_.shape[0]), type_.dtype)
        return self.cast(self.divide(self.sum(loss), rows), dtype)

    def nll_loss(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> T:
        """``-x`` at the class of ``target``: the loss of log-probabilities.

        Args:
            x: ``[N, C, ...]``, or ``[C]``.
            target: integers ``[N, ...]``, or a scalar.
            weight: ``[C]``: a factor for each class; means are divided by the sum of factors.
            ignore_index: a class that counts for nothing.
        """
        (wide,), dtype = self._widened(x)
        scores, classes = self._batched(wide, target)
        loss, factors = self._class_losses(scores, classes, weight, ignore_index)
        shaped = self.reshape(loss, self._typed(target)[1].shape)
        return self._averaged(shaped, factors, reduction, dtype)

    def cross_entropy(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
    ) -> T:
        """:meth:`nll_loss` of the logarithm of the softmax of ``x``.

        Args:
            x: ``[N, C, ...]``, or ``[C]``.
            target: classes, as there, or probabilities in the shape of ``x``.
            weight, ignore_index: as there; probabilities have no class to ignore.
            label_smoothing: the part of each probability that is spread over all classes.
        """
        if not 0.0 <= label_smoothing <= 1.0:
            raise GraphError(f"label_smoothing is from 0 to 1, got {label_smoothing!r}")
        (wide,), dtype = self._widened(x)
        type_ = self._typed(wide)[1]
        axis = 0 if type_.ndim == 1 else 1
        log_probabilities = self.log_softmax(wide, axis=axis)
        wanted, wanted_type = self._typed(target)
        if wanted_type.dtype.is_float and wanted_type.shape == type_.shape:
            soft = self._soft_losses(log_probabilities, wanted, weight, label_smoothing)
            return self._reduced(soft, reduction, dtype)
        if label_smoothing == 0.0:
            hard = self.nll_loss(log_probabilities, wanted, weight, reduction, ignore_index)
            return self.cast(hard, dtype)
        scores, classes = self._batched(log_probabilities, wanted)
        loss, factors = self._class_losses(scores, classes, weight, ignore_index)
        spread = (
            scores if weight is None else self.multiply(scores, self._per_class(weight, scores))
        )
        smooth = self.neg(self.sum(spread, axis=1))
        if ignore_index is not None:
            smooth = self.where(self.not_equal(classes, ignore_index), smooth, 0.0)
        share = label_smoothing / float(self._class_count(scores))
        total = self.add(self.multiply(loss, 1.0 - label_smoothing), self.multiply(smooth, share))
        shaped = self.reshape(total, wanted_type.shape)
        return self._averaged(shaped, factors, reduction, dtype)

    def binary_cross_entropy(
        self, x: Any, target: Any, weight: Any = None, reduction: str = "mean"
    ) -> T:
        """``-(target log(x) + (1 - target) log(1 - x))`` of probabilities ``x``.

        Logarithms are no less than -100.
        """
        (likely, wanted), dtype = self._widened(x, target)
        yes = self.maximum(self.log(likely), _LEAST_LOGARITHM)
        no = self.maximum(self.log1p(self.neg(likely)), _LEAST_LOGARITHM)
        likelihood = self.add(
            self.multiply(wanted, yes), self.multiply(self.subtract(1.0, wanted), no)
        )
        return self._reduced(self._weighted(self.neg(likelihood), weight), reduction, dtype)

    def binary_cross_entropy_with_logits(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        pos_weight: Any = None,
        reduction: str = "mean",
    ) -> T:
        """:meth:`binary_cross_entropy` of ``sigmoid(x)``, without overflow.

        Args:
            weight: a factor for each loss.
            pos_weight: a factor for the first term.
        """
        (logits, wanted), dtype = self._widened(x, target)
        unlikely = self.multiply(self.subtract(1.0, wanted), logits)
        rest = self.softplus(self.neg(logits))
        if pos_weight is not None:
            more = self.multiply(self.subtract(pos_weight, 1.0), wanted)
            rest = self.multiply(rest, self.add(more, 1.0))
        return self._reduced(self._weighted(self.add(unlikely, rest), weight), reduction, dtype)

    # -- margins ----------------------------------------------------------------------------

    def soft_margin_loss(self, x: Any, target: Any, reduction: str = "mean") -> T:
        """``log(1 + exp(-target * x))``."""
        (wide,), dtype = self._widened(x)
        loss = self.softplus(self.neg(self.multiply(target, wide)))
        return self._reduced(loss, reduction, dtype)

    def hinge_embedding_loss(
        self, x: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
    ) -> T:
        """``x`` where ``target`` is 1, ``max(margin - x, 0)`` where it is -1."""
        (wide,), dtype = self._widened(x)
        below = self.relu(self.subtract(float(margin), wide))
        unlike = self.where(self.not_equal(target, 1), below, 0.0)
        alike = self.where(self.not_equal(target, -1), wide, 0.0)
        return self._reduced(self.add(unlike, alike), reduction, dtype)

    def margin_ranking_loss(
        self, x: Any, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
    ) -> T:
        """``max(margin - target * (x - other), 0)``."""
        (left, right), dtype = self._widened(x, other)
        ahead = self.multiply(target, self.subtract(left, right))
        return self._reduced(self.relu(self.subtract(float(margin), ahead)), reduction, dtype)

    def cosine_similarity(self, x: Any, y: Any, axis: int = 1, eps: float = 1e-8) -> T:
        """The cosine of the angle between vectors along ``axis``, whose norms count ``eps``."""
        wide, dtype = self._widened(x, y)
        parts = [self.divide(v, self._vector_norm(v, axis, eps)) for v in wide]
        return self.cast(self.sum(self.multiply(*parts), axis=axis), dtype)

    def cosine_embedding_loss(
        self, x: Any, y: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
    ) -> T:
        """``1 - cos`` of vectors where ``target`` is 1, ``max(cos - margin, 0)`` where it is -1.

        Args:
            x, y: ``[N, D]``, or ``[D]``.
            target: ``[N]``, or a scalar.
        """
        (left, right), dtype = self._widened(x, y)
        cosine = self.cosine_similarity(left, right, axis=-1)
        apart = self.relu(self.subtract(cosine, float(margin)))
        unlike = self.where(self.equal(target, -1), apart, 0.0)
        alike = self.where(self.equal(target, 1), self.subtract(1.0, cosine), 0.0)
        return self._reduced(self.add(alike, unlike), reduction, dtype)

    # -- machinery --------------------------------------------------------------------------

    def _widened(self, *operands: Any) -> tuple[list[T], DType]:
        """Operands to compute with, and the dtype of the first; targets may be integers."""
        typed = [self._typed(operand) for operand in operands]
        dtype = typed[0][1].dtype
        if not dtype.is_float:
            raise GraphError(f"expected floats, got {typed[0][1]}; cast them first")
        wide = [
            self.cast(operand, type_.dtype.accumulator) if type_.dtype.is_float else operand
            for operand, type_ in typed
        ]
        return wide, dtype

    def _reduced(self, loss: T, reduction: str, dtype: DType) -> T:
        if reduction not in ("none", "sum", "mean"):
            raise GraphError(f"the reduction is none, sum or mean, got {reduction!r}")
        if reduction != "none":
            loss = self.mean(loss) if reduction == "mean" else self.sum(loss)
        return self.cast(loss, dtype)

    def _averaged(self, loss: T, factors: T | None, reduction: str, dtype: DType) -> T:
        """Losses of classes reduced; a mean is over the sum of their factors."""
        if reduction != "mean" or factors is None:
            return self._reduced(loss, reduction, dtype)
        return self.cast(self.divide(self.sum(loss), self.sum(factors)), dtype)

    def _weighted(self, loss: T, weight: Any) -> T:
        return loss if weight is None else self.multiply(loss, weight)

    def _batched(self, x: Any, target: Any) -> tuple[T, T]:
        """Log-probabilities ``[N, C, ...]`` and int64 classes ``[N, ...]``.

        Raises:
            GraphError: they do not fit.
        """
        scores, type_ = self._typed(x)
        classes, classes_type = self._typed(target)
        if type_.ndim == 1:
            scores, type_ = self._typed(self.expand_dims(scores, 0))
            classes, classes_type = self._typed(self.reshape(classes, (1,)))
        fits = type_.ndim >= 2 and classes_type.shape == (type_.shape[0], *type_.shape[2:])
        if not fits or not classes_type.dtype.is_integer:
            raise GraphError(f"the classes {classes_type} do not fit {type_}")
        return scores, self.cast(classes, INT64)

    def _class_losses(
        self, scores: T, classes: T, weight: Any, ignore_index: int | None
    ) -> tuple[T, T | None]:
        """The weighted loss of each class, and its weight; ``None`` where all are 1."""
        type_ = self._typed(scores)[1]
        counts = None if ignore_index is None else self.not_equal(classes, ignore_index)
        if counts is not None:
            classes = self.where(counts, classes, 0)
        found = self.take_along_axis(scores, self.expand_dims(classes, 1), axis=1)
        loss = self.neg(self.squeeze(found, 1))
        factors: T | None = None
        if weight is not None:
            factors = self.take(weight, classes, axis=0)
            loss = self.multiply(loss, factors)
        if counts is not None:
            # Selected rather than multiplied: an ignored infinity has no part in the sum.
            loss = self.where(counts, loss, 0.0)
            one = self.cast(counts, type_.dtype)
            factors = one if factors is None else self.where(counts, factors, 0.0)
        return loss, factors

    def _soft_losses(self, scores: T, target: T, weight: Any, smoothing: float) -> T:
        """The cross-entropy of log-probabilities with probabilities; means are over the places."""
        type_ = self._typed(scores)[1]
        if smoothing:
            even = smoothing / float(self._class_count(scores))
            target = self.add(self.multiply(target, 1.0 - smoothing), even)
        parts = self.multiply(scores, target)
        if weight is not None:
            parts = self.multiply(parts, self._per_class(weight, scores))
        return self.neg(self.sum(parts, axis=0 if type_.ndim == 1 else 1))

    def _per_class(self, weight: Any, scores: T) -> T:
        """Weights of classes, to be multiplied by ``[N, C, ...]`` or ``[C]``."""
        vector, type_ = self._typed(weight)
        ndim = self._typed(scores)[1].ndim
        return self.reshape(vector, (*type_.shape, *(1,) * max(ndim - 2, 0)))

    def _class_count(self, scores: T) -> int:
        shape = self._typed(scores)[1].shape
        count = shape[0 if len(shape) == 1 else 1]
        if not isinstance(count, int):
            raise GraphError(f"the number of classes depends on a Variable: {count}")
        return count

    def _vector_norm(self, x: T, axis: int, eps: float) -> T:
        length = self.norm(x, axis=axis, keepdims=True)
        return self.maximum(length, float(eps))
