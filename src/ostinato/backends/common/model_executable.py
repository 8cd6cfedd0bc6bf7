"""The weights and the experts of an executable: what all devices with such memory do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np

from ostinato.errors import InputError
from ostinato.ir.stored import elements
from ostinato.plan.buffer import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.experts import ExpertLayer, ExpertTransfers
    from ostinato.backends.common.program_image import ProgramImage, ProgramPreparation
    from ostinato.backends.common.program_memory import ProgramMemory
    from ostinato.backends.common.weights import Weights
    from ostinato.ir.stored import ExpertTensor, ParamSource

__all__ = ["ModelExecutable"]

Array = np.ndarray[Any, Any]

M = TypeVar("M")
S = TypeVar("S", bound=tuple[Any, ...])


class PlacedLayers(Protocol):
    """Layers of experts, of which some may be in a file."""

    def descriptions(self) -> tuple[ExpertLayer, ...]:
        """See :attr:`Executable.expert_layers`."""

    def place(self, masks: Sequence[Array | None], /) -> Sequence[Array | None]:
        """See :meth:`Executable.place_experts`."""

    def resident(self) -> Sequence[Array | None]:
        """See :meth:`Executable.resident_experts`."""

    def transfers(self) -> ExpertTransfers:
        """See :meth:`Executable.expert_transfers`."""


class ModelExecutable(ABC, Generic[M, S]):
    """Weights that executables of one model share, and experts that stay in a file.

    Attributes:
        memory: the memory of the fixed slots.
        unset: see :class:`~ostinato.backends.base.Executable`.
    """

    memory: ProgramMemory[M, S]
    unset: set[str]
    _image: ProgramImage[S]
    _tensors: Mapping[str, ExpertTensor]
    _weight_form: object

    @property
    @abstractmethod
    def _layers(self) -> PlacedLayers:
        """The layers of experts."""

    @abstractmethod
    def _held(self, location: tuple[int, int], nbytes: int) -> memoryview:
        """The bytes of a param that is kept in its own form."""

    @abstractmethod
    def _write(self, params: Mapping[str, Array], stale: Sequence[ProgramPreparation[S]]) -> None:
        """Write params; see :class:`~ostinato.backends.common.weights.WriteParams`."""

    # -- weights -----------------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, Array]) -> None:
        if stored := [name for name in params if name in self._tensors]:
            raise InputError(f"param {stored[0]!r} is in the file of experts: it is not written")
        self.memory.weights.write(params, self._write)

    def _weights_of(
        self, siblings: Sequence[Self], params: Mapping[str, ParamSource]
    ) -> Weights[M, S] | None:
        """The weights of a sibling that has the same ones in the same form."""
        for other in siblings:
            if other._weight_form == self._weight_form and not other.unset:
                with other.memory.guard:
                    alike = params.keys() == other._image.params.keys()
                    if alike and all(other._holds(*param) for param in params.items()):
                        other.memory.check_open()
                        return other.memory.weights.share()
        return None

    def _holds(self, name: str, source: ParamSource) -> bool:
        """Whether a param has these contents."""
        weights = self.memory.weights
        if name in weights.unpacked:
            return weights.unpacked.holds(name, source)
        nbytes, location = self._image.params[name]
        assert location is not None
        given = memoryview(bytes_of(np.ascontiguousarray(elements(source))))
        return _same(self._held(location, nbytes), given)

    # -- experts -----------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        return self._layers.descriptions()

    def place_experts(self, masks: Sequence[Array | None]) -> Sequence[Array | None]:
        self.memory.check_open()
        return self._layers.place(masks)

    def resident_experts(self) -> Sequence[Array | None]:
        return self._layers.resident()

    def expert_transfers(self) -> ExpertTransfers:
        self.memory.check_open()
        return self._layers.transfers()


def _same(one: memoryview, other: memoryview) -> bool:
    """Whether the bytes are the same; word by word, which takes a quarter of the time."""
    words = len(one) // 8
    if len(one) != len(other) or one[8 * words :] != other[8 * words :]:
        return False
    first, second = (np.frombuffer(each, np.uint64, words) for each in (one, other))
    return np.array_equal(first, second)
