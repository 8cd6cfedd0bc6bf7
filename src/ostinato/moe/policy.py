"""The schedule of expert placement: refresh residents at intervals, weighting recent uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import InputError
from ostinato.moe.expert_pool import checked_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.moe.expert_pool import ExpertPool

__all__ = ["TidePolicy"]


class TidePolicy:
    """Refresh the residents at the first step, which is the prefill, and at every n-th.

    Published as TIDE (arXiv 2605.20179): experts in recent use are likely to be used again, so the
    most used ones are kept on the device, and moved only at intervals.

    Args:
        refresh_every: n.
        half_life: number of steps after which a use of an expert has half the weight of a new one.

    Raises:
        InputError: one of them is not positive.
    """

    def __init__(self, refresh_every: int, *, half_life: float = 256.0) -> None:
        self.refresh_every = checked_count("refresh_every", refresh_every, 1)
        if not isinstance(half_life, int | float) or not half_life > 0:
            raise InputError(f"half_life is a positive number of steps, got {half_life!r:.80}")
        self.half_life = float(half_life)

    def due(self, step: int, pools: Sequence[ExpertPool] = ()) -> bool:
        """Whether residents are to be refreshed after step ``step``, the first of which is 0.

        Args:
            step: number of the step.
            pools: never due if all experts of all of them are resident anyway.
        """
        if pools and all(pool.budget == pool.num_experts for pool in pools):
            return False
        return step % self.refresh_every == 0

    @property
    def fading(self) -> float:
        """The weight of a hit one step later."""
        return float(0.5 ** (1.0 / self.half_life))
