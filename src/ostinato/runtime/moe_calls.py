"""The calls for mixtures of experts: where experts live, and which of them runs have called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError, ModelFormatError
from ostinato.lazy import LazyModule
from ostinato.plan.order import Submission
from ostinato.records import dataclass
from ostinato.runtime.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.moe import expert_pool
    from ostinato.moe.expert_pool import MoeResidencyStats
    from ostinato.runtime.arrays import Array
else:
    expert_pool = LazyModule("ostinato.moe.expert_pool")

__all__ = ["MoeCalls"]

Masks = tuple["Array | None", ...]


@dataclass
class _Account:
    """What is known of a graph's experts between two runs.

    Attributes:
        masks: for each layer, which experts are resident; ``None``: nobody said.
        capturing: whether the ids of runs are kept for their user.
        uncounted: the experts that the last run called and the masks of then, until they are
            counted for their user.
        ids: the experts that the last run called, until they are taken.
    """

    masks: Masks
    capturing: bool = False
    uncounted: tuple[list[Array], Masks] | None = None
    ids: list[Array] | None = None


class MoeCalls(Execution):
    """Where experts live, and which were called; a part of :class:`CompiledGraph`.

    A layer is a node that sends tokens to experts, or several that share the ids of the experts;
    layers are counted in the order in which they run. Networks that every token goes through are
    no layers in this sense.

    Which experts were called is read after a run, from memory that the run wrote anyway: runs take
    no longer for it, and bound calls and replays of recordings count as runs too.

    A run with an active extent ``(actual, upper)`` counts no padding. Of a layer whose tokens come
    from inputs of ``upper`` rows and are ``upper * m``, the first ``actual * m`` count, so the
    padded axis is to be their outermost one. All tokens of other layers count.
    """

    _moe: _Account | None = None

    @property
    def moe_layers(self) -> Sequence[ExpertLayer]:
        """The layers of experts, in order: ``name``, ``experts``, and ``places`` if limited."""
        return self._executable.expert_layers

    @property
    def moe_transfers(self) -> ExpertTransfers:
        """How many experts, and bytes, were moved between the device and their file so far."""
        with Submission(self._accesses):
            return self._executable.expert_transfers()

    # -- where experts live ------------------------------------------------------------------------

    def set_moe_resident_experts(self, mask: Any) -> None:
        """Say which experts live on the device, the same ones in every layer.

        What runs compute does not change, to the bit. Where experts live in a file
        (:class:`ostinato.moe.ExpertFile`), those that are not on the device yet are fetched, and
        those that stay are not moved. Masks of single layers are cleared.

        Args:
            mask: a bool for each expert; ``None``: as if nothing had ever been said.

        Raises:
            InputError: its length or dtype differs, or more experts are resident than the device
                has places for. Nothing has changed.
            ModelFormatError: an expert could not be read from its file.
            CaptureError: inside a recording.
        """
        layers = self.moe_layers
        checked = [None if mask is None else _mask(mask, layer) for layer in layers]
        if not layers and mask is not None:
            raise InputError("the graph has no layer of experts")
        self._set_masks(checked)

    def set_moe_resident_experts_per_layer(self, masks: Any) -> None:
        """Say which experts of each layer live on the device; see :meth:`set_moe_resident_experts`.

        A mask of all layers is cleared.

        Args:
            masks: a mask for each layer of :attr:`moe_layers`; ``None``: as if nothing had been
                said.

        Raises:
            InputError: their number, or the length or dtype of one, differs, or more experts of
                a layer are resident than the device has places for. Nothing has changed.
            ModelFormatError, CaptureError: as :meth:`set_moe_resident_experts`.
        """
        layers = self.moe_layers
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
        with self._in_order("setting resident experts moves memory"):
            account = self._observed()
            try:
                account.masks = tuple(self._executable.place_experts(masks))
            except ModelFormatError:  # some have left, and nobody has come
                account.masks = tuple(self._executable.resident_experts())
                raise

    # -- which experts were called -----------------------------------------------------------------

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
        counts = [layer.experts for layer in self.moe_layers]
        whole = isinstance(num_experts, int | np.integer) and not isinstance(num_experts, bool)
        if not whole or num_experts < 1 or (counts and num_experts != max(counts)):
            listed = f"layers have {counts} experts" if counts else "expected a number of experts"
            raise InputError(f"{listed}, got {num_experts!r:.80}")
        with self._in_order("enable_moe_topk_capture reads back"):
            self._observed().capturing = bool(counts)
        return bool(counts)

    def disable_moe_topk_capture(self) -> None:
        """Keep no longer which experts runs call; what was kept and not taken is forgotten.

        Raises:
            CaptureError: inside a recording.
        """
        with self._in_order("disable_moe_topk_capture reads back"):
            account = self._observed()
            account.capturing, account.ids = False, None

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
        with self._in_order("take_moe_topk_capture reads back"):
            account = self._observed()
            taken, account.ids = account.ids, None
            return taken

    def take_moe_residency_stats(self) -> MoeResidencyStats | None:
        """Where the experts lived that the last run called; a second call gives ``None``.

        Returns:
            Counts over all layers, by the masks that were set when it ran. ``None`` when nothing
            has run since the last call, or the graph has no layer of experts.

        Raises:
            CaptureError: inside a recording.
        """
        with self._in_order("take_moe_residency_stats reads back"):
            account = self._observed()
            taken, account.uncounted = account.uncounted, None
        if taken is None:
            return None
        tokens = [
            expert_pool.expert_hits(ids, layer.experts)
            for ids, layer in zip(taken[0], self.moe_layers, strict=True)
        ]
        return expert_pool.MoeResidencyStats.of([*zip(tokens, taken[1], strict=True)])

    def _observed(self) -> _Account:
        """The account, once the last run, if nobody saw it yet, is in it."""
        if self._moe is None:
            self._moe = _Account(tuple(self._executable.resident_experts()))
        account = self._moe
        ids = self._executable.take_expert_ids()
        if ids is not None:
            account.uncounted = ids, account.masks
            account.ids = ids if account.capturing else None
        return account

    def _account_of_clone(self) -> _Account | None:
        """What a clone begins with: the same masks, and no run yet."""
        return None if self._moe is None else _Account(self._moe.masks, self._moe.capturing)


def _mask(mask: Any, layer: ExpertLayer) -> Array:
    """A mask of a layer, as an array of its own.

    Raises:
        InputError: it is none, or more experts are resident than there are places for.
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
    if layer.places is not None and np.count_nonzero(array) > layer.places:
        raise InputError(
            f"{layer.name}: {np.count_nonzero(array)} experts are to be resident, but the budget "
            f"has places for {layer.places}"
        )
    return array
