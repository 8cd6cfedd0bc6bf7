"""The calls for handles and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.plan.device_array import DeviceArray, on_host
from ostinato.plan.order import ORDER, Submission, arrays_touched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ostinato.backends.base import Capabilities
    from ostinato.ir.binding import VariableValues
    from ostinato.runtime.arrays import Array
    from ostinato.runtime.execution import Execution

__all__ = ["HandleCalls", "HandleMethods"]


class HandleCalls:
    """The handles and states of one compiled graph: buffers that stay on the device between runs.

    A handle stands in for an input that a run leaves out; given explicitly, an input overrides its
    handle for that run alone. States are read and written with the same calls.

    A recording uses the very buffers that handles had when it was made. When one is bound anew or
    unbound, or a run swaps it for another, recordings that use it are dropped.

    Args:
        execution: the graph's runs.
        capabilities: what the device has or lacks.
    """

    def __init__(self, execution: Execution, capabilities: Callable[[], Capabilities]) -> None:
        self._execution = execution
        self._handles = execution.handles
        self._signature = execution.signature
        self._executable = execution.executable
        self._capabilities = capabilities

    def bind(self, name: str, array: Any) -> bool:
        """See :meth:`CompiledGraph.bind_handle`."""
        if not self._is_state(name):
            self._handles.spec(name)
        if not self._capabilities().handles:
            return False
        array = self._execution.adopted([array])[0]
        touched = arrays_touched([array])
        with self._execution.in_order("bind_handle allocates and writes memory", touched):
            resident = self._signature.check_resident(name, array, cast=self._execution.cast)
            if self._is_state(name):
                self._executable.write_state(name, on_host(resident))
            else:
                self._let_go(self._handles.bind(name, self._executable.resident(resident)))
        return True

    def has(self, name: str) -> bool:
        """See :meth:`CompiledGraph.has_handle`."""
        with Submission(self._execution.accesses):
            return self._is_state(name) or self._handles.spec(name).name in self._handles.bound

    def read(self, name: str) -> Array | None:
        """See :meth:`CompiledGraph.read_handle`."""
        with self._execution.in_order("read_handle reads back"):
            if self._is_state(name):
                return self._executable.read_state(name)
            bound = self._handles.bound.get(self._handles.spec(name).name)
            if bound is None:
                return None
            return bound.numpy() if isinstance(bound, DeviceArray) else bound.copy()

    def unbind(self, name: str) -> None:
        """See :meth:`CompiledGraph.unbind_handle`."""
        with self._execution.in_order("unbind_handle frees or writes memory"):
            if self._is_state(name):
                self._executable.write_state(name, None)
            else:
                self._let_go(self._handles.unbind(self._handles.spec(name).name))

    def set_feed(self, name: str, output_index: int | None) -> None:
        """See :meth:`CompiledGraph.set_handle_feed`."""
        with self._execution.in_order("set_handle_feed changes what later runs do"):
            self._handles.feed(name, output_index)
            self._execution.choose_path()

    def run_feeding(
        self, inputs: Mapping[str, Any] | None, name: str, output_index: int, variables: object
    ) -> Array:
        """See :meth:`CompiledGraph.run_feed_handle`."""
        position = self._handles.check_feed(name, output_index)
        feed = {name: position}
        asked = self._execution.run(
            inputs,
            variables=variables,
            positions=[position],
            feed=feed,
            name="run_feed_handle",
        )
        return asked[position]

    def _let_go(self, buffer: Array | None) -> None:
        """Drop the recordings that use a buffer which is no handle's any more."""
        if buffer is not None:
            ORDER.memory_changes(buffer, replaced=True)
        self._execution.choose_path()

    def _is_state(self, name: object) -> bool:
        return isinstance(name, str) and name in self._signature.states


class HandleMethods:
    """The methods of a compiled graph for handles and states."""

    _handles: HandleCalls

    def bind_handle(self, name: str, array: Any) -> bool:
        """Keep a copy of ``array`` on the device, to stand in for an input that a run leaves out.

        With the name of a state, write the state.

        Returns:
            ``True``; on a device without handles, ``False``.

        Raises:
            InputError: no input or state has that name, or the shape or dtype differs.
            VariableError: a size is out of its Variable's bounds.
            CaptureError: inside a recording.
        """
        return self._handles.bind(name, array)

    def has_handle(self, name: str) -> bool:
        """Whether an input has a handle that would stand in for it. A state always has.

        Raises:
            InputError: no input or state has that name.
        """
        return self._handles.has(name)

    def read_handle(self, name: str) -> Array | None:
        """A copy of what a handle, or a state, holds; ``None`` when nothing is bound.

        Raises:
            InputError: no input or state has that name.
            CaptureError: inside a recording.
        """
        return self._handles.read(name)

    def unbind_handle(self, name: str) -> None:
        """Drop a handle, if there is one, and its feed; give a state its initial value again.

        Raises:
            InputError: no input or state has that name.
            CaptureError: inside a recording.
        """
        self._handles.unbind(name)

    def set_handle_feed(self, name: str, output_index: int | None) -> None:
        """After each run, let the handle of an input take an output; ``None`` ends that.

        The handle takes the buffer that the run wrote, and its former buffer is written by the next
        run: nothing is copied, unless the output is read as well. Calls of :meth:`bind` neither
        read handles nor feed them. Recordings go on feeding what they fed when they were made.

        Raises:
            InputError: no input has that name, there is no such output, or their types differ.
            CaptureError: inside a recording.
        """
        self._handles.set_feed(name, output_index)

    def run_feed_handle(
        self,
        inputs: Mapping[str, Any] | None,
        name: str,
        output_index: int,
        *,
        variables: VariableValues | None = None,
    ) -> Array:
        """Run once, let the handle of an input take an output, and return a copy of that.

        Raises:
            InputError, VariableError, CaptureError: as :meth:`run` and :meth:`set_handle_feed`.
                Nothing has run.
        """
        return self._handles.run_feeding(inputs, name, output_index, variables)
