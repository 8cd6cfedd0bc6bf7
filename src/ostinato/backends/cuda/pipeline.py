"""Runs of a program one behind the other, with the copies of one beside the kernels of another.

Two runs are under way at a time, each with memory of its own for inputs, outputs and Variables.
Inputs of the next run are copied on one stream, and outputs of the last one on another, while
kernels run on a third, in order: they share the memory of intermediate values.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

from ostinato.backends.cuda.gpu import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.places import Places
    from ostinato.backends.cuda.staging import Staging

__all__ = ["Pipeline"]


class Pipeline:
    """The streams of a program's runs, and the run whose results are still to be copied.

    Args:
        kernels: the stream of kernels; its guard is held while runs are under way.
        stagings: the memory of the copies of every other run.
        launch: launches the steps of a run on these slots, with the copies of staged memory.
    """

    def __init__(
        self,
        kernels: Stream,
        stagings: tuple[Staging, Staging],
        launch: Callable[[Driver, list[int], Staging], None],
    ) -> None:
        self._kernels = kernels
        self._inputs, self._outputs = Stream(kernels.gpu), Stream(kernels.gpu)
        self._stagings = stagings
        self._launch = launch
        self._number = 0
        self._unfinished: Places | None = None
        with kernels.gpu.current() as driver:
            self._copied, *computed = [driver.create_event(timed=False) for _ in range(3)]
        self._computed = computed
        for event in (self._copied, *computed):
            weakref.finalize(self, kernels.gpu.release, "destroy_event", event).atexit = False

    @property
    def free_staging(self) -> Staging:
        """The memory of the next run's copies, which no run uses."""
        return self._stagings[self._number % 2]

    def run(self, driver: Driver, places: Places, variables: Sequence[int]) -> None:
        """Submit a run in :attr:`free_staging`; then wait for the one before, and finish it."""
        staging = self.free_staging
        staging.write_variables(variables)
        for outside, inside, nbytes in places.before:
            ctypes.memmove(inside, outside, nbytes)
        for outside, inside, nbytes in places.copied_in:
            driver.copy(inside, outside, nbytes, self._inputs.handle)
        if places.copied_in:
            driver.record(self._copied, self._inputs.handle)
            driver.wait(self._kernels.handle, self._copied)
        self._launch(driver, places.slots, staging)
        driver.record(self._computed[self._number % 2], self._kernels.handle)
        self.finish(driver)
        self._unfinished = places
        self._number += 1

    def finish(self, driver: Driver) -> None:
        """Copy the results of the last run but the one just submitted, if there is one."""
        places, self._unfinished = self._unfinished, None
        if places is None:
            return
        stream = self._outputs.handle
        driver.wait(stream, self._computed[(self._number - 1) % 2])
        for outside, inside, nbytes in places.copied_out:
            driver.copy(outside, inside, nbytes, stream)
        driver.synchronize(stream)
        for outside, inside, nbytes in places.after:
            ctypes.memmove(outside, inside, nbytes)

    def wait(self, driver: Driver) -> None:
        """Wait for all work that is under way, and forget the run that was not finished."""
        self._unfinished = None
        for stream in (self._inputs, self._kernels, self._outputs):
            driver.synchronize(stream.handle)
