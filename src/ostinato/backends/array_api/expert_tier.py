"""Experts of which some are on the device: the matrices of all in the host's memory, and slots.

A run stages the experts that it misses behind those that are resident; the functions of a layer
take the places of its experts for their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.functions import StageFunctions
from ostinato.backends.array_api.lowering import lower_in_stages
from ostinato.backends.common.experts import ExpertTransfers
from ostinato.backends.common.extents import expert_numbers
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.array_api.framework import Framework
    from ostinato.backends.array_api.resident_experts import ResidentLayer
    from ostinato.ir.graph import Value
    from ostinato.ir.stored import ExpertTensor

__all__ = ["ExpertTier", "HostExperts"]

Array = np.ndarray[Any, Any]


class HostExperts:
    """The matrices of all experts in a file, which clones share.

    Args:
        framework: has the arrays of the device.
        layers: those of which some experts are on the device.
        tensors: by param, its matrices in a file.

    Attributes:
        framework, layers: see above.
        matrices: by param, those of all its experts.

    Raises:
        ModelFormatError: they could not be read.
    """

    def __init__(
        self,
        framework: Framework,
        layers: Sequence[ResidentLayer],
        tensors: Mapping[str, ExpertTensor],
    ) -> None:
        self.framework = framework
        self.layers = tuple(layers)
        self.matrices = {name: tensor.read() for name, tensor in tensors.items()}
        self._writers: dict[tuple[Any, ...], _Writer] = {}
        for layer in self.layers:
            for value in layer.matrices:
                key = self._form(layer, value)
                if key not in self._writers:
                    self._writers[key] = _Writer(framework, *key)

    @staticmethod
    def _form(layer: ResidentLayer, value: Value) -> tuple[Any, ...]:
        return value.dtype.name, (layer.places, *value.shape[1:])

    def empty(self, layer: ResidentLayer) -> list[Any]:
        """New places of a layer's matrices."""
        found = []
        for value in layer.matrices:
            _, shape = self._form(layer, value)
            zeros = np.zeros(shape, value.dtype.numpy)
            found.append(self.framework.from_host(zeros, copy=True))
        return found

    def write(self, layer: ResidentLayer, places: list[Any], expert: int, place: int) -> None:
        """Exchange the places of a layer's matrices for those with an expert at one of them."""
        for number, value in enumerate(layer.matrices):
            writer = self._writers[self._form(layer, value)]
            matrix = self.matrices[value.name][expert : expert + 1]
            places[number] = writer.write(places[number], matrix, place)


class _Writer:
    """A compiled function that writes a matrix into one of the places of matrices, in place."""

    def __init__(self, framework: Framework, dtype: str, shape: tuple[int, ...]) -> None:
        graph = Graph("place of an expert")
        places = graph.input("places", shape, dtype)
        matrix = graph.input("matrix", (1, *shape[1:]), dtype)
        at = graph.input("at", (), "int64")
        graph.set_outputs([graph.dynamic_update_slice(places, matrix, (at, 0, 0))])
        (stage,) = lower_in_stages(graph, framework.on_host)[0].stages
        self._framework = framework
        self._function = StageFunctions(framework, 1).get(stage, {}, [places])
        self._order = [(places, matrix, at).index(value) for value in stage.operands]

    def write(self, places: Any, matrix: Array, at: int) -> Any:
        """The places with a matrix at one of them."""
        framework = self._framework
        number = np.array(at, np.int64)
        given = places, framework.snapshot(matrix), framework.snapshot(number)
        (found,) = self._function([given[position] for position in self._order])
        return found


class ExpertTier:
    """The residents of a program's layers: at first, the first experts.

    Args:
        host: the matrices of all experts.

    Attributes:
        host: see above.
    """

    def __init__(self, host: HostExperts) -> None:
        self.host = host
        self._promotions = self._demotions = self._moved = self._staged = 0
        self._tables = {layer: np.full(layer.experts, -1, np.int64) for layer in host.layers}
        self._masks = {layer: np.zeros(layer.experts, bool) for layer in host.layers}
        with host.framework.scope():
            self._places = {layer: host.empty(layer) for layer in host.layers}
        self.begin(self.first_experts())

    def first_experts(self) -> dict[ResidentLayer, Array]:
        """The masks of the default residents."""
        return {layer: np.arange(layer.experts) < layer.slots for layer in self.host.layers}

    def begin(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make the initial experts resident, without counting transfers."""
        self.place(masks)
        self._promotions = self._demotions = self._moved = 0

    def place(self, masks: Mapping[ResidentLayer, Array]) -> None:
        """Make these experts of each layer resident; those that are in a slot keep it.

        Args:
            masks: a bool for each expert; at most as many are true as there are slots.
        """
        with self.host.framework.scope():
            for layer, mask in masks.items():
                former, table = self._masks[layer], self._tables[layer]
                self._promotions += int(np.count_nonzero(mask & ~former))
                self._demotions += int(np.count_nonzero(former & ~mask))
                table[~mask] = -1
                free = np.setdiff1d(np.arange(layer.slots), table)
                for expert, slot in zip(np.flatnonzero(mask & (table < 0)), free, strict=False):
                    self.host.write(layer, self._places[layer], int(expert), int(slot))
                    table[expert] = slot
                    self._moved += layer.expert_bytes
                self._masks[layer] = mask.copy()
                self.host.framework.launch(self._places[layer])

    def stage(self, layer: ResidentLayer, ids: Array) -> list[Any]:
        """Bring the experts that a run misses.

        Returns:
            The places of the experts with these ids, as an array of the framework, and the layer's
            matrices by place. They are read before the next call for this layer.
        """
        numbers, table = expert_numbers(ids, layer.experts), self._tables[layer].copy()
        called = np.unique(numbers)
        missing = called[table[called] < 0]
        for place, expert in enumerate(missing.tolist(), layer.slots):
            self.host.write(layer, self._places[layer], expert, place)
            table[expert] = place
        self.host.framework.launch(self._places[layer])
        self._staged += len(missing) * layer.expert_bytes
        places = np.ascontiguousarray(table[numbers]).reshape(ids.shape)
        return [self.host.framework.from_host(places, copy=True), *self._places[layer]]

    def resident(self, layer: ResidentLayer) -> Array:
        """The mask of a layer's residents."""
        return self._masks[layer].copy()

    def residents(self) -> dict[ResidentLayer, Array]:
        """The masks of all layers' residents."""
        return {layer: mask.copy() for layer, mask in self._masks.items()}

    def transfers(self) -> ExpertTransfers:
        """The transfers so far."""
        return ExpertTransfers(self._promotions, self._demotions, self._moved, self._staged)
