"""Experts that stay in the files of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import InputError
from ostinato.ir.stored import ExpertSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.stored import ExpertTensor
    from ostinato.ir.types import TensorType
    from ostinato.llm.checkpoints.checkpoint import Checkpoint
    from ostinato.llm.weights import Weight

__all__ = ["EXPERT_MATRICES", "CheckpointExperts"]

#: Endings of the names of experts' matrices.
EXPERT_MATRICES = tuple(f".experts.{part}.weight" for part in ("gate", "up", "down"))


class CheckpointExperts(ExpertSource):
    """The matrices of experts in the files of a checkpoint, for :meth:`Session.compile`.

    Args:
        checkpoint: the model.

    Raises:
        InputError: the model has no experts.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._weights = {
            name: weight
            for name, weight in checkpoint.weights.items()
            if name.endswith(EXPERT_MATRICES)
        }
        if not self._weights:
            raise InputError(f"{checkpoint.name!r} has no experts: a budget for them is of no use")

    def tensors(self, params: Mapping[str, TensorType]) -> Mapping[str, ExpertTensor]:
        """See :meth:`~ostinato.ir.stored.ExpertSource.tensors`.

        Raises:
            InputError: no file has the matrices of some experts as they are computed.
        """
        return {name: _in_files(w) for name, w in self._weights.items() if name in params}


def _in_files(weight: Weight) -> ExpertTensor:
    found = weight.source.matrices(weight.name)
    if found is None:
        raise InputError(
            f"the experts {weight.name!r} can not stay in their files, which do not hold them as "
            f"they are computed, in {weight.format or weight.source.dtype}: load them without a "
            'budget, or a model in another format; weights="keep" narrows none'
        )
    return found
