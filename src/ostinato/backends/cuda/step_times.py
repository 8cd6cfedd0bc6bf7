"""Times of the steps of a run: events of the driver around each, and the logs of segments."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ostinato.backends.cuda.graphs import Graphs
from ostinato.plan.profile import PartTime, TimedStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Stream
    from ostinato.backends.cuda.memory import DeviceBlock
    from ostinato.backends.cuda.part_logs import StampedStep
    from ostinato.backends.cuda.ready_steps import ReadySteps
    from ostinato.plan.profile import StepTime

__all__ = ["StepTimes"]


class StepTimes:
    """The times of the steps of a run, added up where a step runs often.

    Args:
        steps: of the run.
        forms: by step, the form that logs the ends of parts, if it has one.
        stream: takes the work.
        graphs: whether steps are launched at once, so that the time between two launches does not
            count.

    Attributes:
        found: by step, its time.
    """

    def __init__(
        self,
        steps: ReadySteps,
        forms: Sequence[StampedStep | None],
        stream: Stream,
        *,
        graphs: bool,
    ) -> None:
        self._steps = steps
        self._forms = forms
        self._stream = stream
        self._graphs = graphs
        self.found: list[StepTime] = [
            0.0 if form is None else TimedStep(0.0, [PartTime(0, 0, 0, 0, n) for n in form.blocks])
            for form in forms
        ]

    def measure(
        self, driver: Driver, positions: range, slots: Sequence[int], variables: int
    ) -> None:
        """Launch steps, wait, and add the time that each took; see :meth:`ReadySteps.launch`."""
        events = [driver.create_event(timed=True) for _ in range(len(positions) + 1)]
        stream = self._stream.handle
        logs = {
            position: (form, form.new_log(self._stream.gpu))
            for position in positions
            if (form := self._forms[position]) is not None
        }

        def launch() -> None:
            driver.record(events[0], stream)
            for position, event in zip(positions, events[1:], strict=True):
                if position in logs:
                    form, log = logs[position]
                    addresses = self._steps.addresses(position, slots)
                    given = [*addresses, log.address, variables]
                    driver.launch(form.function, form.launch, given, stream)
                else:
                    self._steps.launch(driver, slots, variables, stream, [position])
                driver.record(event, stream)

        graphs = Graphs(self._stream, 1, after=0)
        try:
            if self._graphs:
                graphs.launch(driver, (), launch)
            else:
                launch()
            driver.synchronize(stream)
            for position, (before, after) in zip(positions, pairwise(events), strict=True):
                self._add(position, driver.elapsed(before, after), logs.get(position))
        finally:
            for event in events:
                driver.destroy_event(event)

    def _add(
        self, position: int, elapsed: float, logged: tuple[StampedStep, DeviceBlock] | None
    ) -> None:
        """Add the seconds of a launch, after which its log has been written."""
        before = self.found[position]
        if not isinstance(before, TimedStep):
            self.found[position] = before + elapsed
            return
        assert logged is not None
        form, log = logged
        parts = [a + b for a, b in zip(before.parts, form.times(log), strict=True)]
        self.found[position] = TimedStep(before.elapsed + elapsed, parts)
