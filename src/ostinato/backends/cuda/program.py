"""Programs: the steps of an image on a stream, as CUDA graphs or kernel by kernel."""

from __future__ import annotations

import ctypes
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ostinato.backends.cuda._graph_calls import Epoch, GraphRun
from ostinato.backends.cuda.abi import SIGNAL, SIGNAL_LAUNCH
from ostinato.backends.cuda.graphs import Graphs
from ostinato.backends.cuda.mapped import mapped_externals
from ostinato.backends.cuda.pipeline import Pipeline
from ostinato.backends.cuda.places import RunMemory, Transfer
from ostinato.backends.cuda.ready_steps import ReadySteps
from ostinato.backends.cuda.staging import Staging
from ostinato.backends.cuda.step_times import StepTimes
from ostinato.errors import VariableError
from ostinato.lower.control import ControlKind
from ostinato.plan.order import NOTHING, Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ostinato.backends.common.live_sizes import LiveSizes
    from ostinato.backends.common.program_image import External
    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Gpu, Library, Stream
    from ostinato.backends.cuda.image import Step
    from ostinato.backends.cuda.memory import DeviceBlock
    from ostinato.backends.cuda.part_logs import StampedStep
    from ostinato.backends.cuda.places import Places
    from ostinato.plan.profile import StepTime

__all__ = ["CudaProgram"]

#: Graphs of a program that are kept, for the addresses that it ran on last.
_MOST_GRAPHS = 8


class CudaProgram:
    """See :class:`~ostinato.backends.common.program_runner.RunnableProgram`.

    A run is one launch of a CUDA graph, from the second run on the same addresses on; the first is
    launched kernel by kernel. Where control flow decides which steps come next, every stretch of
    steps between two decisions is a graph.

    Args:
        stream: takes the work.
        steps: of a run.
        code: the libraries of the kernels, by symbol.
        sizes: the Variables, and the sizes of inputs and outputs.
        externals: inputs, then outputs; their slots follow the fixed ones.
        fixed: returns the present blocks of the fixed slots.
        graphs: whether to launch graphs.
        touches: further accesses of every run.
        stamped: returns the forms of segments that profiles run, by the symbols of the segments.

    Attributes:
        sizes: see above.
        memory: finds that of runs.
        epoch: the time since memory of its was last exchanged or given back.
        on_run: called after each run but those of :meth:`graph_run`, with the values of its
            Variables.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Sequence[Step],
        code: Mapping[str, Library],
        sizes: LiveSizes,
        externals: Sequence[External],
        fixed: Callable[[], Sequence[DeviceBlock]],
        *,
        graphs: bool = True,
        touches: Sequence[tuple[int, int, bool]] = (),
        stamped: Callable[[], Mapping[str, StampedStep]] = dict,
    ) -> None:
        self._stamped = stamped
        self.sizes = sizes
        self._touches = tuple(touches)
        self._gpu: Gpu = stream.gpu
        self._stream = stream
        self._steps = ReadySteps(self._gpu, steps, code)
        self._signal = code[SIGNAL].function(SIGNAL, 0) if SIGNAL in code else 0
        self._externals = tuple(externals)
        self._decides = any(step.control for step in steps)
        self._problems = {step.failure: step.problem for step in steps if step.failure}
        loops = sum(step.control == ControlKind.LOOP for step in steps)
        self._words = len(sizes.variables) + loops
        resets = self._decides or bool(self._problems)
        self._new_staging = partial(
            Staging,
            self._gpu,
            externals,
            self._words,
            mapped_externals(steps, externals, copies=resets or self._words > 0),
            resets=resets,
        )
        self._staging = self._new_staging()
        self.memory = RunMemory(sizes, self._externals, fixed, self._staging)
        self._pipeline: Pipeline | None = None
        decisions = sum(step.control != 0 for step in steps)
        self._graphs = Graphs(stream, _MOST_GRAPHS * (1 + decisions)) if graphs else None
        self.epoch = Epoch()
        self._repeated: tuple[Places | None, GraphRun | None] = None, None  # of the last run
        self.on_run: Callable[[Sequence[int]], None] | None = None

    def begin_epoch(self) -> None:
        """Have all runs find their memory anew: some of it is exchanged or given back."""
        self.epoch.end()
        self.epoch = Epoch()
        self.memory.forget()
        self._repeated = None, None

    def discard(self) -> None:
        """Give back the memory of its own, until the next run."""
        self.begin_epoch()
        self._staging.discard()
        self.memory.discard()
        self._pipeline = None
        if self._graphs is not None:
            self._graphs.clear()

    @cached_property
    def accesses(self) -> Accesses:
        return Accesses([(id(self), 1, True), *self._touches])

    @property
    def externals(self) -> Sequence[External]:
        """Inputs, then outputs."""
        return self._externals

    @cached_property
    def inputs(self) -> int:
        """The number of inputs; the other externals are outputs."""
        return sum(not external.written for external in self._externals)

    # -- runs --------------------------------------------------------------------------------------

    def run(self, blocks: Sequence[Any], variables: Sequence[int]) -> None:
        """Run on inputs, then outputs: arrays of the host, or blocks of the device.

        Raises:
            VariableError: a size that depends on data is out of bounds.
        """
        self.run_at(self.places(blocks, variables), variables)

    def places(self, blocks: Sequence[Any], variables: Sequence[int]) -> Places:
        """The memory of a run on inputs and outputs; see :meth:`RunMemory.places`."""
        return self.memory.places(blocks, variables)

    def run_at(self, places: Places, variables: Sequence[int]) -> None:
        """Run on memory that was found by :meth:`places`; see :meth:`run`."""
        known, run = self._repeated
        same = known == places
        if run is None or not same or not self._ran_natively(run, variables):
            self._carry_out(places, variables, self._decide if self._decides else self._launch_all)
            run = self.graph_run(self.epoch, places, (), NOTHING, (), given=True) if same else None
        self._repeated = places, run

    def _ran_natively(self, run: GraphRun, variables: Sequence[int]) -> bool:
        """Run as one native call; whether that was possible."""
        with self._stream.guard:
            ran = run.run(variables)
        if ran and self.on_run is not None:
            self.on_run(variables)
        return ran

    def graph_run(
        self,
        epoch: Epoch,
        places: Places,
        variables: Sequence[int],
        accesses: Accesses,
        owners: Sequence[Any],
        *,
        given: bool = False,
    ) -> GraphRun | None:
        """The run of :meth:`run_at` as one native call.

        Args:
            epoch: the one in which ``places`` was found.
            places, variables: see :meth:`run_at`; it has run on them before.
            accesses: the memory that it touches.
            owners: of all its memory but that of the graph and of staged arrays.
            given: whether each call gives the values of Variables, instead of ``variables``.

        Returns:
            ``None``, where it is more than a graph between copies by the processor.
        """
        calls, graphs = self._gpu.driver.entry_points, self._graphs
        if calls is None or graphs is None or self._decides or self._problems:
            return None
        graph = graphs.find(_graph_key(places.slots))
        if graph is None or places.copied_in or places.copied_out:
            return None
        staging, before = self._staging, list(places.before)
        flag = staging.signal[0] if self._signal else 0
        words = None if given else staging.constant_words(variables)
        if words is not None:
            copied = Transfer(ctypes.addressof(words), staging.host.address, ctypes.sizeof(words))
            before.append(copied)
        return GraphRun(
            epoch,
            calls,
            self._gpu.refuse,
            (self._gpu.context, graph.handle, self._stream.handle, flag),
            before,
            places.after,
            accesses,
            (graph, staging.host, words, *owners),
            (staging.host_variables, self._words if given else 0),
        )

    def direct_run(self, epoch: Epoch, places: Places) -> GraphRun | None:
        """A run on arrays and values of Variables that each call brings, after one on these places.

        ``None``, where not each array is copied by the processor, whole, or what a run uses of the
        arena depends on Variables.
        """
        sizes = [external.nbytes for external in self._externals]
        transfers = [*places.before, *places.after]
        copied = [transfer.nbytes for transfer in transfers]
        if self.on_run is not None or self.sizes.partial or 0 in sizes or copied != sizes:
            return None
        return self.graph_run(epoch, places, (), self.accesses, (self,), given=True)

    def run_many(self, runs: Sequence[tuple[Sequence[Any], Sequence[int]]]) -> None:
        """Run several times, in this order, the copies of one run beside the kernels of another.

        Args:
            runs: see :meth:`run` for the arguments of each.
        """
        carried = any(external.inout for external in self._externals)  # from run to run
        if len(runs) < 2 or carried or self._decides or self._problems:
            for blocks, variables in runs:
                self.run(blocks, variables)
            return
        if self._pipeline is None:
            stagings = self._staging, self._new_staging()
            self._pipeline = Pipeline(self._stream, stagings, self._launch_all)
        pipeline = self._pipeline
        with self._stream.guard, self._gpu.current() as driver:
            try:
                for blocks, variables in runs:
                    places = self.memory.places(blocks, variables, pipeline.free_staging)
                    pipeline.run(driver, places, variables)
                    if self.on_run is not None:
                        self.on_run(variables)
                pipeline.finish(driver)
            finally:  # else work in flight might use memory that is given back
                pipeline.wait(driver)

    def run_profiled(self, blocks: Sequence[Any], variables: Sequence[int]) -> Sequence[StepTime]:
        """Run; return the time of each step."""
        stamped, steps = self._stamped(), self._steps
        forms = [stamped.get(steps[position].code) for position in range(len(steps))]
        times = StepTimes(steps, forms, self._stream, graphs=self._graphs is not None)

        def measure(driver: Driver, positions: range, slots: Sequence[int]) -> None:
            times.measure(driver, positions, slots, self._staging.variables)

        def launch(driver: Driver, slots: list[int]) -> None:
            self._staging.copy_in(driver, self._stream.handle)
            for positions in self._stretches(driver, slots, measure):
                measure(driver, positions, slots)
            self._copy_out(driver)

        self._carry_out(self.places(blocks, variables), variables, launch)
        return times.found

    def perform(
        self, steps: Sequence[Step], code: Mapping[str, Library], slots: Mapping[int, int]
    ) -> None:
        """Run other steps once, on the given addresses of slots, and wait."""
        stream, ready = self._stream.handle, ReadySteps(self._gpu, steps, code)
        with self._stream.guard, self._gpu.current() as driver:
            self._staging.write_variables(())
            self._staging.copy_in(driver, stream)
            ready.launch(driver, slots, self._staging.variables, stream)
            driver.synchronize(stream)

    def _carry_out(
        self, places: Places, variables: Sequence[int], work: Callable[[Driver, list[int]], None]
    ) -> None:
        """A run: ``work`` launches its steps, between the copies of its inputs and outputs."""
        staging, stream = self._staging, self._stream.handle
        staging.write_variables(variables)
        for outside, inside, nbytes in places.before:
            ctypes.memmove(inside, outside, nbytes)
        with self._stream.guard, self._gpu.current() as driver:
            try:
                for outside, inside, nbytes in places.copied_in:
                    driver.copy(inside, outside, nbytes, stream)
                work(driver, places.slots)
                if self._problems:  # first: results of a run that failed are not copied
                    driver.synchronize(stream)
                    self._check()
                for outside, inside, nbytes in places.copied_out:
                    driver.copy(outside, inside, nbytes, stream)
            finally:  # else work in flight might use memory that is given back
                driver.synchronize(stream)
        for outside, inside, nbytes in places.after:
            ctypes.memmove(outside, inside, nbytes)
        if self.on_run is not None:
            self.on_run(variables)

    def _check(self) -> None:
        """Raise the failure of a size that depends on data, if there was one."""
        code, found = self._staging.failure
        if code:
            raise VariableError(f"{self._problems[code]}, got {found}")

    # -- launches ----------------------------------------------------------------------------------

    def _launch_all(self, driver: Driver, slots: list[int], staging: Staging | None = None) -> None:
        """All steps of a program without control flow, with the copies of staged memory."""
        used = self._staging if staging is None else staging

        def launch() -> None:
            stream, status = self._stream.handle, bool(self._problems)
            used.copy_in(driver, stream)
            self._steps.launch(driver, slots, used.variables, stream)
            used.copy_out(driver, stream, status=status)
            if self._signal:
                driver.launch(self._signal, SIGNAL_LAUNCH, [*used.signal, used.variables], stream)

        self._launch_graph(driver, _graph_key(slots), launch)

    def _launch_graph(
        self, driver: Driver, key: tuple[int, ...], launch: Callable[[], None]
    ) -> None:
        """Launch work as one graph, unless graphs are off; see :meth:`Graphs.launch`."""
        if self._graphs is None:
            launch()
        else:
            self._graphs.launch(driver, key, launch)

    def _decide(self, driver: Driver, slots: list[int]) -> None:
        """The steps of a program with control flow, a stretch at a time."""
        self._staging.copy_in(driver, self._stream.handle)
        for positions in self._stretches(driver, slots, self._launch):
            if positions:
                launch = partial(self._launch, driver, positions, slots)
                self._launch_graph(driver, (positions.start, *slots), launch)
        self._copy_out(driver)

    def _stretches(
        self,
        driver: Driver,
        slots: Sequence[int],
        launch: Callable[[Driver, range, Sequence[int]], None],
    ) -> Iterator[range]:
        """The stretches of steps between decisions, in the order in which they run.

        Args:
            driver: the driver.
            slots: the addresses of all slots.
            launch: launches the steps that decide.
        """
        position = 0
        while position < len(self._steps):
            end = position
            while end < len(self._steps) and not self._steps[end].control:
                end += 1
            yield range(position, end)
            if end == len(self._steps):
                return
            step, goes_on = self._steps[end], True
            if step.code:
                launch(driver, range(end, end + 1), slots)
                self._staging.copy_status(driver, self._stream.handle)
                driver.synchronize(self._stream.handle)
                self._check()
                goes_on = self._staging.goes_on
            position = step.following(end, goes_on)

    def _copy_out(self, driver: Driver) -> None:
        self._staging.copy_out(driver, self._stream.handle, status=bool(self._problems))

    def _launch(self, driver: Driver, positions: range, slots: Sequence[int]) -> None:
        stream, variables = self._stream.handle, self._staging.variables
        self._steps.launch(driver, slots, variables, stream, positions)

    # -- as part of other work ---------------------------------------------------------------------

    @property
    def mergeable(self) -> bool:
        """Whether it may be a part of a graph with others.

        Not if the host decides which steps run, or has to end the run where a size is refused.
        """
        return not self._decides and not self._problems and self._graphs is not None

    @property
    def words(self) -> int:
        """The number of its Variables, iterations of loops included."""
        return self._words

    @property
    def signal(self) -> int:
        """The kernel that shows the host the end of a run; 0: it has none."""
        return self._signal

    def fixed_addresses(self) -> list[int]:
        """The addresses of the fixed slots."""
        return self.memory.fixed_addresses()

    def launch_on(self, driver: Driver, slots: Sequence[int], variables: int, stream: int) -> None:
        """Launch all steps of a program that is mergeable.

        Args:
            driver: the driver.
            slots: the addresses of all slots.
            variables: the address of the first Variable.
            stream: takes the work.
        """
        self._steps.launch(driver, slots, variables, stream)


def _graph_key(slots: Sequence[int]) -> tuple[int, ...]:
    """The key of the graph of a whole run on some memory."""
    return (0, *slots)
