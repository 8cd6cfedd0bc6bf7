"""A compiled graph: what users hold and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.backends.base import Executable
    from ostinato.backends.device import Device
    from ostinato.backends.options import CompileOptions
    from ostinato.plan.execution_plan import ExecutionPlan
    from ostinato.runtime.arrays import Array, TensorSpec
    from ostinato.runtime.signature import Live, Signature

__all__ = ["CompiledGraph"]


class CompiledGraph:
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
        self._raw: tuple[Array, ...] = ()

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
        self._executable.write_params(arrays)
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
        arrays, live = self._signature.recognise(inputs) or self._checked(inputs)
        outputs = live.empty() if out is None else self._signature.check_outputs(out, live)
        try:
            self._executable.run(arrays, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(arrays, outputs, error) from None
        return outputs

    def run_raw(self, inputs: Mapping[str, Any] | None = None) -> list[Array]:
        """Run once; the results are read-only views of memory that the next run overwrites.

        Raises:
            InputError, VariableError: as :meth:`run`.
        """
        arrays, live = self._signature.recognise(inputs) or self._checked(inputs)
        outputs = self._raw_outputs(live)
        try:
            self._executable.run(arrays, outputs, live.variables)
        except ValueError as error:
            raise self._refusal(arrays, outputs, error) from None
        for array in outputs:
            array.flags.writeable = False
        return outputs

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

    def _checked(self, inputs: object, *, bound: bool = False) -> tuple[list[Array], Live]:
        if self._unset:
            names = ", ".join(str(self.params[name]) for name in sorted(self._unset))
            raise InputError(f"these params were never set: {names}; use set_param")
        given = {} if inputs is None else inputs
        return self._signature.check_inputs(given, cast=self._cast, bound=bound)

    def _raw_outputs(self, live: Live) -> list[Array]:
        """Views of memory that is taken once, for the largest outputs."""
        if not self._raw:
            sizes = [spec.type.max_bytes for spec in self.outputs.values()]
            self._raw = tuple(np.empty(nbytes, np.uint8) for nbytes in sizes)
        return [
            np.ndarray(shape, dtype, memory)
            for memory, (shape, dtype) in zip(self._raw, live.outputs, strict=True)
        ]

    def _refusal(
        self, inputs: Sequence[Array], outputs: Sequence[Array], error: ValueError
    ) -> InputError:
        """What was wrong with arrays that an executable would not run on."""
        return InputError(self._signature.overlap(inputs, outputs) or str(error))
