"""The functions of rules on JAX's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.array_api.namespace import ArrayNamespace
from ostinato.dtypes import BOOL, INT64, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JaxNamespace"]

#: By the oracle's mode of a scatter, the method of ``jax.Array.at``.
_SCATTERS = {"set": "set", "add": "add", "mul": "multiply", "min": "min", "max": "max"}


class JaxNamespace(ArrayNamespace):
    """See :class:`ArrayNamespace`.

    Args:
        precision: JAX's precision of products.

    Attributes:
        precision: see above.
        whole_convolutions: whether XLA has convolutions of integers here.
    """

    whole_convolutions = False

    def __init__(self, precision: str | None = "highest") -> None:
        import jax
        import jax.numpy as jnp

        super().__init__(jnp)
        self._lax = jax.lax
        self._jax = jax
        self.precision = precision

    def native(self, dtype: DType) -> Any:
        return dtype.numpy

    def dtype_of(self, x: Any) -> DType:
        return DType.parse(x.dtype)

    def asarray(self, x: Any, dtype: DType | None = None) -> Any:
        return self._module.asarray(x, None if dtype is None else dtype.numpy)

    def copied(self, x: Any) -> Any:
        """A copy, also where a function gives back what it was given."""
        return self._module.copy(x)

    def erf(self, x: Any) -> Any:
        return self._lax.erf(x)

    def sign(self, x: Any) -> Any:
        """JAX's, with one zero for both."""
        found = self._module.sign(x)
        return self.where(x == 0, self.asarray(0, self.dtype_of(x)), found)

    def rsqrt(self, x: Any) -> Any:
        return 1.0 / self._module.sqrt(x)

    def normal_cdf(self, x: Any) -> Any:
        """The normal distribution's cumulative."""
        return 0.5 * self._lax.erfc(x * -(0.5**0.5))

    def fmod(self, x: Any, y: Any) -> Any:
        """The remainder with the sign of ``x``; 0 for an integer by zero."""
        return self._by_nonzero(self._module.fmod, x, y)

    def _integer_power(self, x: Any, y: Any) -> Any:
        """By squares, as many as ``y`` has bits: XLA's looks at six bits alone."""
        x, y = self._module.broadcast_arrays(x, y)
        one = self._module.ones_like(x)

        def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            power, square, left = state
            odd = self.bitwise_and(left, one) == one
            power = self.where(odd, power * square, power)
            return power, square * square, left >> one

        def more(state: tuple[Any, Any, Any]) -> Any:
            return self._module.any(state[2] != 0)

        power, _, _ = self._lax.while_loop(more, step, (one, x, y))
        return power

    def logical_xor(self, x: Any, y: Any) -> Any:
        return self._module.logical_xor(x, y)

    def matmul(self, x: Any, y: Any) -> Any:
        return self._module.matmul(x, y, precision=self.precision, preferred_element_type=x.dtype)

    def flip(self, x: Any, axis: Any) -> Any:
        return self._module.flip(x, axis)

    def pad(self, x: Any, before: Sequence[int], after: Sequence[int], value: Any) -> Any:
        widths = [(low, high, 0) for low, high in zip(before, after, strict=True)]
        return self._lax.pad(x, self.asarray(value, self.dtype_of(x)), widths)

    def iota(self, shape: Sequence[int], axis: int, dtype: DType) -> Any:
        return self.cast(self._lax.broadcasted_iota(INT64.numpy, tuple(shape), axis), dtype)

    # -- reductions --------------------------------------------------------------------------------

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._module.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)

    def prod(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._module.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self._lax.cumsum(x, axis)

    def cumprod(self, x: Any, axis: int) -> Any:
        return self._lax.cumprod(x, axis)

    def cummax(self, x: Any, axis: int) -> Any:
        return self._lax.cummax(x, axis)

    def cummin(self, x: Any, axis: int) -> Any:
        return self._lax.cummin(x, axis)

    def logcumsumexp(self, x: Any, axis: int) -> Any:
        return self._lax.cumlogsumexp(x, axis)

    # -- indexing ----------------------------------------------------------------------------------

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        """Elements at indices that lie within the axis."""
        where = (*(slice(None),) * axis, self.asarray(indices))
        return self.asarray(x).at[where].get(mode="promise_in_bounds")

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        """Elements at indices that lie within the axis."""
        return self._module.take_along_axis(x, indices, axis=axis, mode="promise_in_bounds")

    def scatter_at(self, x: Any, indices: Sequence[Any], updates: Any, mode: str) -> Any:
        if not indices:  # a scalar
            return self.scatter_rows(x, [self.full(updates.shape, 0, INT64)], updates, mode)
        return self.scatter_rows(x, indices, updates, mode)

    def scatter_rows(self, x: Any, indices: Sequence[Any], updates: Any, mode: str) -> Any:
        """As :meth:`scatter_at`, with indices of the first axes alone: updates are slices."""
        if not x.ndim:
            return self.reshape(
                self.scatter_rows(self.reshape(x, (1,)), indices, updates, mode), ()
            )
        if x.dtype == bool:
            wide = self.scatter_rows(x.astype("uint8"), indices, updates.astype("uint8"), mode)
            return self.cast(wide, BOOL)
        return getattr(x.at[tuple(indices)], _SCATTERS[mode])(updates, mode="drop")

    def _scatter(self, x: Any, points: Any, updates: Any, mode: str) -> Any:
        return self.scatter_rows(x, [points], updates, mode)

    def _ascending(self, x: Any, axis: int) -> Any:
        return self.to(self._module.argsort(x, axis=axis, stable=True), INT64)

    def searchsorted(self, sequence: Any, values: Any, *, right: bool) -> Any:
        """The first position, or the last, of each value; a sequence for all, or for each row."""
        side = "right" if right else "left"

        def find(line: Any, wanted: Any) -> Any:
            return self._module.searchsorted(line, wanted, side=side)

        for _ in range(sequence.ndim - 1):
            find = self._jax.vmap(find)
        return self.to(find(sequence, values), INT64)

    def non_max_suppression(
        self, boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, *, centered: bool
    ) -> Any:
        """The boxes chosen of each class, -1 behind the last one; see the op of that name."""
        if centered:
            half = boxes[..., 2:] / 2
            low, high = boxes[..., :2] - half, boxes[..., :2] + half
        else:
            low = self.minimum(boxes[..., :2], boxes[..., 2:])
            high = self.maximum(boxes[..., :2], boxes[..., 2:])
        count = boxes.shape[1]
        line = self.iota((count,), 0, INT64)

        def of_class(low: Any, high: Any, score: Any) -> Any:
            order = self.argsort(score, 0, True)
            low, high = self.take(low, order, 0), self.take(high, order, 0)
            taken = self.take(score, order, 0) > least
            area = self._module.prod(high - low, axis=-1)

            def step(i: Any, state: Any) -> Any:
                taken, chosen = state
                chooses = self.logical_and(taken[i], chosen < most)
                sides = self.minimum(high, high[i]) - self.maximum(low, low[i])
                common = self._module.prod(self.maximum(sides, 0.0), axis=-1)
                both = self.logical_and(area > 0, area[i] > 0)
                shared = self.logical_and(common > 0, both)
                union = self.where(shared, area + area[i] - common, 1.0)
                covered = self.where(shared, common / union, 0.0) > overlap
                out = self.logical_and(self.logical_and(covered, line > i), chooses)
                kept = self.logical_and(taken, self.logical_not(out))
                kept = kept.at[i].set(chooses)
                return kept, chosen + chooses

            taken, _ = self._lax.fori_loop(0, count, step, (taken, self.asarray(0, INT64)))
            place = self.where(taken, self.cumsum(self.cast(taken, INT64), 0) - 1, count)
            return self.full((count,), -1, INT64).at[place].set(order, mode="drop")

        if not count:
            return self.full(scores.shape, -1, INT64)
        by_class = self._jax.vmap(of_class, in_axes=(None, None, 0))
        return self._jax.vmap(by_class)(low, high, scores)
