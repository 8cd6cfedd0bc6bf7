"""Experts that stay in the files of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import InputError
from ostinato.ir.stored import ExpertSource
from ostinato.llm.weights import expert_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.stored import ExpertTensor
    from ostinato.ir.types import TensorType
    from ostinato.llm.checkpoints.checkpoint import Checkpoint

__all__ = ["CheckpointExperts"]

#: Endings of the names of experts' matrices.
_MATRICES = tuple(f".experts.{part}.weight" for part in ("gate", "up", "down"))


class CheckpointExperts(ExpertSource):
    """The matrices of experts in the files of a checkpoint, for :meth:`Session.compile`.

    Args:
        checkpoint: the model.

    Raises:
        InputError: the model has no experts.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._weights = {
            name: weight for name, weight in checkpoint.weights.items() if name.endswith(_MATRICES)
        }
        if not self._weights:
            raise InputError(f"{checkpoint.name!r} has no experts: a budget for them is of no use")

    def tensors(self, params: Mapping[str, TensorType]) -> Mapping[str, ExpertTensor]:
        """See :meth:`~ostinato.ir.stored.ExpertSource.tensors`.

        Raises:
            InputError: experts are in no file as they are, or in several.
        """
        return {
            name: expert_tensor(weight) for name, weight in self._weights.items() if name in params
        }
