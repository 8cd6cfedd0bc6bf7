"""A compiled graph: what users hold and run."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import GraphError, InputError
from ostinato.ir.leaves import as_array
from ostinato.runtime.active_extent import ActiveExtent
from ostinato.runtime.arrays import checked_mapping
from ostinato.runtime.handles import Handles, output_index
from ostinato.runtime.turns import Queue, Turn
from ostinato.runtime.typed import check_typed, check_typed_inputs, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.backends.base import Executable
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.dtypes import DType
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Live, Signature

__all__ = ["CompiledGraph"]


class CompiledGraph(ActiveExtent):
    """A graph compiled for a device (SPEC section 2). Made by :meth:`Session.compile`.

    It may be used from many threads: runs, and writes of params, happen one after the other.

    Attributes:
        inputs, outputs, params: specs by name: ``name``, ``shape``, ``dtype``.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    params: Mapping[str, TensorSpec]

    def __init__(
        self,
        signature: Signature,
        executable: Executable,
        device: Device,
        options: CompileOptions,
        unset: frozenset[str],
    ) -> None:
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self.params = signature.params
        self._signature = signature
        self._executable = executable
        self._device = device
        self._cast = options.cast_inputs
        self._unset = set(unset)
        self._handles = Handles(signature)
        self._turn = Turn()
        self._commits = Queue()
        self._last: tuple[Array, ...] = ()
        self._settle()

    # -- what it is --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self._device

    @property
    def plan(self) -> ExecutionPlan:
        """The kernels of a run, in order, and their memory."""
        return self._executable.plan

    def explain(self) -> str:
        """Which nodes went native, were rewritten, share a kernel, or do not and why."""
        return str(self._executable.report)

    # -- params ------------------------------------------------------------------------------------

    def set_param(self, name: str, array: Any) -> None:
        """Write a weight; it stays until written again.

        Raises:
            InputError: no such param, or the shape or dtype differs. Nothing has been written.
        """
        self.set_params({name: array})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Write several weights at once; no run sees some of them without the others.

        What kernels prepare from weights, such as packed matrices, is prepared here.

        Raises:
            InputError: see :meth:`set_param`.
        """
        arrays = self._signature.check_params(params, cast=self._cast)
        self._commits.settle()
        self._executable.write_params(arrays)
        self._unset.difference_update(arrays)
        self._settle()

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
        """
        checked_mapping("param", {name: data}, self.params)
        self.set_params({name: check_typed(f"param {name!r}", self.params[name], data, dtype)})

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
        """
        if not self._quick:
            return self._run_aside(inputs, out)
        arrays, live = self._signature.recognise(inputs) or self._checked(inputs)
        outputs = live.empty() if out is None else self._signature.check_outputs(out, live)
        self._dispatch(arrays, outputs, live)
        self._last = tuple(outputs)
        return outputs

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
            InputError, VariableError: as :meth:`run`; or there is no output at a position.
        """
        if read_indices is None:
            return self.run(inputs)
        positions = self._positions(read_indices)
        asked = self._run_aside(inputs, positions=positions)
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
            InputError, VariableError: as :meth:`run`, or a value that the input's dtype can not
                hold, or a shape that a number of elements does not settle.
        """
        outputs = self.run(check_typed_inputs(inputs, self.inputs))
        pairs = zip(outputs, self.outputs.values(), strict=True)
        return [(to_bytes(array), spec.dtype) for array, spec in pairs]

    def run_raw(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """Run once; the results are read-only views of memory that the next run overwrites.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        self._commits.settle()
        return [_read_only(array) for array in self._perform(inputs, _nothing)[1]]

    def run_slots(self, *arrays: Any) -> list[tuple[int, int]]:
        """Run once on inputs in the order of their declaration; the results stay in the arena.

        Args:
            arrays: one for each input; ``None`` leaves an input to its handle.

        Returns:
            ``(byte_offset, element_count)`` for each output: where it lies in :attr:`arena`, until
            the next run.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        if len(arrays) > len(self.inputs):
            raise InputError(f"the graph has {len(self.inputs)} inputs, got {len(arrays)}")
        given = {n: a for n, a in zip(self.inputs, arrays, strict=False) if a is not None}
        self._commits.settle()
        outputs, _ = self._perform(given, self._room)
        offsets = self._executable.result_offsets
        return [(o, array.size) for o, array in zip(offsets, outputs, strict=True)]

    @property
    def arena(self) -> memoryview:
        """The memory that runs work in, to be read: results of :meth:`run_slots` lie in it."""
        return self._executable.arena.toreadonly()

    def arena_ptr(self) -> int:
        """The address of :attr:`arena`, the same as long as this object lives."""
        return self._executable.arena_address

    def read_output_row(self, out_idx: int, row: int) -> Array | None:
        """A copy of one row, along axis 0, of an output of the last run.

        It is read from the very array that a :meth:`run` gave to its caller: who writes into that
        array will see what they wrote. Calls of :meth:`bind` are no runs in this sense.

        Returns:
            ``None`` when there is no such row or output, or nothing has run.

        Raises:
            InputError: a position is no int.
        """
        try:
            position, row = operator.index(out_idx), operator.index(row)
        except TypeError:
            raise InputError(f"rows are read by position, got {out_idx!r}, {row!r}") from None
        self._commits.settle()
        with self._turn:
            if not 0 <= position < len(self._last):
                return None
            array = self._last[position]
            if not (array.ndim and 0 <= row < len(array)):
                return None
            return np.array(array[row])

    def bind(self, inputs: Mapping[str, Any], outputs: Any) -> Callable[[], None]:
        """Check these arrays once; calling the result runs on them with no further checks.

        The arrays are used in place: their contents at each call are what counts, so they must be
        C-contiguous and of the declared dtype already. So are the params: a weight written later
        is seen by later calls.

        Args:
            inputs: an array for each input, by name.
            outputs: an array for each output, in order or by name.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        arrays, live = self._checked(inputs, bound=True)
        written = self._signature.check_outputs(outputs, live)
        try:
            return self._executable.bind(arrays, written, live.variables)
        except ValueError as error:
            raise self._refusal(arrays, written, error) from None

    # -- handles -----------------------------------------------------------------------------------

    def bind_handle(self, name: str, array: Any) -> bool:
        """Keep a copy of ``array`` on the device, to stand in for an input that a run leaves out.

        With the name of a state, write the state.

        Returns:
            ``True``; on a device without handles, ``False``.

        Raises:
            InputError: no input or state has that name, or the shape or dtype differs.
            VariableError: a size is out of its Variable's bounds.
        """
        if not self._is_state(name):
            self._handles.spec(name)
        resident = self._signature.check_resident(name, array, cast=self._cast)
        self._commits.settle()
        with self._turn:
            if self._is_state(name):
                self._executable.write_state(name, resident)
            else:
                self._handles.bind(name, resident)
                self._settle()
        return True

    def has_handle(self, name: str) -> bool:
        """Whether an input has a handle that would stand in for it. A state always has.

        Raises:
            InputError: no input or state has that name.
        """
        self._commits.settle()
        return self._is_state(name) or self._handles.spec(name).name in self._handles.bound

    def read_handle(self, name: str) -> Array | None:
        """A copy of what a handle, or a state, holds; ``None`` when nothing is bound.

        Raises:
            InputError: no input or state has that name.
        """
        self._commits.settle()
        with self._turn:
            if self._is_state(name):
                return self._executable.read_state(name)
            bound = self._handles.bound.get(self._handles.spec(name).name)
            return None if bound is None else bound.copy()

    def unbind_handle(self, name: str) -> None:
        """Drop a handle, if there is one, and its feed; give a state its initial value again.

        Raises:
            InputError: no input or state has that name.
        """
        self._commits.settle()
        with self._turn:
            if self._is_state(name):
                self._executable.write_state(name, None)
            else:
                self._handles.unbind(self._handles.spec(name).name)
                self._settle()

    def set_handle_feed(self, name: str, output_index: int | None) -> None:
        """After each run, let the handle of an input take an output; ``None`` ends that.

        The handle takes the buffer that the run wrote, and its former buffer is written by the next
        run: nothing is copied, unless the output is read as well. Calls of :meth:`bind` neither
        read handles nor feed them.

        Raises:
            InputError: no input has that name, there is no such output, or their types differ.
        """
        self._commits.settle()
        with self._turn:
            self._handles.feed(name, output_index)
            self._settle()

    def run_feed_handle(
        self, inputs: Mapping[str, Any] | None, name: str, output_index: int
    ) -> Array:
        """Run once, let the handle of an input take an output, and return a copy of that.

        Raises:
            InputError, VariableError: as :meth:`run` and :meth:`set_handle_feed`. Nothing has run.
        """
        position = self._handles.check_feed(name, output_index)
        asked = self._run_aside(inputs, positions=[position], feed={name: position})
        return asked[position]

    def _is_state(self, name: object) -> bool:
        return isinstance(name, str) and name in self._signature.states

    # -- queued runs -------------------------------------------------------------------------------

    def commit_no_wait(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Queue a run and return at once.

        The inputs are copied now, so that the caller may change them. Handles, states and params
        are those of the moment when the run's turn has come. Its results stay in the arena, where
        the next run overwrites them: read them through :meth:`read_output_row` or a handle that
        takes them. All other calls wait for queued runs, but for those of :meth:`bind`.

        What is wrong with the inputs is raised by :meth:`sync_pending`; later runs still run.
        """
        given = _copied(inputs)
        self._quick = False
        self._commits.submit(partial(self._perform, given, _nothing))

    def sync_pending(self) -> None:
        """Wait for the queued runs, then raise the first error among them, if there was one."""
        self._commits.sync()

    def run_pipelined(self, input_sets: Iterable[Mapping[str, Any]]) -> list[list[Array]]:
        """Run once for each set of inputs, with no other run in between.

        Returns:
            By run, the outputs: the same bits as from as many calls of :meth:`run`.

        Raises:
            InputError, VariableError: as :meth:`run`. Unless handles are fed from run to run, all
                sets are checked before the first one runs.
        """
        sets = list(input_sets)
        self._commits.settle()
        with self._turn:
            if not self._handles.feeds:
                for given in sets:
                    self._checked(self._handles.complete(given))
            return [self._run_aside(given) for given in sets]

    # -- clones ------------------------------------------------------------------------------------

    def clone(self) -> CompiledGraph:
        """Another one, which runs in parallel to this one.

        Its states and handles begin as copies of these, its arena is its own. Weights are shared,
        packed ones too, until one side writes one; what one side writes never shows on the other.
        """
        self._commits.settle()
        with self._turn:
            twin = copy.copy(self)
            twin._executable = self._executable.clone()
            twin._handles = self._handles.copy()
        twin._turn = Turn()
        twin._commits = Queue()
        twin._unset = set(self._unset)
        twin._active = None
        twin._last = ()
        twin._settle()
        return twin

    # -- machinery ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Whether runs are free to take the short path."""
        self._quick = not (self._unset or self._handles.active or self._commits.used)

    def _positions(self, indices: object) -> list[int]:
        if not isinstance(indices, Iterable):
            raise InputError(f"expected positions of outputs, got {indices!r:.80}")
        return [output_index(index, len(self.outputs)) for index in indices]

    def _run_aside(
        self,
        inputs: object,
        out: Any = None,
        *,
        positions: Sequence[int] | None = None,
        feed: Mapping[str, int] | None = None,
    ) -> list[Array]:
        """A run for a caller who reads all outputs, or those at ``positions``."""

        def choose(live: Live) -> list[Array | None]:
            if out is not None:
                return [*self._signature.check_outputs(out, live)]
            wanted = range(len(live.outputs)) if positions is None else positions
            return [
                np.empty(shape, dtype) if i in wanted else None
                for i, (shape, dtype) in enumerate(live.outputs)
            ]

        self._commits.settle()
        return self._perform(inputs, choose, feed)[0]

    def _perform(
        self,
        inputs: object,
        choose: Callable[[Live], Sequence[Array | None]],
        feed: Mapping[str, int] | None = None,
    ) -> tuple[list[Array], list[Array]]:
        """One run by the long path, which minds handles.

        Args:
            inputs: those that handles stand in for may be missing.
            choose: for each output, the array that the caller wants to have filled, if any.
            feed: handles that take outputs after this run alone.

        Returns:
            The outputs for the caller, and those that the run wrote: they differ where a handle
            takes what the run wrote and the caller a copy of it.
        """
        with self._turn:
            feeds = {**self._handles.feeds, **(feed or {})}
            arrays, live = self._checked(self._handles.complete(inputs))
            chosen = choose(live)
            written = [
                room if array is None else array
                for array, room in zip(chosen, self._room(live), strict=True)
            ]
            taken = self._handles.destinations(live, feeds)
            for position, buffer in taken.items():
                written[position] = buffer
            self._dispatch(arrays, written, live)
            self._handles.take(taken, feeds)
            self._last = tuple(written)
            if taken:
                self._settle()
            asked = [w if c is None else c for c, w in zip(chosen, written, strict=True)]
            for position, buffer in taken.items():
                if asked[position] is not buffer:
                    np.copyto(asked[position], buffer)
        return asked, written

    def _dispatch(self, inputs: list[Array], outputs: list[Array], live: Live) -> None:
        try:
            self._executable.run(inputs, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(inputs, outputs, error) from None

    def _room(self, live: Live) -> list[Array]:
        """For each output, its place in the arena."""
        arena, offsets = self._executable.arena, self._executable.result_offsets
        return [
            np.ndarray(shape, dtype, arena, offset)
            for offset, (shape, dtype) in zip(offsets, live.outputs, strict=True)
        ]

    def _checked(self, inputs: object, *, bound: bool = False) -> tuple[list[Array], Live]:
        if self._unset:
            names = ", ".join(str(self.params[name]) for name in sorted(self._unset))
            raise InputError(f"these params were never set: {names}; use set_param")
        given = {} if inputs is None else inputs
        return self._signature.check_inputs(given, cast=self._cast, bound=bound)

    def _refusal(
        self, inputs: Sequence[Array], outputs: Sequence[Array], error: ValueError
    ) -> InputError:
        """What was wrong with arrays that an executable would not run on."""
        return InputError(self._signature.overlap(inputs, outputs) or str(error))


def _nothing(live: Live) -> list[None]:
    """What a caller wants who reads no output."""
    return [None] * len(live.outputs)


def _copied(inputs: object) -> object:
    """Inputs that the caller may change; what is no array is left for the run to refuse."""
    if not isinstance(inputs, Mapping):
        return inputs
    copies: dict[Any, Any] = dict(inputs)
    for name, given in copies.items():
        with suppress(GraphError):
            copies[name] = as_array(given).copy()
    return copies


def _read_only(array: Array) -> Array:
    """A view that can not be made writable."""
    octets: Any = array.reshape(-1).view(np.uint8)
    return np.ndarray(array.shape, array.dtype, memoryview(octets).toreadonly())
