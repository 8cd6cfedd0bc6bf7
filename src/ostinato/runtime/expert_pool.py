"""Which experts are worth keeping on the device, and when to think about it again.

Experts that were used a moment ago are likely to be used again (TIDE, arXiv 2605.20179): count how
often each one was, keep those used most, and change places only now and then.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.runtime.arrays import Array

__all__ = ["ExpertPool", "MoeResidencyStats", "TidePolicy", "expert_hits"]


@dataclass(frozen=True)
class MoeResidencyStats:
    """What the experts of one run did, by where they live.

    A call is one expert of one layer with at least one token. A token counts once for each expert
    that it goes to.

    Attributes:
        gpu_expert_calls: calls of resident experts.
        cpu_expert_calls: calls of the others.
        gpu_tokens: tokens of resident experts.
        cpu_tokens: tokens of the others.
    """

    gpu_expert_calls: int = 0
    cpu_expert_calls: int = 0
    gpu_tokens: int = 0
    cpu_tokens: int = 0

    @staticmethod
    def of(layers: Sequence[tuple[Array, Array | None]]) -> MoeResidencyStats:
        """What layers did, each given by its tokens per expert and which experts are resident.

        Args:
            layers: ``(tokens, mask)``; a mask of ``None``: all are.
        """
        calls, tokens = [0, 0], [0, 0]
        for counts, mask in layers:
            resident = np.ones(len(counts), np.bool_) if mask is None else mask
            for place, members in enumerate((resident, ~resident)):
                calls[place] += int(np.count_nonzero(counts[members]))
                tokens[place] += int(counts[members].sum())
        return MoeResidencyStats(calls[0], calls[1], tokens[0], tokens[1])


class ExpertPool:
    """Places for some of a layer's experts, given to those that are used most.

    Args:
        num_experts: how many experts there are.
        budget: how many of them have a place; as many as there are, if it is more.

    Attributes:
        num_experts, budget: as given.
        promotions: how many experts were given a place so far.
        demotions: how many lost theirs.
        hits: calls of experts that had a place when they were called; see :meth:`observe`.
        misses: calls of experts that had none.

    Raises:
        InputError: ``num_experts`` is not positive, or ``budget`` is negative.
    """

    def __init__(self, num_experts: int, budget: int) -> None:
        self.num_experts = _count("num_experts", num_experts, 1)
        self.budget = min(_count("budget", budget, 0), self.num_experts)
        self._resident = frozenset(range(self.budget))
        self.promotions = self.demotions = 0
        self.hits = self.misses = 0

    @property
    def resident(self) -> list[int]:
        """The experts that have a place, in order; the first ones to begin with."""
        return sorted(self._resident)

    @property
    def mask(self) -> Array:
        """The same as a bool for each expert."""
        mask = np.zeros(self.num_experts, np.bool_)
        mask[self.resident] = True
        return mask

    @property
    def hit_rate(self) -> float:
        """The share of observed calls whose expert had a place; 1 before the first."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 1.0

    def observe(self, ids: Any) -> Array:
        """Count the calls of one run, given the experts that its tokens went to.

        Returns:
            How many tokens went to each expert, ``[num_experts]``.

        Raises:
            InputError: as :meth:`refresh_from_indices`. Nothing was counted.
        """
        tokens = expert_hits(ids, self.num_experts)
        called = set(np.flatnonzero(tokens).tolist())
        self.hits += len(called & self._resident)
        self.misses += len(called - self._resident)
        return tokens

    def refresh_from_indices(self, ids: Any) -> bool:
        """Give the places to the experts that occur most often in ``ids``.

        Ties go to the lower number, and who does not occur gets no place. Those who make room are
        those that occur least, of equals the higher number; who needs not make room stays.

        Args:
            ids: integers of any shape, each an expert.

        Returns:
            Whether anything changed.

        Raises:
            InputError: ``ids`` are no integers, or one is no expert. Nothing has changed.
        """
        return self.refresh_from_hits(expert_hits(ids, self.num_experts))

    def refresh_from_hits(self, hits: Any) -> bool:
        """The same, given how much each expert was used, as counts or as weights.

        Args:
            hits: ``[num_experts]`` numbers, none of them negative.

        Returns:
            Whether anything changed.

        Raises:
            InputError: there is not one such number for each expert. Nothing has changed.
        """
        weights = np.asarray(hits)
        fits = weights.shape == (self.num_experts,) and weights.dtype.kind in "iuf"
        if not fits or not np.all(weights >= 0):
            raise InputError(f"expected a number of hits for each of {self.num_experts} experts")
        by_hits = sorted(range(self.num_experts), key=lambda e: (-weights[e], e))
        wanted = [expert for expert in by_hits[: self.budget] if weights[expert] > 0]
        promoted = [expert for expert in wanted if expert not in self._resident]
        free = self.budget - len(self._resident)
        # From the back: least hits first, and of equals the higher number.
        leaving = [e for e in reversed(by_hits) if e in self._resident and e not in wanted]
        demoted = leaving[: max(0, len(promoted) - free)]
        self._resident = self._resident.difference(demoted).union(promoted)
        self.promotions += len(promoted)
        self.demotions += len(demoted)
        return bool(promoted)

    def __repr__(self) -> str:
        return f"<{self.budget} places for {self.num_experts} experts: {self.resident}>"


class TidePolicy:
    """When places are given anew: at the first step, which is the prefill, and every n-th.

    Args:
        refresh_every: n.
        half_life: after so many steps, a use of an expert counts half as much as a new one.

    Raises:
        InputError: one of them is not positive.
    """

    def __init__(self, refresh_every: int, *, half_life: float = 256.0) -> None:
        self.refresh_every = _count("refresh_every", refresh_every, 1)
        if not isinstance(half_life, int | float) or not half_life > 0:
            raise InputError(f"half_life is a positive number of steps, got {half_life!r:.80}")
        self.half_life = float(half_life)

    def due(self, step: int, pools: Sequence[ExpertPool] = ()) -> bool:
        """Whether places are to be given anew after step ``step``, the first of which is 0.

        Args:
            step: a step's number.
            pools: if everything has a place in all of them, there is nothing to do.
        """
        if pools and all(pool.budget == pool.num_experts for pool in pools):
            return False
        return step % self.refresh_every == 0

    @property
    def fading(self) -> float:
        """What a hit counts one step later."""
        return float(0.5 ** (1.0 / self.half_life))


def expert_hits(ids: Any, num_experts: int) -> Array:
    """How often each of ``num_experts`` experts occurs in ``ids``.

    Raises:
        InputError: they are no integers, or one is no expert.
    """
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(num_experts, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"experts are numbered by integers, got {array.dtype}")
    outside = array[(array < 0) | (array >= num_experts)]
    if outside.size:
        raise InputError(f"expert {outside.flat[0]} is out of range for {num_experts} experts")
    return np.bincount(array.reshape(-1).astype(np.int64), minlength=num_experts)


def _count(name: str, value: object, least: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is an int of at least {least}, got {value!r:.80}")
    return number
