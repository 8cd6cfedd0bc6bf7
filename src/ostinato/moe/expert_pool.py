"""Pools of experts: the residents of a layer, chosen by use, and statistics of their calls."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Array", "ExpertPool", "MoeResidencyStats", "checked_count", "expert_hits"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MoeResidencyStats:
    """Calls and tokens of the experts of one run, resident and non-resident.

    A call is one expert of one layer with at least one token. A token counts once for each expert
    that it is routed to.

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
        """The sum over layers.

        Args:
            layers: for each, ``(tokens, mask)``: by expert, its tokens and whether it is resident;
                a mask of ``None``: all are.
        """
        calls, tokens = [0, 0], [0, 0]
        for counts, mask in layers:
            resident = np.ones(len(counts), np.bool_) if mask is None else mask
            for place, members in enumerate((resident, ~resident)):
                calls[place] += int(np.count_nonzero(counts[members]))
                tokens[place] += int(counts[members].sum())
        return MoeResidencyStats(calls[0], calls[1], tokens[0], tokens[1])


class ExpertPool:
    """A limited number of resident experts of a layer, those that are used most.

    Args:
        num_experts: number of experts.
        budget: number of experts that may be resident, capped at ``num_experts``.

    Attributes:
        num_experts, budget: as given.
        promotions: number of experts made resident so far.
        demotions: number of experts evicted so far.
        hits: calls of experts that were resident at the time; see :meth:`observe`.
        misses: calls of experts that were not.

    Raises:
        InputError: ``num_experts`` is not positive, or ``budget`` is negative.
    """

    def __init__(self, num_experts: int, budget: int) -> None:
        self.num_experts = checked_count("num_experts", num_experts, 1)
        self.budget = min(checked_count("budget", budget, 0), self.num_experts)
        self._resident = frozenset(range(self.budget))
        self.promotions = self.demotions = 0
        self.hits = self.misses = 0

    @property
    def resident(self) -> list[int]:
        """The resident experts, in order; initially the first ones."""
        return sorted(self._resident)

    @property
    def mask(self) -> Array:
        """For each expert, whether it is resident."""
        mask = np.zeros(self.num_experts, np.bool_)
        mask[self.resident] = True
        return mask

    @property
    def hit_rate(self) -> float:
        """The share of observed calls whose expert was resident; 1 before the first."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 1.0

    def observe(self, ids: Any) -> Array:
        """Count the calls of one run, given the experts of its tokens.

        Returns:
            The number of tokens of each expert, ``[num_experts]``.

        Raises:
            InputError: as :meth:`refresh_from_indices`. Nothing was counted.
        """
        tokens = expert_hits(ids, self.num_experts)
        called = set(np.flatnonzero(tokens).tolist())
        self.hits += len(called & self._resident)
        self.misses += len(called - self._resident)
        return tokens

    def refresh_from_indices(self, ids: Any) -> bool:
        """Make the experts resident that occur most often in ``ids``.

        Ties go to the lower number, and an expert that does not occur is not promoted. As many
        residents as needed are evicted: those that occur least, of equals the higher number.

        Args:
            ids: integers of any shape, each an expert.

        Returns:
            Whether the residents changed.

        Raises:
            InputError: ``ids`` are no integers, or one is no expert. Nothing has changed.
        """
        return self.refresh_from_hits(expert_hits(ids, self.num_experts))

    def refresh_from_hits(self, hits: Any) -> bool:
        """As :meth:`refresh_from_indices`, given the uses of each expert, as counts or weights.

        Args:
            hits: ``[num_experts]`` numbers, none of them negative.

        Returns:
            Whether the residents changed.

        Raises:
            InputError: ``hits`` is no such array. Nothing has changed.
        """
        weights = np.asarray(hits)
        fits = weights.shape == (self.num_experts,) and weights.dtype.kind in "iuf"
        if not fits or not np.all(weights >= 0):
            raise InputError(f"expected a number of hits for each of {self.num_experts} experts")
        by_hits = sorted(range(self.num_experts), key=lambda e: (-weights[e], e))
        wanted = [expert for expert in by_hits[: self.budget] if weights[expert] > 0]
        promoted = [expert for expert in wanted if expert not in self._resident]
        free = self.budget - len(self._resident)
        # In eviction order: least hits first, of equals the higher number.
        leaving = [e for e in reversed(by_hits) if e in self._resident and e not in wanted]
        demoted = leaving[: max(0, len(promoted) - free)]
        self._resident = self._resident.difference(demoted).union(promoted)
        self.promotions += len(promoted)
        self.demotions += len(demoted)
        return bool(promoted)

    def __repr__(self) -> str:
        return f"<{self.budget} slots for {self.num_experts} experts: {self.resident}>"


def expert_hits(ids: Any, num_experts: int) -> Array:
    """The number of occurrences of each of ``num_experts`` experts in ``ids``.

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


def checked_count(name: str, value: object, least: int) -> int:
    """``value`` as an int.

    Raises:
        InputError: it is no int, or below ``least``; the message names the argument ``name``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is an int of at least {least}, got {value!r:.80}")
    return number
