"""MLX as an array framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.framework import ArrayFunction, Framework, FunctionMemory
from ostinato.backends.array_api.mlx.capabilities import CAPABILITIES
from ostinato.backends.array_api.mlx.namespace import MlxNamespace
from ostinato.backends.array_api.mlx.rules import HOST_OPS, RULES
from ostinato.dtypes import FLOAT64
from ostinato.errors import DeviceError, DeviceMemoryError, InputError, OstinatoError
from ostinato.ops.base import Elementwise
from ostinato.ops.control import ControlFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ostinato.backends.array_api.framework import Traced
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node

__all__ = ["MlxFramework"]


class MlxFramework(Framework):
    """MLX on its default device.

    Args:
        fuses: whether functions are compiled by ``mx.compile``, which fuses elementwise ops; by
            default, on a GPU. On a CPU, MLX would call a C++ compiler for each new fusion: there, a
            function builds MLX's graph anew at each call.
    """

    label = "MLX"
    rules = RULES
    capabilities = CAPABILITIES
    holds_narrow = False

    def __init__(self, fuses: bool | None = None) -> None:
        import mlx.core as mx

        self.module: Any = mx
        self._on_gpu = mx.default_device().type == mx.gpu
        self.fuses = self._on_gpu if fuses is None else fuses
        self.xp: MlxNamespace = MlxNamespace()

    def on_host(self, node: Node) -> bool:
        if node.op.binds_size or isinstance(node.op, ControlFlow):
            return True
        if node.op.name in HOST_OPS:
            return True
        return _is_wide(node) and (self._on_gpu or _is_inexact(node))

    def scope(self) -> AbstractContextManager[object]:
        mx = self.module
        scope: AbstractContextManager[object] = mx.stream(mx.default_device())
        return scope

    def from_host(self, array: np.ndarray[Any, Any], *, copy: bool) -> Any:
        return self.xp.from_numpy(np.ascontiguousarray(array).reshape(array.shape))

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return self.xp.to_numpy(array)

    def copy(self, array: Any) -> Any:
        return array  # nothing ever writes it

    def failure(self, error: Exception) -> None:
        if isinstance(error, OstinatoError):
            raise error
        raise _device_error(error) from error

    def wait(self, arrays: Sequence[Any]) -> None:
        try:
            self.module.eval(*arrays)
        except OstinatoError:
            raise
        except Exception as error:
            raise _device_error(error) from error

    def adopt(self, array: Any) -> Any:
        raise InputError(
            f"MLX does not take a {type(array).__name__} of a GPU: copy it to the host"
        )

    def compile(
        self,
        function: Traced,
        operands: Sequence[tuple[DType, tuple[int, ...]]],
        donated: Sequence[int],
    ) -> ArrayFunction:
        return MlxFunction(self, function, operands)


def _is_wide(node: Node) -> bool:
    """Whether a node has to do with float64, which MLX has on CPUs alone."""
    return any(value.dtype == FLOAT64 for value in (*node.inputs, *node.outputs))


def _is_inexact(node: Node) -> bool:
    """Whether an op of float64 is made of functions that are no more exact than float32's."""
    function = isinstance(node.op, Elementwise) and not node.op.short
    return function or node.op.name in ("expert_mlp", "logcumsumexp", "recurrent_scan")


class MlxFunction:
    """See :class:`ArrayFunction`.

    Args:
        framework: MLX.
        function: is traced now, on arrays of zeros.
        operands: their types.
    """

    stored = False
    memory = FunctionMemory()

    def __init__(
        self,
        framework: MlxFramework,
        function: Traced,
        operands: Sequence[tuple[DType, tuple[int, ...]]],
    ) -> None:
        mx: Any = framework.module
        self._mx = mx
        self._operands = operands
        self._function: Callable[..., list[Any]] = lambda *arrays: list(function(*arrays))
        self.call: Any = self._function if not framework.fuses else mx.compile(self._function)
        self._zeros = [mx.zeros(shape, framework.xp.native(dtype)) for dtype, shape in operands]
        self.call(*self._zeros)  # traced, and not evaluated

    def __call__(self, operands: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = self.call(*operands)
        except OstinatoError:
            raise
        except Exception as error:
            raise _device_error(error) from error
        return found

    @property
    def text(self) -> str:
        """MLX's graph, in the language of Graphviz."""
        import io

        written = io.StringIO()
        self._mx.export_to_dot(written, *self._function(*self._zeros))
        return written.getvalue()


def _device_error(error: Exception) -> DeviceError:
    """The error for one of MLX's."""
    message = f"MLX: {error}"
    if "allocate" in message:
        return DeviceMemoryError(message)
    return DeviceError(message)
