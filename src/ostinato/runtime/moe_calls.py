"""The calls for mixtures of experts: where experts live, and which of them runs have called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.lazy import LazyModule
from ostinato.plan.order import Submission
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.moe import expert_pool
    from ostinato.moe.expert_pool import MoeResidencyStats
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.execution import Execution
else:
    expert_pool = LazyModule("ostinato.moe.expert_pool")

__all__ = ["ExpertMethods", "MoeCalls"]

Masks = tuple["Array | None", ...]


@dataclass
class _Account:
    """The record of a graph's experts between two runs.

    Attributes:
        masks: for each layer, which experts are resident; ``None``: not set.
        capturing: whether the ids of runs are kept for their user.
        uncounted: the experts that the last run called and the masks of then, until they are
            counted for their user.
        ids: the experts that the last run called, until they are taken.
    """

    masks: Masks
    capturing: bool = False
    uncounted: tuple[list[Array], Masks] | None = None
    ids: list[Array] | None = None


class MoeCalls:
    """The residency of one compiled graph's experts, and the record of those that runs called.

    A layer is a node that sends tokens to experts, or several that share the ids of the experts;
    layers are counted in the order in which they run. Networks that every token goes through are
    no layers in this sense.

    Which experts were called is read after a run, from memory that the run wrote anyway: runs take
    no longer for it, and bound calls and replays of recordings count as runs too.

    A run with an active extent ``(actual, upper)`` counts no padding. Of a layer whose tokens come
    from inputs of ``upper`` rows and are ``upper * m``, the first ``actual * m`` count, so the
    padded axis is to be their outermost one. All tokens of other layers count.

    Args:
        execution: the graph's runs.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._account: _Account | None = None

    def clone(self, execution: Execution) -> MoeCalls:
        """The same for a clone: it has the same masks, and nothing has run yet."""
        twin = MoeCalls(execution)
        if self._account is not None:
            twin._account = _Account(self._account.masks, self._account.capturing)
        return twin

    @property
    def layers(self) -> Sequence[ExpertLayer]:
        """See :meth:`CompiledGraph.moe_layers`."""
        return self._execution.executable.expert_layers

    @property
    def transfers(self) -> ExpertTransfers:
        """See :meth:`CompiledGraph.moe_transfers`."""
        with Submission(self._execution.accesses):
            return self._execution.executable.expert_transfers()

    # -- where experts live ------------------------------------------------------------------------

    def set_resident(self, mask: Any) -> None:
        """See :meth:`CompiledGraph.set_moe_resident_experts`."""
        layers = self.layers
        checked = [None if mask is None else _mask(mask, layer) for layer in layers]
        if not layers and mask is not None:
            raise InputError("the graph has no layer of experts")
        self._set_masks(checked)

    def set_resident_per_layer(self, masks: Any) -> None:
        """See :meth:`CompiledGraph.set_moe_resident_experts_per_layer`."""
        layers = self.layers
        if masks is None:
            masks = [None] * len(layers)
        elif not isinstance(masks, list | tuple | np.ndarray) or len(masks) != len(layers):
            raise InputError(f"expected a list of {len(layers)} masks, one for each layer")
        self._set_masks(
            [
                None if mask is None else _mask(mask, layer)
                for mask, layer in zip(masks, layers, strict=True)
            ]
        )

    def _set_masks(self, masks: Sequence[Array | None]) -> None:
        with self._execution.in_order("setting resident experts moves memory"):
            account = self._observed()
            try:
                account.masks = tuple(self._execution.executable.place_experts(masks))
            except ModelFormatError:  # some were evicted, and none was staged
                account.masks = tuple(self._execution.executable.resident_experts())
                raise

    # -- which experts were called -----------------------------------------------------------------

    def enable_capture(self, num_experts: int) -> bool:
        """See :meth:`CompiledGraph.enable_moe_topk_capture`."""
        counts = [layer.experts for layer in self.layers]
        whole = isinstance(num_experts, int | np.integer) and not isinstance(num_experts, bool)
        if not whole or num_experts < 1 or (counts and num_experts != max(counts)):
            listed = f"layers have {counts} experts" if counts else "expected a number of experts"
            raise InputError(f"{listed}, got {num_experts!r:.80}")
        with self._execution.in_order("enable_moe_topk_capture reads back"):
            self._observed().capturing = bool(counts)
        return bool(counts)

    def disable_capture(self) -> None:
        """See :meth:`CompiledGraph.disable_moe_topk_capture`."""
        with self._execution.in_order("disable_moe_topk_capture reads back"):
            account = self._observed()
            account.capturing, account.ids = False, None

    def take_capture(self) -> list[Array] | None:
        """See :meth:`CompiledGraph.take_moe_topk_capture`."""
        with self._execution.in_order("take_moe_topk_capture reads back"):
            account = self._observed()
            taken, account.ids = account.ids, None
            return taken

    def take_stats(self) -> MoeResidencyStats | None:
        """See :meth:`CompiledGraph.take_moe_residency_stats`."""
        with self._execution.in_order("take_moe_residency_stats reads back"):
            account = self._observed()
            taken, account.uncounted = account.uncounted, None
        if taken is None:
            return None
        tokens = [
            expert_pool.expert_hits(ids, layer.experts)
            for ids, layer in zip(taken[0], self.layers, strict=True)
        ]
        return expert_pool.MoeResidencyStats.of([*zip(tokens, taken[1], strict=True)])

    def _observed(self) -> _Account:
        """The account, which the last run is added to if it is not in it yet."""
        if self._account is None:
            self._account = _Account(tuple(self._execution.executable.resident_experts()))
        account = self._account
        ids = self._execution.executable.take_expert_ids()
        if ids is not None:
            account.uncounted = ids, account.masks
            account.ids = ids if account.capturing else None
        return account


def _mask(mask: Any, layer: ExpertLayer) -> Array:
    """A mask of a layer, as an array of its own.

    Raises:
        InputError: it is none, or more experts are resident than there are slots for.
    """
    try:
        array = np.array(mask)
    except ValueError:
        raise InputError(f"{layer.name}: a mask is a list of bools") from None
    if array.dtype != np.bool_ or array.shape != (layer.experts,):
        raise InputError(
            f"{layer.name}: a mask is a bool for each of {layer.experts} experts, got "
            f"{array.dtype}{list(array.shape)}"
        )
    if layer.slots is not None and np.count_nonzero(array) > layer.slots:
        raise InputError(
            f"{layer.name}: {np.count_nonzero(array)} experts are to be resident, but the budget "
            f"has slots for {layer.slots}"
        )
    return array


class ExpertMethods:
    """The methods of a compiled graph for mixtures of experts."""

    _experts: MoeCalls

    @property
    def moe_layers(self) -> Sequence[ExpertLayer]:
        """The layers of experts, in order: ``name``, ``experts``, and ``slots`` if limited."""
        return self._experts.layers

    @property
    def moe_transfers(self) -> ExpertTransfers:
        """The numbers of experts and bytes moved between the device and their file so far."""
        return self._experts.transfers

    def set_moe_resident_experts(self, mask: Any) -> None:
        """Say which experts live on the device, the same ones in every layer.

        What runs compute does not change, to the bit. Where experts live in a file
        (:class:`ostinato.moe.ExpertFile`), those that are not on the device yet are fetched, and
        those that stay are not moved. Masks of single layers are cleared.

        Args:
            mask: a bool for each expert; ``None``: as if nothing had ever been said.

        Raises:
            InputError: its length or dtype differs, or more experts are resident than the device
                has slots for. Nothing has changed.
            ModelFormatError: an expert could not be read from its file.
            CaptureError: inside a recording.
        """
        self._experts.set_resident(mask)

    def set_moe_resident_experts_per_layer(self, masks: Any) -> None:
        """Say which experts of each layer live on the device; see :meth:`set_moe_resident_experts`.

        A mask of all layers is cleared.

        Args:
            masks: a mask for each layer of :attr:`moe_layers`; ``None``: as if nothing had been
                said.

        Raises:
            InputError: their number, or the length or dtype of one, differs, or more experts of
                a layer are resident than the device has slots for. Nothing has changed.
            ModelFormatError, CaptureError: as :meth:`set_moe_resident_experts`.
        """
        self._experts.set_resident_per_layer(masks)

    def enable_moe_topk_capture(self, num_experts: int) -> bool:
        """Keep, from now on, which experts each run calls; see :meth:`take_moe_topk_capture`.

        Args:
            num_experts: how many experts a layer has; of several layers, the one with most.

        Returns:
            Whether there is anything to keep: ``False`` for a graph without layers of experts.

        Raises:
            InputError: the number differs.
            CaptureError: inside a recording.
        """
        return self._experts.enable_capture(num_experts)

    def disable_moe_topk_capture(self) -> None:
        """Keep no longer which experts runs call; what was kept and not taken is forgotten.

        Raises:
            CaptureError: inside a recording.
        """
        self._experts.disable_capture()

    def take_moe_topk_capture(self) -> list[Array] | None:
        """The experts that the last run called; a second call gives ``None``.

        Returns:
            For each layer an int64 array of the shape of its ids, ``[tokens, k]`` for :meth:`moe`,
            the numbers within the experts there are; only the tokens in use where the run had an
            active extent. ``None`` when nothing has run since the last
            call, or since the capture was enabled, or it never was.

        Raises:
            CaptureError: inside a recording.
        """
        return self._experts.take_capture()

    def take_moe_residency_stats(self) -> MoeResidencyStats | None:
        """The residency of the experts that the last run called; a second call gives ``None``.

        Returns:
            Counts over all layers, by the masks that were set when it ran. ``None`` when nothing
            has run since the last call, or the graph has no layer of experts.

        Raises:
            CaptureError: inside a recording.
        """
        return self._experts.take_stats()
