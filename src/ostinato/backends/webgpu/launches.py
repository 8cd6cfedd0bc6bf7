"""Launches of a program's kernels on some memory: bind groups, offsets and the Variables' block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.regions import host_address
from ostinato.backends.webgpu.image import LaunchStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.webgpu.commands import Launch
    from ostinato.backends.webgpu.gpu import Gpu, Pipeline
    from ostinato.backends.webgpu.image import AnyStep
    from ostinato.backends.webgpu.memory import DeviceBlock

__all__ = ["Launches"]

#: Uniform blocks are arrays of vectors of four words.
_VECTOR = 16


class Launches:
    """A program's kernels on the memory of its slots, ready to be encoded any number of times.

    All that changes from run to run is the block of Variables and the numbers of workgroups.

    Args:
        gpu: the device.
        steps: of the program.
        pipelines: by step, its kernel; ``None``: it is no launch.
        slots: the block and the offset of each slot.
        words: the number of Variables, iterations of loops included.

    Attributes:
        by_step: by step, its launch.
    """

    def __init__(
        self,
        gpu: Gpu,
        steps: Sequence[AnyStep],
        pipelines: Sequence[Pipeline | None],
        slots: Mapping[int, tuple[DeviceBlock, int]],
        words: int,
    ) -> None:
        self._gpu = gpu
        self._slots = slots
        self._pipelines = pipelines  # kept: launches have their handles only
        self._values: list[int] | None = None
        self._groups: dict[tuple[Any, ...], Any] = {}
        driver = gpu.driver
        found = [step for step in steps if isinstance(step, LaunchStep)]
        window = _VECTOR * max([1, *(len(step.arguments) // 4 + 1 for step in found)])
        stride = -(-window // gpu.offset_alignment) * gpu.offset_alignment
        table = np.zeros((max(len(found), 1), stride // 4), np.uint32)
        for row, step in zip(table, found, strict=False):
            row[: len(step.arguments)] = self._offsets(step)
        with gpu.calls():
            self._table = driver.uniform_buffer(table.nbytes)
            driver.write(self._table, 0, host_address(table), table.nbytes)
            self._variables = driver.uniform_buffer(_VECTOR * max(1, -(-words // 2)))
            self._uniforms = driver.uniforms(self._table, window, self._variables)
            self.by_step: list[Launch | None] = []
            launched = 0
            for each, pipeline in zip(steps, pipelines, strict=True):
                if pipeline is None or not isinstance(each, LaunchStep):
                    self.by_step.append(None)
                    continue
                group = self._group(each)
                self.by_step.append(
                    driver.launch(pipeline.object, group, self._uniforms, launched * stride)
                )
                launched += 1

    def write_variables(self, values: Sequence[int]) -> None:
        """Set the values of all Variables for what is submitted from now on."""
        if not values or self._values == values:
            return
        block = np.array(values, np.int64)
        with self._gpu.calls():
            self._gpu.driver.write(self._variables, 0, host_address(block), block.nbytes)
        self._values = list(values)

    def _offsets(self, step: LaunchStep) -> list[int]:
        """The offsets of a step's arguments, each from the beginning of its first buffer."""
        part = self._gpu.target.part_bytes
        return [
            (self._slots[slot][1] + offset - number * part) // unit
            for (slot, offset), number, unit in zip(
                step.arguments, step.first, step.units, strict=True
            )
        ]

    def _group(self, step: LaunchStep) -> Any:
        """The bind group of a step's buffers, the same for steps on the same ones."""
        key = step.buffers, step.writable
        if key not in self._groups:
            buffers = [self._buffer(slot, number) for slot, number in step.buffers]
            self._groups[key] = self._gpu.driver.group(buffers, step.writable)
        return self._groups[key]

    def _buffer(self, slot: int, number: int) -> Any:
        """A buffer of a slot; an array that is smaller than it may be has fewer of them."""
        found = self._slots[slot][0].buffers
        return found[number] if number < len(found) else self._gpu.driver.storage_buffer(_VECTOR)
