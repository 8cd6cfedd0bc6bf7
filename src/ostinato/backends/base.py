"""What a device must offer, and how the devices of this machine are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.backends.common.experts import ExpertLayer, ExpertsInFile, ExpertTransfers
from ostinato.backends.common.host_context import HostContext
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
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.report import CompileReport

#: Inputs, outputs and values of Variables; whether it ran.
RunDirect = Callable[[Sequence[Any], Sequence[Any], Sequence[int]], bool]

__all__ = ["Backend", "Capabilities", "Executable", "Progress"]

#: Told how many of how many kernels are compiled.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Capabilities:
    """What a backend takes as it is; everything else is rewritten into it, or refused.

    Attributes:
        ops: names of the ops that it computes natively.
        dtypes: element types that it computes with.
        padded_conv: whether a convolution may carry padding, or wants a ``pad`` before it.
        experts_in_file: whether experts may stay in a file; see :meth:`Backend.compile`.
        handles: whether buffers stay on it from run to run; without, ``bind_handle`` gives
            ``False``.
        capture: whether its context records; without, ``begin_graph_capture`` raises.
        asynchronous: whether it runs by itself what was submitted, while the processor goes on.
            Without, queued runs are made by a thread of the processor's.
        in_place_states: whether a state that is updated by a slice or row write is not copied.
    """

    ops: frozenset[str]
    dtypes: frozenset[DType]
    padded_conv: bool = True
    experts_in_file: bool = False
    handles: bool = True
    capture: bool = True
    asynchronous: bool = False
    in_place_states: bool = True


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
        run_direct: as :meth:`run`, as a submission of its own, after which ``last`` is the outputs.
            Returns ``False``, and nothing has run, where ``direct`` is off when its turn has come.
        last: the results of the last run, in turn with runs as well.
    """

    report: CompileReport
    unset: set[str]  #: params that were never written
    direct: bool = False
    run_direct: RunDirect = staticmethod(_never)
    last: tuple[np.ndarray[Any, Any], ...] = ()

    @property
    def accesses(self) -> Accesses:
        """The memory that every run touches, beside the arrays that it is given."""
        return Accesses([(id(self), 1, True)])

    @abstractmethod
    def make_plan(self, facts: Sequence[Fact]) -> ExecutionPlan:
        """A plan that runs this, on buffers of its own for inputs and outputs.

        Args:
            facts: the conditions of the graph on values of its Variables.
        """

    @abstractmethod
    def write_params(self, params: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy arrays into the params, and prepare anew what depends on them.

        No run sees some of them written and others not.
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

    @abstractmethod
    def bind(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        variables: Sequence[int],
    ) -> Callable[[], None]:
        """A callable that runs on these arrays, again and again, without further checks.

        Each call is a submission of its own. While its thread records, it is recorded. In
        dev-state mode it reads the Variables that the context's block has from there; see
        :meth:`Context.set_dev_state_mode`.

        Raises:
            ValueError: as :meth:`run`.
        """

    @abstractmethod
    def read_state(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of what the state holds between two runs."""

    @abstractmethod
    def write_state(self, name: str, array: np.ndarray[Any, Any] | None) -> None:
        """Copy ``array`` into the state; ``None`` gives it its initial value again."""

    @abstractmethod
    def limit_rows(self, extent: tuple[int, int] | None) -> None:
        """A hint that of ``upper`` leading rows of the inputs, only ``actual`` are in use.

        It holds for the runs of threads that have none of their own; see :meth:`push_limit`.

        What later runs, those of bound calls too, leave in the other rows of outputs of ``upper``
        rows is undefined; all else is as if nothing had been hinted. It is no mistake to compute
        all rows regardless.

        Args:
            extent: ``(actual, upper)``; ``None``: all rows are in use again.
        """

    def push_limit(self, extent: tuple[int, int] | None) -> None:
        """The hint for the runs of the calling thread alone, until :meth:`pop_limit`.

        An executable that overrides neither computes all rows within the two.
        """
        return

    def pop_limit(self) -> None:
        """Go back to the calling thread's hint before the last :meth:`push_limit`."""
        return

    # -- experts; an executable that overrides nothing has no layers of them -----------------------

    @property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        """The layers that send tokens to experts, in the order in which they run."""
        return ()

    def take_expert_ids(self) -> list[np.ndarray[Any, Any]] | None:
        """The experts that the last run called, once; then ``None`` until something runs.

        Returns:
            For each layer an int64 array of the shape of its ids, within the experts there are.
        """
        return None

    def place_experts(
        self, masks: Sequence[np.ndarray[Any, Any] | None]
    ) -> Sequence[np.ndarray[Any, Any] | None]:
        """Have these experts of each layer, and no others, on the device; runs compute the same.

        Args:
            masks: a bool for each expert, as many of them true as there are places at most;
                ``None``: whichever the device likes.

        Returns:
            The masks, with ``None`` replaced if the device knows which experts it has.

        Raises:
            ModelFormatError: an expert could not be read from its file.
        """
        return masks

    def resident_experts(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """For each layer, which experts are on the device; ``None``: all at all times."""
        return [None] * len(self.expert_layers)

    def expert_transfers(self) -> ExpertTransfers:
        """What was moved between the device and the file that experts live in."""
        return ExpertTransfers()

    # -- life --------------------------------------------------------------------------------------

    @abstractmethod
    def clone(self, context: Context | None = None) -> Executable:
        """Another one with memory and states of its own, which begin as copies of these.

        Args:
            context: what it submits to, of the same device; by default the same.

        Params, and what is prepared from them, are shared until one side writes a param, and no
        longer: what one side writes never shows on the other.
        """

    @abstractmethod
    def discard(self) -> None:
        """Give back the memory of what lives within a run, until the next run writes it.

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
        """The memory that a run works in, writable. Its end is for results that nobody keeps."""

    @property
    @abstractmethod
    def arena_address(self) -> int:
        """The address of the arena's first byte."""

    @property
    @abstractmethod
    def result_offsets(self) -> Sequence[int]:
        """For each output, where in the arena there is room for it, at its largest size."""


class Backend(ABC):
    """A kind of device."""

    device: Device

    @abstractmethod
    def __init__(self, device: Device, threads: int | None = None) -> None:
        """Open ``device``; ``threads`` is for devices that are threads."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it takes as it is."""

    @cached_property
    def context(self) -> Context:
        """The command queue that everything compiled here runs through.

        A backend that overrides nothing has one that can neither record nor run ops one by one.
        """
        return HostContext(self.device)

    @staticmethod
    @abstractmethod
    def count() -> int:
        """How many devices of this kind are present; 0 when its packages are missing."""

    @abstractmethod
    def compile(
        self,
        graph: BaseGraph,
        params: Mapping[str, ParamSource],
        options: CompileOptions,
        progress: Progress | None = None,
        *,
        experts: ExpertsInFile | None = None,
    ) -> Executable:
        """Compile ``graph``; ``params`` are copied in, or kept to be read again by whoever asks.

        Args:
            graph, params, options: what to compile, and how.
            progress: told how far it is.
            experts: further params, the matrices of experts, that stay in a file. Only a backend
                whose capabilities say so is ever given any.

        Raises:
            InputError: such a param is read by more than layers of experts, or there is not enough
                memory for a single expert.
            UnsupportedOpError: every node that the device has no way to compute.
        """
