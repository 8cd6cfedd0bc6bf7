"""The interface of devices: backends, their capabilities and their executables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.agreed import agreed_property
from ostinato.backends.common.experts import ExpertLayer, ExpertsInFile, ExpertTransfers
from ostinato.backends.common.host_context import HostContext
from ostinato.errors import InputError
from ostinato.plan.order import Accesses
from ostinato.records import dataclass

if TYPE_CHECKING:
    import numpy as np

    from ostinato.backends.common.context import Context
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.dtypes import DType
    from ostinato.ir.facts import Fact
    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.stored import ParamSource
    from ostinato.plan.device_array import DeviceArray
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.report import CompiledSizes, CompileReport

#: Inputs, outputs and values of Variables; whether it ran.
RunDirect = Callable[[Sequence[Any], Sequence[Any], Sequence[int]], bool]

#: Inputs and values of Variables; the outputs.
RunFresh = Callable[[list[Any], Sequence[int]], list[Any] | None]

__all__ = ["Backend", "Capabilities", "Executable", "Progress"]

#: A callback that gets the number of compiled kernels, and of all kernels.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Capabilities:
    """The native ops of a backend; all others are decomposed into these, or refused.

    Attributes:
        ops: names of the ops that it computes natively.
        dtypes: element types that it computes with.
        padded_conv: whether convolutions may carry padding; else it is a ``pad`` before them.
        experts_in_file: whether experts may stay in a file; see :meth:`Backend.compile`.
        known_sizes: whether graphs are much faster for sizes that are numbers than for Variables.
        shared_weights: whether an executable shares prepacked weights with others of the same model
            at other sizes; see :meth:`Backend.compile`.
        handles: whether buffers stay on it from run to run; without, ``bind_handle`` returns
            ``False``.
        capture: whether its context records; without, ``begin_graph_capture`` raises.
        asynchronous: whether submissions run on the device itself. Without, a thread of the host
            runs those that are queued.
        in_place_states: whether states are updated in place by slice and row writes.
        inouts: whether graphs may have states in memory that each run is given.
        single_ops: whether its context runs ops one by one; without, sessions are refused.
        row_limits: whether runs leave out the rows beyond an active extent; without, all rows are
            computed.
        expert_residency: whether layers of experts are counted, captured and made resident.
        excluded: pairs of an op and a dtype that it does not take, although other ops do.
    """

    ops: frozenset[str]
    dtypes: frozenset[DType]
    padded_conv: bool = True
    experts_in_file: bool = False
    known_sizes: bool = False
    shared_weights: bool = False
    handles: bool = True
    capture: bool = True
    asynchronous: bool = False
    in_place_states: bool = True
    inouts: bool = False
    single_ops: bool = False
    row_limits: bool = False
    expert_residency: bool = False
    excluded: frozenset[tuple[str, DType]] = frozenset()


def _never(inputs: Sequence[Any], outputs: Sequence[Any], variables: Sequence[int]) -> bool:
    """The ``run_direct`` of executables that have none."""
    return False


class Executable(ABC):
    """A graph compiled for a device, with memory of its own.

    Arrays given to it have been checked: they are C-contiguous and of the declared types, and those
    to be written are writable. Every method but ``run_direct`` and the calls of :meth:`bind` is
    called within a submission that touches :attr:`accesses` and the arrays: one at a time.

    Attributes:
        direct: whether ``run_direct`` runs. Nothing but its owner sets it, in turn with runs.
        minds_block: whether ``direct`` is off while runs take Variables from the variable block.
        run_direct: as :meth:`run`, as a submission of its own, after which ``last`` is the outputs.
            Inputs need not be contiguous: it raises ``ValueError`` where it needs that. Returns
            ``False``, and nothing has run, where ``direct`` is off when its turn has come.
        run_fresh: as ``run_direct``, with outputs that are new arrays, which it returns; ``None``
            where nothing has run. The attribute is ``None`` where there is no such way.
        last: the results of the last run, in turn with runs as well.
    """

    report: CompileReport
    unset: set[str]  #: params that were never written
    direct: bool = False
    minds_block: ClassVar[bool] = False
    run_direct: RunDirect = staticmethod(_never)
    run_fresh: RunFresh | None = None
    last: tuple[np.ndarray[Any, Any], ...] = ()

    @property
    def accesses(self) -> Accesses:
        """The memory that every run touches, besides the arrays that it is given."""
        return Accesses([(id(self), 1, True)])

    def at(self, variables: Sequence[int]) -> Executable:
        """The executable that runs these values of Variables: this one, or a part of it."""
        return self

    @property
    def current(self) -> Executable:
        """The executable of the last run: this one, or a part of it."""
        return self

    @property
    def planned(self) -> Executable:
        """The executable that :meth:`make_plan` describes: this one, or a part of it."""
        return self

    @property
    def compiled_sizes(self) -> tuple[CompiledSizes, ...]:
        """The sizes that it has parts for, the least recently used first."""
        return ()

    def warm(self, variables: Sequence[int]) -> None:
        """Compile the part for these values of Variables, if there is none."""
        return

    @abstractmethod
    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        """A plan that runs this executable, on buffers of its own for inputs and outputs.

        Args:
            facts: the conditions of the graph on values of its Variables.
        """

    @abstractmethod
    def write_params(self, params: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy arrays into the params, and prepack again what depends on them.

        The write is atomic: no run reads some of them written and others not.
        """

    @abstractmethod
    def run(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        variables: Sequence[int],
    ) -> None:
        """Run once: read ``inputs`` and write ``outputs``, in the graph's order.

        Raises:
            ValueError: an output overlaps another array in memory. Nothing has run.
        """

    def run_consuming(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        variables: Sequence[int],
        consumed: Collection[int],
    ) -> None:
        """As :meth:`run`; nothing reads the inputs at positions ``consumed`` afterwards.

        They are arrays that :meth:`resident` or :meth:`empty` returned, so a device may let results
        take their memory.
        """
        self.run(inputs, outputs, variables)

    def run_many(
        self,
        runs: Sequence[
            tuple[Sequence[np.ndarray[Any, Any]], Sequence[np.ndarray[Any, Any]], Sequence[int]]
        ],
    ) -> None:
        """Run several times, in this order: the same as as many calls of :meth:`run`.

        A device may copy the arrays of one run while it computes another.

        Args:
            runs: the inputs, outputs and values of Variables of each.
        """
        for inputs, outputs, variables in runs:
            self.run(inputs, outputs, variables)

    def run_buffers(self, inputs: int) -> Callable[[list[Any], Sequence[int]], None]:
        """A function that runs on a list of buffers, for inputs and then outputs, and Variables.

        Args:
            inputs: the number of inputs.
        """

        def run(buffers: list[Any], variables: Sequence[int]) -> None:
            self.run(buffers[:inputs], buffers[inputs:], variables)

        return run

    @abstractmethod
    def bind(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        variables: Sequence[int],
    ) -> Callable[[], None]:
        """A callable that runs on these arrays any number of times, without further checks.

        Each call is a submission of its own. While its thread records, it is recorded. In
        dev-state mode it reads the Variables that the context's block has from there; see
        :meth:`Context.set_dev_state_mode`.

        Raises:
            ValueError: as :meth:`run`.
        """

    # -- arrays on the device; by default, all are the host's --------------------------------------

    def adopt(self, array: Any) -> DeviceArray:
        """An array in CUDA memory, which has ``__dlpack__``, as one that runs take.

        Raises:
            InputError: this device cannot use that memory.
        """
        raise InputError(
            f"a {type(array).__name__} is in the memory of a GPU, which this device does not read; "
            "copy it to the host"
        )

    def resident(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A checked array of which there is no other user, where the device keeps handles."""
        return array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A new array, where the device keeps handles."""
        import numpy as np

        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A new array of zeros, in memory that runs use without a copy where there is such."""
        import numpy as np

        return np.zeros(shape, dtype)

    @abstractmethod
    def read_state(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of the state's contents between two runs."""

    @abstractmethod
    def write_state(self, name: str, array: np.ndarray[Any, Any] | None) -> None:
        """Copy ``array`` into the state; ``None`` gives it its initial value again."""

    @abstractmethod
    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """Hint that of ``upper`` leading rows of the inputs, only ``actual`` are in use.

        It holds for the runs of threads that have no hint of their own; see :meth:`push_limit`.

        The contents of the other rows of outputs of ``upper`` rows are undefined after later runs,
        those of bound calls included; all else is as without a hint. An executable may compute all
        rows regardless.

        Args:
            extent: ``(actual, upper)``; ``None``: all rows are in use again.
        """

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        """Set the hint for the runs of the calling thread alone, until :meth:`pop_limit`.

        An executable that overrides neither method computes all rows.
        """
        return

    def pop_limit(self) -> None:
        """Restore the calling thread's hint before the last :meth:`push_limit`."""
        return

    # -- sizes that depend on data; by default, there are none -------------------------------------

    @property
    def live_sizes(self) -> dict[str, int]:
        """The values that the last run gave data-dependent Variables, by name."""
        return {}

    # -- experts; by default, an executable has no layers of them ----------------------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        """The layers that route tokens to experts, in execution order."""
        return ()

    def take_expert_ids(self) -> list[np.ndarray[Any, Any]] | None:
        """The experts that the last run called, once; then ``None`` until the next run.

        Returns:
            For each layer an int64 array of the shape of its ids, within the experts there are.
        """
        return None

    def place_experts(
        self, masks: Sequence[np.ndarray[Any, Any] | None]
    ) -> Sequence[np.ndarray[Any, Any] | None]:
        """Make these experts of each layer, and no others, resident; results stay the same.

        Args:
            masks: a bool for each expert, at most as many of them true as there are slots;
                ``None``: the choice is the device's.

        Returns:
            The masks, with ``None`` replaced if the device chose residents.

        Raises:
            ModelFormatError: an expert could not be read from its file.
        """
        return masks

    def resident_experts(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """For each layer, a mask of the resident experts; ``None``: all at all times."""
        return [None] * len(self.expert_layers)

    def expert_transfers(self) -> ExpertTransfers:
        """The transfers between the device and the file of experts so far."""
        return ExpertTransfers()

    # -- lifetime ----------------------------------------------------------------------------------

    @abstractmethod
    def clone(self, context: Context | None = None) -> Executable:
        """A copy with memory and states of its own, which begin as copies of these.

        Params and prepacked weights are shared copy-on-write: a write on one side never shows on
        the other.

        Args:
            context: the command queue of the copy, of the same device; by default the same one.
        """

    @abstractmethod
    def discard(self) -> None:
        """Give back the memory of intermediate buffers, until the next run.

        Recordings of runs are dropped: see :meth:`MemoryOrder.memory_changes`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back all memory that is not shared, for good.

        From now on every other method, and every bound call, raises :class:`PlanError`. Recordings
        of runs are dropped: see :meth:`MemoryOrder.memory_changes`.
        """

    @property
    @abstractmethod
    def arena(self) -> memoryview:
        """The memory of intermediate buffers, writable; at its end, of results not returned.

        A device with memory of its own has results only, in memory of the host.
        """

    @property
    @abstractmethod
    def arena_address(self) -> int:
        """The address of the arena's first byte."""

    @property
    @abstractmethod
    def result_offsets(self) -> Sequence[int]:
        """For each output, the offset in the arena of room for its largest size."""


class Backend(ABC):
    """A kind of device."""

    device: Device

    @abstractmethod
    def __init__(self, device: Device, threads: int | None = None) -> None:
        """Open ``device``; ``threads`` is for devices that run on threads of the host."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The native ops and dtypes, and further abilities."""

    @agreed_property
    def context(self) -> Context:
        """The command queue of all that is compiled here.

        By default, one that can neither record nor run single ops.
        """
        return HostContext(self.device)

    @staticmethod
    @abstractmethod
    def count() -> int:
        """The number of devices of this kind; 0 if its packages are missing.

        It is called to list devices, so it loads no framework: where only that would say how many
        there are, it returns 1 if the framework is installed, and opening a device that is not
        there raises :class:`~ostinato.errors.DeviceUnavailableError`.
        """

    @classmethod
    def probe(cls) -> int:
        """The number of devices, as found before one is opened; by default, :meth:`count`.

        It may load a framework.

        Raises:
            DeviceUnavailableError: the framework cannot be loaded, or finds no device.
        """
        return cls.count()

    @abstractmethod
    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
        siblings: Sequence[Executable] | None = None,
    ) -> Executable:
        """Compile ``graph``; ``params`` are copied, or kept to be read again.

        Args:
            graph: the graph.
            params: the values of its params.
            options: switches of the compiler.
            progress: called as kernels are compiled.
            experts: further params, the matrices of experts, that stay in a file; given only to a
                backend with the capability ``experts_in_file``.
            siblings: executables of the same model at other sizes. Prepacked weights of the same
                form are shared with one of them, copy-on-write; given only to a backend with the
                capability ``shared_weights``, and ``None`` where there will be none.

        Raises:
            InputError: such a param has readers other than layers of experts, or there is not
                enough memory for a single expert.
            UnsupportedOpError: every node that the device has no way to compute.
        """
