"""A compiled graph: what users hold and run."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.common.mutex import Mutex
from ostinato.dtypes import DType
from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import check_shape
from ostinato.plan.device_array import on_host
from ostinato.plan.order import arrays_touched
from ostinato.runtime.active_extent import ActiveExtents
from ostinato.runtime.arrays import checked_mapping, shape_text
from ostinato.runtime.handle_calls import HandleCalls, HandleMethods
from ostinato.runtime.handles import output_index
from ostinato.runtime.moe_calls import ExpertMethods, MoeCalls
from ostinato.runtime.queued_calls import QueuedCalls, QueueMethods
from ostinato.runtime.sizes import given_sizes
from ostinato.runtime.typed import check_typed_inputs, check_typed_param, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ostinato.backends.base import Capabilities, Executable
    from ostinato.backends.common.context import Context
    from ostinato.backends.device import Device
    from ostinato.ir.binding import VariableValues
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.plan.report import CompiledSizes
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.execution import Execution, PreparedRun

__all__ = ["CompiledGraph"]


class CompiledGraph(HandleMethods, QueueMethods, ExpertMethods):
    """A graph compiled for a device. Made by :meth:`Session.compile`.

    It may be used from many threads: its calls take effect one after the other, in the order in
    which they were made; see ``docs/order.md``.

    Args:
        execution: its runs.
        capabilities: gives the device's.
        experts: the record of its experts; by default, a new one.

    Attributes:
        inputs, outputs, params: specs by name: ``name``, ``shape``, ``dtype``.
    """

    def __init__(
        self,
        execution: Execution,
        capabilities: Callable[[], Capabilities],
        experts: MoeCalls | None = None,
    ) -> None:
        signature = execution.signature
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self.params = signature.params
        self._execution = execution
        self._capabilities = capabilities
        self._extents = ActiveExtents(execution)
        self._handles = HandleCalls(execution, capabilities)
        self._queue = QueuedCalls(execution, self._extents)
        self._experts = experts or MoeCalls(execution)
        self._planning = Mutex()
        self._plan: ExecutionPlan | None = None
        self._planned: Executable | None = None

    # -- what it is --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self._execution.context.device

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a run, in order, and their memory.

        Where the graph is compiled for sizes, it is that of the last run, or of a later bound call.

        Raises:
            PlanError: nothing was compiled yet.
        """
        executable = self._execution.executable
        with self._planning:
            if self._plan is None or self._planned is not executable.planned:
                self._plan = executable.make_plan(self._execution.signature.facts)
                self._planned = executable.planned
            return self._plan

    @property
    def capabilities(self) -> Capabilities:
        """The ops, dtypes and abilities of the device."""
        return self._capabilities()

    def explain(self) -> str:
        """A report of the nodes that are native, rewritten or fused, and the reasons."""
        return str(self._execution.executable.report)

    # -- sizes -------------------------------------------------------------------------------------

    @property
    def specializations(self) -> tuple[CompiledSizes, ...]:
        """The sizes that it is compiled for now, the least recently used first.

        One with empty ``sizes`` is for all within the bounds of Variables; a graph without open
        sizes has no other.
        """
        return self._execution.executable.compiled_sizes

    def warm(self, sizes: Mapping[str, Any]) -> None:
        """Compile for sizes before a run brings them; nothing runs.

        Args:
            sizes: by the model's name of a dim, or by Variable, an int; or by input, its shape. Of
                an input whose contents the graph depends on, the contents.

        Raises:
            InputError, VariableError: a size is unknown, missing or out of bounds.
            CaptureError: inside a recording.
        """
        self._execution.context.refuse_while_capturing("warm compiles")
        signature, executable = self._execution.signature, self._execution.executable
        shapes, arrays = given_sizes(signature, sizes)
        live = signature.live(shapes, arrays=arrays)
        with self._execution.in_order("warm compiles"):
            executable.warm(live.variables)

    # -- arrays ------------------------------------------------------------------------------------

    def zeros(self, shape: Sequence[int], dtype: Any) -> Array:
        """A new array of zeros, in memory that runs use as it is.

        Runs read and write it, as an input or output of its shape, without a copy.

        Args:
            shape: of the array; a sequence of ints.
            dtype: of its elements.

        Returns:
            A :class:`~ostinato.plan.device_array.DeviceArray` on a GPU, by CUDA or WebGPU; NumPy's
            on other devices, and before a graph that is compiled for sizes has any.

        Raises:
            InputError: there is no such shape or dtype.
            CaptureError: inside a recording.
        """
        self._execution.context.refuse_while_capturing("zeros takes memory")
        try:
            sizes, parsed = check_shape("zeros", shape), DType.parse(dtype)
        except GraphError as error:
            raise InputError(str(error)) from None
        numbers = tuple(size for size in sizes if isinstance(size, int))
        if len(numbers) < len(sizes):
            raise InputError(f"zeros: a size is an int, got {shape_text(sizes)}")
        return self._execution.executable.zeros(numbers, parsed.numpy)

    # -- params ------------------------------------------------------------------------------------

    def set_param(self, name: str, array: Any) -> None:
        """Write a weight; it stays until written again.

        Raises:
            InputError: no such param, or the shape or dtype differs. Nothing has been written.
            CaptureError: inside a recording.
        """
        self.set_params(_single(name, array))

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Write several weights at once; no run sees some of them without the others.

        What kernels prepare from weights, such as packed matrices, is prepared here.

        Raises:
            InputError, CaptureError: see :meth:`set_param`.
        """
        given = checked_mapping("param", params, self.params)
        with self._execution.in_order("set_params writes memory", arrays_touched(given.values())):
            self._execution.write_params(given)

    def set_param_typed(self, name: str, data: Any, dtype: Any) -> None:
        """Write a weight from raw little-endian bytes.

        Args:
            name: the param.
            data: all its elements in C order: bytes, or any contiguous buffer.
            dtype: what the bytes are; each value is converted exactly to the param's dtype, which
                means that it is rounded once where that is a narrower float, and refused where it
                would become another number (see :mod:`ostinato.runtime.typed`).

        Raises:
            InputError: no such param, too few or too many bytes, an unknown dtype, or a value that
                the param's dtype can not hold. Nothing has been written.
            CaptureError: inside a recording.
        """
        checked_mapping("param", _single(name, data), self.params)
        self.set_params({name: check_typed_param(self.params[name], data, dtype)})

    # -- running -----------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        out: Any = None,
        variables: VariableValues | None = None,
    ) -> list[Array]:
        """Run once.

        Args:
            inputs: an array for each input, by name. Sizes given by Variables may differ from run
                to run, within their bounds.
            out: arrays to write the outputs into, in order or by name; nothing is then allocated.
                One for an output whose shape depends on data has the largest shape; what comes
                back is the part of it in use, which lies at its start, without gaps.
            variables: values of Variables that no input's shape gives: ``{"pos": 3}``, or
                ``[pos.bind(3)]``.

        Returns:
            The outputs, in order: fresh arrays, or those of ``out``.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype; or a param was
                never set; or ``out`` does not fit. Nothing has run.
            VariableError: a size, or a value, is out of its Variable's bounds; or a Variable has no
                value, or one that contradicts a shape.
            CaptureError: inside a recording, which can not read results back.
        """
        if (ran := self._execution.run_quick(inputs, out, variables)) is not None:
            return ran
        return self._execution.run(inputs, out, variables=variables)

    def run_read_outputs(
        self,
        inputs: Mapping[str, Any] | None,
        read_indices: Iterable[int] | None,
        *,
        variables: VariableValues | None = None,
    ) -> list[Array]:
        """Run once and return some of the outputs.

        Args:
            inputs: as for :meth:`run`.
            read_indices: positions of the outputs wanted; ``None`` is all of them. The others are
                neither allocated nor copied.
            variables: as for :meth:`run`.

        Returns:
            Fresh arrays, in the order of ``read_indices``.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`; or there is no output at a
                position.
        """
        if read_indices is None:
            return self.run(inputs, variables=variables)
        positions = _positions(read_indices, len(self.outputs))
        asked = self._execution.run(
            inputs, variables=variables, positions=positions, name="run_read_outputs"
        )
        # An output that is listed twice is returned as two arrays, each the caller's own.
        return [
            asked[position].copy() if position in positions[:i] else asked[position]
            for i, position in enumerate(positions)
        ]

    def run_typed(self, inputs: Sequence[tuple[str, Any, Any]]) -> list[tuple[bytes, DType]]:
        """Run once, from raw little-endian bytes to raw little-endian bytes.

        Args:
            inputs: ``(name, bytes, dtype)`` for each input; values are converted as by
                :meth:`set_param_typed`.

        Returns:
            ``(bytes, dtype)`` for each output, in the dtype that the graph declares.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`, or a value that the input's
                dtype can not hold, or a shape that a number of elements does not settle.
        """
        self._execution.context.refuse_while_capturing("run_typed reads its results back")
        outputs = self.run(check_typed_inputs(inputs, self.inputs))
        pairs = zip(outputs, self.outputs.values(), strict=True)
        return [(to_bytes(array), spec.dtype) for array, spec in pairs]

    def prepare_run(
        self, shapes: Sequence[tuple[int, ...]], *, variables: VariableValues | None = None
    ) -> PreparedRun | None:
        """Check once that inputs may have these shapes, for runs without further checks.

        For callers that keep the memory of arrays themselves, and have many calls of the same
        shapes.

        Args:
            shapes: of the inputs, in order.
            variables: as for :meth:`run`.

        Returns:
            The run; ``None`` where more than the shapes decides what a run does: handles, contents
            of inputs, sizes that depend on data, another device's memory.

        Raises:
            InputError, VariableError: the shapes do not fit.
        """
        return self._execution.prepare(shapes, variables)

    def run_raw(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        variables: VariableValues | None = None,
    ) -> list[Array]:
        """Run once; the results are read-only views of memory that the next run overwrites.

        Args:
            inputs, variables: as for :meth:`run`.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`.
        """
        known = None if variables is not None else self._execution.signature.recognise(inputs)
        results = None if known is None else self._execution.run_in_arena(*known)
        if results is not None:
            return [view.view() for view in results.views]
        return self._execution.run_raw(inputs, variables)

    def run_slots(
        self, *arrays: Any, variables: VariableValues | None = None
    ) -> list[tuple[int, int]]:
        """Run once on inputs in the order of their declaration; the results stay in the arena.

        Args:
            arrays: one for each input; ``None`` leaves an input to its handle.
            variables: as for :meth:`run`.

        Returns:
            ``(byte_offset, element_count)`` for each output: where it lies in :attr:`arena`, until
            the next run.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`.
        """
        execution = self._execution
        if variables is None and (live := execution.signature.recognise_in_order(arrays)):
            results = execution.run_in_arena(arrays, live)
            if results is not None:
                return results.slots.copy()
        if len(arrays) > len(self.inputs):
            raise InputError(f"the graph has {len(self.inputs)} inputs, got {len(arrays)}")
        given = {n: a for n, a in zip(self.inputs, arrays, strict=False) if a is not None}
        return execution.run_slots(given, variables)

    @property
    def live_sizes(self) -> Mapping[str, int]:
        """The values that the last run gave sizes that depend on data, by Variable.

        Raises:
            CaptureError: inside a recording.
        """
        with self._execution.in_order("live_sizes reads back"):
            return self._execution.executable.live_sizes

    @property
    def arena(self) -> memoryview:
        """The memory that runs work in, to be read: results of :meth:`run_slots` lie in it."""
        return self._execution.executable.arena.toreadonly()

    def arena_ptr(self) -> int:
        """The address of :attr:`arena`, the same as long as this object lives."""
        return self._execution.executable.arena_address

    def read_output_row(self, out_idx: int, row: int, row_inner: int | None = None) -> Array | None:
        """A copy of one row of an output of the last run.

        It is read from the very array that a :meth:`run` gave to its caller: what is written into
        that array later shows here. Calls of :meth:`bind` are no runs in this sense.

        Args:
            out_idx: the position of the output.
            row: which row, along axis 0.
            row_inner: elements in a row; the output is then seen as ``[-1, row_inner]``, so that
                row ``T - 1`` of an output ``[1, T, V]`` is reached with ``row_inner=V``.

        Returns:
            ``None`` when there is no such row or output, or nothing has run.

        Raises:
            InputError: a position is no int, or the output does not consist of rows of
                ``row_inner`` elements.
            CaptureError: inside a recording.
        """
        try:
            position, row = operator.index(out_idx), operator.index(row)
            if isinstance(row_inner, bool):
                raise TypeError
            inner = None if row_inner is None else operator.index(row_inner)
        except TypeError:
            raise InputError(
                f"rows are read by position, got {out_idx!r}, {row!r}, row_inner={row_inner!r}"
            ) from None
        with self._execution.in_order("read_output_row reads back"):
            last = self._execution.executable.last
            if not 0 <= position < len(last):
                return None
            array = on_host(last[position])
            if inner is not None:
                if inner < 1 or array.size % inner:
                    raise InputError(
                        f"output {position} has shape {array.shape}, which does not consist of "
                        f"rows of {inner} elements"
                    )
                array = array.reshape(-1, inner)
            if not (array.ndim and 0 <= row < len(array)):
                return None
            return np.array(array[row])

    def bind(
        self,
        inputs: Mapping[str, Any],
        outputs: Any,
        *,
        variables: VariableValues | None = None,
    ) -> Callable[[], None]:
        """Check these arrays once; calling the result runs on them with no further checks.

        Of an output whose shape depends on data, the elements lie at the start of its array, which
        has the largest shape; :attr:`live_sizes` has the sizes of the last run.

        The arrays are used in place: their contents at each call are what counts, so they must be
        C-contiguous and of the declared dtype already. So are the params: a weight written later
        is seen by later calls.

        In dev-state mode, each call takes the Variables ``token``, ``position`` and ``kv_len`` from
        the device's variable block. Arrays whose size depends on them may have room for more than
        the block says now; what is in use lies at their start, without gaps. A call for which one
        is too small raises :class:`VariableError`.

        Args:
            inputs: an array for each input, by name.
            outputs: an array for each output, in order or by name.
            variables: as for :meth:`run`; every call takes these values.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        return self._execution.bind(inputs, outputs, variables)

    # -- rows in use -------------------------------------------------------------------------------

    def set_active_extent(self, extent: tuple[int, int] | None) -> None:
        """From now on, only the first ``actual`` of ``upper`` leading rows are in use.

        It holds for the later runs of all threads, until it is set again, but for those of threads
        that are within :meth:`active_extent`. Within that, it is set for the rest of the block. A
        clone starts without one. See :class:`~ostinato.runtime.active_extent.ActiveExtents` for
        what it saves and leaves undefined.

        Args:
            extent: ``(actual, upper)``; ``None``: all rows are.

        Raises:
            VariableError: not ``0 <= actual <= upper``; or ``upper`` is not the size of axis 0 of
                any input, as compiled. The hint is as before.
            CaptureError: inside a recording. Replays go by the hint of their own moment.
        """
        self._extents.set(extent)

    def active_extent(self, actual: int, upper: int) -> AbstractContextManager[None]:
        """The extent ``(actual, upper)`` inside a ``with``, for the runs of its thread alone.

        However the block is left, the hint is as it was before. What is queued inside it goes by it
        when its turn has come.

        Raises:
            VariableError, CaptureError: as :meth:`set_active_extent`.
        """
        return self._extents.block(actual, upper)

    # -- clones ------------------------------------------------------------------------------------

    def clone(self, context: Context | None = None) -> CompiledGraph:
        """Another one, which runs in parallel to this one.

        Its states and handles begin as copies of these, its arena is its own. Weights are shared,
        packed ones too, until one side writes one; what one side writes never shows on the other.
        Recordings of this one's runs stay this one's. Of experts in a file, the same ones have
        places, in memory of its own. ``copy.copy`` and ``copy.deepcopy`` give the same.

        Args:
            context: what the clone submits to, of the same device; by default the same.

        Raises:
            InputError: it is no context, or another device's.
            CaptureError: inside a recording.
            ModelFormatError: experts could not be read from their file.
        """
        if context is not None and type(context) is not type(self._execution.context):
            raise InputError(f"context is the context of a Session, got {context!r:.80}")
        if context is not None and context.device != self.device:
            raise InputError(f"the graph is compiled for {self.device}, not {context.device}")
        with self._execution.in_order("clone allocates memory"):
            execution = self._execution.clone(context)
            return CompiledGraph(execution, self._capabilities, self._experts.clone(execution))

    def __copy__(self) -> CompiledGraph:
        return self.clone()

    def __deepcopy__(self, known: dict[int, Any]) -> CompiledGraph:
        return self.clone()


def _positions(indices: object, count: int) -> list[int]:
    if not isinstance(indices, Iterable):
        raise InputError(f"expected positions of outputs, got {indices!r:.80}")
    return [output_index(index, count) for index in indices]


def _single(name: object, value: Any) -> dict[str, Any]:
    """A mapping of one param.

    Raises:
        InputError: its name is no string, and so perhaps no key at all.
    """
    if not isinstance(name, str):
        raise InputError(f"a param is named by a string, got {name!r:.80}")
    return {name: value}
