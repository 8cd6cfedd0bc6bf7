"""A loop of steps that keeps the most used experts resident on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.moe.expert_pool import ExpertPool
from ostinato.moe.policy import TidePolicy
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.moe.expert_pool import Array
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["ResidencyCounters", "ResidencyLoop"]


@dataclass(frozen=True)
class ResidencyCounters:
    """Statistics of a :class:`ResidencyLoop` so far.

    Attributes:
        steps: number of steps.
        refreshes: number of steps after which residents were refreshed.
        promotions, demotions: numbers of experts made resident, and evicted.
        hits, misses: calls of experts that were resident at the time, and that were not.
        bytes_moved: bytes read to make experts resident; 0 if all experts are in memory anyway.
        bytes_staged: bytes read for calls of non-resident experts.
    """

    steps: int
    refreshes: int
    promotions: int
    demotions: int
    hits: int
    misses: int
    bytes_moved: int
    bytes_staged: int

    @property
    def hit_rate(self) -> float:
        """The share of calls whose expert was resident; 1 before the first."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 1.0


class ResidencyLoop:
    """Runs a graph step by step, and keeps the most used experts resident on the device.

    The results are those of :meth:`CompiledGraph.run`, to the bit, whichever experts are resident.

    Args:
        compiled: a graph with layers of experts; its capture of expert ids is switched on.
        pools: an :class:`ExpertPool` for each layer, or one for all layers, which then have the
            same residents. Their residents are made resident on the device.
        policy: the schedule of refreshes.

    Raises:
        InputError: the graph has no layer of experts, or the pools do not fit its layers.
    """

    def __init__(
        self, compiled: CompiledGraph, pools: ExpertPool | Sequence[ExpertPool], policy: TidePolicy
    ) -> None:
        self.compiled = compiled
        self.pools = (pools,) if isinstance(pools, ExpertPool) else tuple(pools)
        self.policy = policy
        self._merged = isinstance(pools, ExpertPool)
        self._check_pools()
        self._fading_hits = [np.zeros(pool.num_experts) for pool in self.pools]
        self._steps = self._refreshes = 0
        layers = compiled.moe_layers
        compiled.enable_moe_topk_capture(max(layer.experts for layer in layers))
        self._place()
        self._moved_before = compiled.moe_transfers

    def _check_pools(self) -> None:
        layers = self.compiled.moe_layers
        if not layers:
            raise InputError("the graph has no layer of experts")
        if not isinstance(self.policy, TidePolicy):
            raise InputError(f"expected a TidePolicy, got {type(self.policy).__name__}")
        if not self._merged and len(self.pools) != len(layers):
            raise InputError(f"expected {len(layers)} pools, one for each layer")
        for number, layer in enumerate(layers):
            pool = self.pools[0 if self._merged else number]
            if not isinstance(pool, ExpertPool) or pool.num_experts != layer.experts:
                raise InputError(f"{layer.name}: expected a pool of {layer.experts}, got {pool!r}")

    def step(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """Run once; then, if due by the policy, refresh the residents by the uses so far.

        Returns:
            The outputs: fresh arrays.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`CompiledGraph.run`.
            ModelFormatError: an expert could not be read from its file.
        """
        outputs = self.compiled.run(inputs)
        self.after_run()
        return outputs

    def after_run(self) -> None:
        """Count a step that was run otherwise, such as by a bound call, and refresh if due.

        Raises:
            ModelFormatError: an expert could not be read from its file.
        """
        ids = self.compiled.take_moe_topk_capture()
        if ids is not None:
            self._count(ids)
        if self.policy.due(self._steps, self.pools):
            self._refresh()
        self._steps += 1

    def _count(self, ids: Sequence[Array]) -> None:
        if self._merged:
            tokens = [sum(self.pools[0].observe(layer) for layer in ids)]
        else:
            tokens = [pool.observe(layer) for pool, layer in zip(self.pools, ids, strict=True)]
        pairs = zip(self._fading_hits, tokens, strict=True)
        self._fading_hits = [self.policy.fading * hits + new for hits, new in pairs]

    def _refresh(self) -> None:
        self._refreshes += 1
        moved = False
        for pool, hits in zip(self.pools, self._fading_hits, strict=True):
            moved |= pool.refresh_from_hits(hits)
        if moved:
            self._place()

    def _place(self) -> None:
        if self._merged:
            self.compiled.set_moe_resident_experts(self.pools[0].mask)
        else:
            self.compiled.set_moe_resident_experts_per_layer([p.mask for p in self.pools])

    @property
    def counters(self) -> ResidencyCounters:
        """The statistics so far."""
        moved, before = self.compiled.moe_transfers, self._moved_before
        return ResidencyCounters(
            self._steps,
            self._refreshes,
            sum(pool.promotions for pool in self.pools),
            sum(pool.demotions for pool in self.pools),
            sum(pool.hits for pool in self.pools),
            sum(pool.misses for pool in self.pools),
            moved.bytes_moved - before.bytes_moved,
            moved.bytes_staged - before.bytes_staged,
        )
