"""A compiled graph: what users hold and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError
from ostinato.runtime.arrays import (
    Array,
    TensorSpec,
    bind_variables,
    checked,
    checked_mapping,
    live_shape,
)

if TYPE_CHECKING:
    from ostinato.backends.base import Executable
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.ir.graph import BaseGraph
    from ostinato.plan.execution_plan import ExecutionPlan

__all__ = ["CompiledGraph"]


class CompiledGraph:
    """A graph compiled for a device (SPEC section 2). Made by :meth:`Session.compile`.

    Attributes:
        inputs, outputs, params: specs by name: ``name``, ``shape``, ``dtype``.
    """

    def __init__(
        self,
        graph: BaseGraph,
        executable: Executable,
        device: Device,
        options: CompileOptions,
        unset: frozenset[str],
    ) -> None:
        self._executable = executable
        self._device = device
        self._cast = options.cast_inputs
        self._variables = graph.variables
        self._unset = set(unset)
        self._raw: dict[tuple[int, ...], list[Array]] = {}
        self.inputs = _specs({name: value.type for name, value in graph.inputs.items()})
        self.params = _specs({name: value.type for name, value in graph.params.items()})
        self.outputs = _specs({name: value.type for name, value in graph.outputs.items()})

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
        """What was rewritten, which nodes share a kernel, and which do not and why."""
        return str(self._executable.report)

    # -- params ------------------------------------------------------------------------------------

    def set_param(self, name: str, array: Any) -> None:
        """Write a weight; it stays until written again.

        Raises:
            InputError: no such param, or the shape or dtype differs. Nothing has been written.
        """
        self.set_params({name: array})

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Write several weights; all of them are checked before the first is written.

        Raises:
            InputError: see :meth:`set_param`.
        """
        given = checked_mapping("param", params, self.params)
        arrays = {
            name: checked("param", self.params[name], array, cast=self._cast)
            for name, array in given.items()
        }
        for name, array in arrays.items():
            self._executable.write_param(name, array)
        self._unset.difference_update(arrays)

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
        arrays, variables = self._checked_inputs({} if inputs is None else inputs)
        outputs = self._fresh(variables) if out is None else self._checked_out(out, variables)
        self._executable.run(arrays, outputs, variables)
        return outputs

    def run_raw(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """Run once; the results are read-only views of memory that the next run overwrites.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        arrays, variables = self._checked_inputs({} if inputs is None else inputs)
        outputs = self._raw.get(variables)
        if outputs is None:
            outputs = self._raw[variables] = self._fresh(variables)
        self._executable.run(arrays, outputs, variables)
        return [_read_only(array) for array in outputs]

    def bind(self, inputs: Mapping[str, Any], outputs: Any) -> Callable[[], None]:
        """Check these arrays once; calling the result runs on them with no further checks.

        The arrays are used in place: their contents at each call are what counts, so they must be
        C-contiguous and of the declared dtype already.

        Args:
            inputs: an array for each input, by name.
            outputs: an array for each output, in order or by name.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        arrays, variables = self._checked_inputs(inputs, in_place=True)
        return self._executable.bind(arrays, self._checked_out(outputs, variables), variables)

    # -- checks ------------------------------------------------------------------------------------

    def _checked_inputs(
        self, inputs: Mapping[str, Any], *, in_place: bool = False
    ) -> tuple[list[Array], tuple[int, ...]]:
        if self._unset:
            names = ", ".join(map(repr, sorted(self._unset)))
            raise InputError(f"these params were never set: {names}; use set_param")
        given = checked_mapping("input", inputs, self.inputs)
        missing = [name for name in self.inputs if name not in given]
        if missing:
            wanted = ", ".join(str(self.inputs[name]) for name in missing)
            raise InputError(f"missing inputs: {wanted}")
        specs = list(self.inputs.values())
        cast = self._cast and not in_place
        arrays = [checked("input", spec, given[spec.name], cast=cast) for spec in specs]
        if in_place:
            for spec, array in zip(specs, arrays, strict=True):
                _check_in_place("input", spec, given[spec.name], array)
        return arrays, bind_variables(self._variables, specs, arrays)

    def _checked_out(self, out: Any, variables: tuple[int, ...]) -> list[Array]:
        if isinstance(out, Mapping):
            given = checked_mapping("output", out, self.outputs)
            listed = [given[name] for name in self.outputs if name in given]
        else:
            listed = list(out)
        if len(listed) != len(self.outputs):
            raise InputError(f"expected {len(self.outputs)} output arrays, got {len(listed)}")
        values = self._values(variables)
        arrays: list[Array] = []
        for spec, array in zip(self.outputs.values(), listed, strict=True):
            if not isinstance(array, np.ndarray):
                raise InputError(
                    f"output {spec.name!r}: expected a NumPy array, got {type(array).__name__}"
                )
            shape = live_shape(spec.shape, values)
            if array.dtype != spec.dtype.numpy or array.shape != shape:
                raise InputError(
                    f"output {spec.name!r} is {spec.dtype} {shape}, got {array.dtype} {array.shape}"
                )
            if not array.flags.c_contiguous or not array.flags.writeable:
                raise InputError(
                    f"output {spec.name!r}: the array must be C-contiguous and writable"
                )
            arrays.append(array)
        return arrays

    def _fresh(self, variables: tuple[int, ...]) -> list[Array]:
        values = self._values(variables)
        return [
            np.empty(live_shape(spec.shape, values), spec.dtype.numpy)
            for spec in self.outputs.values()
        ]

    def _values(self, variables: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._variables, variables, strict=True))


def _specs(types: Mapping[str, Any]) -> Mapping[str, TensorSpec]:
    return MappingProxyType({name: TensorSpec(name, type_) for name, type_ in types.items()})


def _check_in_place(kind: str, spec: TensorSpec, given: Any, array: Array) -> None:
    """That ``array`` is the caller's own memory, not a copy made to fit."""
    if isinstance(given, np.ndarray) and not np.shares_memory(given, array) and array.size:
        raise InputError(f"{kind} {spec.name!r}: the array must be C-contiguous to be bound")


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
