"""A compiled graph: what users hold and run."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.plan.order import arrays_touched
from ostinato.runtime.arrays import checked_mapping
from ostinato.runtime.execution import listed, nothing, read_only
from ostinato.runtime.handle_calls import HandleCalls
from ostinato.runtime.moe_calls import MoeCalls
from ostinato.runtime.queued_calls import QueuedCalls
from ostinato.runtime.typed import check_typed_inputs, check_typed_param, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ostinato.backends.base import Capabilities
    from ostinato.backends.common.context import Context
    from ostinato.backends.device import Device
    from ostinato.dtypes import DType
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array

__all__ = ["CompiledGraph"]


class CompiledGraph(HandleCalls, MoeCalls, QueuedCalls):
    """A graph compiled for a device. Made by :meth:`Session.compile`.

    It may be used from many threads: its calls take effect one after the other, in the order in
    which they were made; see ``docs/order.md``.

    Attributes:
        inputs, outputs, params: specs by name: ``name``, ``shape``, ``dtype``.
    """

    # -- what it is --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self._context.device

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a run, in order, and their memory."""
        with self._planning:
            if self._plan is None:
                self._plan = self._executable.make_plan(self._signature.facts)
            return self._plan

    @property
    def capabilities(self) -> Capabilities:
        """What the device has or lacks."""
        return self._capabilities()

    def explain(self) -> str:
        """Which nodes went native, were rewritten, share a kernel, or do not and why."""
        return str(self._executable.report)

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
        with self._in_order("set_params writes memory", arrays_touched(given.values())):
            self._executable.write_params(self._signature.check_params(given, cast=self._cast))
            self._choose_path()

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

    def run(self, inputs: Mapping[str, Any] | None = None, *, out: Any = None) -> list[Array]:
        """Run once.

        Args:
            inputs: an array for each input, by name. Sizes given by Variables may differ from run
                to run, within their bounds.
            out: arrays to write the outputs into, in order or by name; nothing is then allocated.

        Returns:
            The outputs, in order: fresh arrays, or those of ``out``.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype; or a param was
                never set; or ``out`` does not fit. Nothing has run.
            VariableError: a size is out of its Variable's bounds.
            CaptureError: inside a recording, which can not read results back.
        """
        if self._quick and (known := self._signature.recognise(inputs)) is not None:
            arrays, live = known
            outputs = live.empty() if out is None else self._signature.check_outputs(out, live)
            if self._launch_quick(arrays, outputs, live):
                return outputs
        return self._run_aside(inputs, out)

    def run_read_outputs(
        self, inputs: Mapping[str, Any] | None, read_indices: Iterable[int] | None
    ) -> list[Array]:
        """Run once and return some of the outputs.

        Args:
            inputs: as for :meth:`run`.
            read_indices: positions of the outputs wanted; ``None`` is all of them. The others are
                neither allocated nor copied.

        Returns:
            Fresh arrays, in the order of ``read_indices``.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`; or there is no output at a
                position.
        """
        if read_indices is None:
            return self.run(inputs)
        positions = self._positions(read_indices)
        asked = self._run_aside(inputs, positions=positions, name="run_read_outputs")
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
        self._context.refuse_while_capturing("run_typed reads its results back")
        outputs = self.run(check_typed_inputs(inputs, self.inputs))
        pairs = zip(outputs, self.outputs.values(), strict=True)
        return [(to_bytes(array), spec.dtype) for array, spec in pairs]

    def run_raw(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """Run once; the results are read-only views of memory that the next run overwrites.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`.
        """
        if self._quick and (known := self._signature.recognise(inputs)) is not None:
            arrays, live = known
            places = self._room(live)
            if self._launch_quick(arrays, places.arrays, live):
                return [view.view() for view in places.views]
        touched = arrays_touched(listed(inputs))
        with self._in_order("run_raw reads its results back", touched):
            outputs = self._perform(inputs, nothing)
            room = self._last_room
            assert room is not None
            return [
                view.view() if array is place else read_only(array)
                for array, place, view in zip(outputs, room.arrays, room.views, strict=True)
            ]

    def run_slots(self, *arrays: Any) -> list[tuple[int, int]]:
        """Run once on inputs in the order of their declaration; the results stay in the arena.

        Args:
            arrays: one for each input; ``None`` leaves an input to its handle.

        Returns:
            ``(byte_offset, element_count)`` for each output: where it lies in :attr:`arena`, until
            the next run.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run`.
        """
        if self._quick and (live := self._signature.recognise_in_order(arrays)) is not None:
            room = self._room(live)
            if self._launch_quick(arrays, room.arrays, live):
                return room.slots.copy()
        if len(arrays) > len(self.inputs):
            raise InputError(f"the graph has {len(self.inputs)} inputs, got {len(arrays)}")
        given = {n: a for n, a in zip(self.inputs, arrays, strict=False) if a is not None}
        with self._in_order("run_slots reads its results back", arrays_touched(arrays)):
            outputs = self._perform(given, self._places)
        offsets = self._executable.result_offsets
        return [(o, array.size) for o, array in zip(offsets, outputs, strict=True)]

    @property
    def arena(self) -> memoryview:
        """The memory that runs work in, to be read: results of :meth:`run_slots` lie in it."""
        return self._executable.arena.toreadonly()

    def arena_ptr(self) -> int:
        """The address of :attr:`arena`, the same as long as this object lives."""
        return self._executable.arena_address

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
        with self._in_order("read_output_row reads back"):
            if not 0 <= position < len(self._executable.last):
                return None
            array = self._executable.last[position]
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

    def bind(self, inputs: Mapping[str, Any], outputs: Any) -> Callable[[], None]:
        """Check these arrays once; calling the result runs on them with no further checks.

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

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        block = self._block()
        arrays, live = self._checked(inputs, bound=True, block=block)
        return self._bound(arrays, self._signature.check_outputs(outputs, live, block), live)

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
        if context is not None and type(context) is not type(self._context):
            raise InputError(f"context is the context of a Session, got {context!r:.80}")
        if context is not None and context.device != self.device:
            raise InputError(f"the graph is compiled for {self.device}, not {context.device}")
        with self._in_order("clone allocates memory"):
            twin: CompiledGraph = object.__new__(type(self))
            vars(twin).update(vars(self))
            twin._context = context or self._context
            executable = self._executable
            copied = executable.clone() if context is None else executable.clone(context)
            twin._begin(copied, self._handles.copy())
            twin._moe = self._account_of_clone()
        return twin

    def __copy__(self) -> CompiledGraph:
        return self.clone()

    def __deepcopy__(self, known: dict[int, Any]) -> CompiledGraph:
        return self.clone()


def _single(name: object, value: Any) -> dict[str, Any]:
    """A mapping of one param.

    Raises:
        InputError: its name is no string, and so perhaps no key at all.
    """
    if not isinstance(name, str):
        raise InputError(f"a param is named by a string, got {name!r:.80}")
    return {name: value}
