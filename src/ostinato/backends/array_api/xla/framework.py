"""XLA as an array framework: arrays of JAX, functions compiled ahead of time."""

from __future__ import annotations

import operator
import pickle
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.array_api.framework import ArrayFunction, Framework, FunctionMemory
from ostinato.backends.array_api.xla.capabilities import CAPABILITIES
from ostinato.backends.array_api.xla.cpu_namespace import CpuJaxNamespace
from ostinato.backends.array_api.xla.gpu_namespace import GpuJaxNamespace
from ostinato.backends.array_api.xla.namespace import JaxNamespace
from ostinato.backends.array_api.xla.rules import RULES
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import process_cache
from ostinato.errors import DeviceError, DeviceMemoryError, InputError, OstinatoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ostinato.backends.array_api.framework import Traced
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node

__all__ = ["XlaFramework"]

#: XLA's settings for results that do not depend on what it fuses.
_OPTIONS = {"xla_allow_excess_precision": False}

#: Those of its CPUs.
_CPU_OPTIONS = {"xla_cpu_enable_fast_math": False}
#: Bytes from which it is faster to give an array's memory away than to copy it.
_LEAST_GIVEN = 32 << 10

#: By JAX's platform, its functions; GPUs of NVIDIA and AMD are one platform, of two more names.
_NAMESPACES: Mapping[str, Callable[[], JaxNamespace]] = MappingProxyType(
    {
        "cpu": CpuJaxNamespace,
        "gpu": GpuJaxNamespace,
        "cuda": GpuJaxNamespace,
        "rocm": GpuJaxNamespace,
    }
)


class XlaFramework(Framework):
    """XLA on one of JAX's devices.

    Args:
        device: JAX's.
    """

    label = "XLA"
    rules = RULES
    capabilities = CAPABILITIES
    starts_calls = True

    def __init__(self, device: Any) -> None:
        import jax

        self._jax = jax
        self._device = device
        self._sharding = jax.sharding.SingleDeviceSharding(device)
        self._is_cpu = device.platform == "cpu"
        self._options = {**_OPTIONS, **(_CPU_OPTIONS if self._is_cpu else {})}
        self.xp: JaxNamespace = _NAMESPACES.get(device.platform, JaxNamespace)()

    def on_host(self, node: Node) -> bool:
        return node.op.binds_size

    def scope(self) -> AbstractContextManager[object]:
        return _Settings(self._jax.enable_x64(True), self._jax.default_device(self._device))

    def launching(self) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = self._jax.enable_x64(True)
        return found

    def settings(
        self, inputs: Iterable[DType]
    ) -> Callable[[], AbstractContextManager[object]] | None:
        """None, but where JAX would make 32 bits of an array of 64 that it is given."""
        wide = partial(self._jax.enable_x64, True)
        return wide if any(dtype.itemsize == 8 for dtype in inputs) else None

    def from_host(self, array: np.ndarray[Any, Any], *, copy: bool) -> Any:
        if not copy:
            return array  # compiled functions take it as it is, without a copy where it is aligned
        return self._jax.device_put(array.copy(), self._sharding)

    def snapshot(self, array: np.ndarray[Any, Any]) -> Any:
        return array.copy()  # a tenth of the time of an array of JAX

    @property
    def taken(self) -> Callable[[np.ndarray[Any, Any]], Any]:
        return operator.methodcaller("copy")

    @property
    def lent(self) -> None:
        """No function: arrays are operands as they are, without a copy where they are aligned."""

    @property
    def copied_out(self) -> Callable[[Any], np.ndarray[Any, Any]]:
        """NumPy's copy, which waits for the array."""
        return np.array

    def gives(self, nbytes: int) -> bool:
        return self._is_cpu and nbytes >= _LEAST_GIVEN

    def failure(self, error: Exception) -> None:
        if isinstance(error, OstinatoError):
            raise error
        raise _device_error(error) from error

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        try:
            found: np.ndarray[Any, Any] = np.asarray(array)
        except Exception as error:
            raise _device_error(error) from error
        return found

    def copy(self, array: Any) -> Any:
        return self._jax.numpy.array(array, copy=True)

    def wait(self, arrays: Sequence[Any]) -> None:
        try:
            for array in arrays:
                if not isinstance(array, np.ndarray):  # an operand that is taken as it is
                    array.block_until_ready()
        except Exception as error:  # XLA's errors have no class of their own that is public
            raise _device_error(error) from error

    def launch(self, arrays: Sequence[Any]) -> None:
        """Do nothing: what is called is under way."""

    def adopt(self, array: Any) -> Any:
        try:
            found = self._jax.dlpack.from_dlpack(array)
        except Exception as error:
            raise InputError(f"JAX does not take it: {error}") from error
        if found.devices() != {self._device}:
            raise InputError(
                f"it is on {found.devices()}, and the graph on {self._device}: move it"
            )
        return found

    def compile(
        self,
        function: Traced,
        operands: Sequence[tuple[DType, tuple[int, ...]]],
        donated: Sequence[int],
    ) -> ArrayFunction:
        jax = self._jax
        types = [
            jax.ShapeDtypeStruct(shape, dtype.numpy, sharding=self._sharding)
            for dtype, shape in operands
        ]

        def compute(*arrays: Any) -> tuple[Any, ...]:
            return tuple(function(*arrays))

        with jax.numpy_dtype_promotion("standard"), jax.debug_nans(False), jax.disable_jit(False):
            traced = jax.jit(compute, donate_argnums=tuple(donated), keep_unused=True)
            lowered = traced.lower(*types)
            return self._compiled(lowered)

    def _compiled(self, lowered: Any) -> XlaFunction:
        """The executable of a lowered function, from the cache if it was compiled before."""
        from jax.experimental import serialize_executable

        made = []

        def build() -> bytes:
            try:
                made.append(lowered.compile(compiler_options=self._options))
            except Exception as error:
                raise _device_error(error) from error
            return pickle.dumps(serialize_executable.serialize(made[0]))

        key = object_key(lowered.as_text(), self._identity)
        stored = process_cache().get_or_build(key, build)
        if made:
            return XlaFunction(made[0], stored=False)
        payload, inputs, outputs = pickle.loads(stored)
        compiled = serialize_executable.deserialize_and_load(
            payload, inputs, outputs, execution_devices=[self._device]
        )
        return XlaFunction(compiled, stored=True)

    @property
    def _identity(self) -> str:
        """All that compiled code depends on, besides the function."""
        jax, device = self._jax, self._device
        parts = [jax.__version__, jax.lib.__version__, device.client.platform_version]
        parts += [device.device_kind, str(device.id), str(sorted(self._options.items()))]
        if self._is_cpu:
            parts.append(self._processor)
        return "\n".join(parts)

    @cached_property
    def _processor(self) -> str:
        """The processor that XLA compiles for: this one."""
        from ostinato.backends.cpu.llvm.toolchain import TargetSpec

        return TargetSpec.host().identity


class _Settings:
    """Two settings of JAX, in force together: an ``ExitStack`` takes three times as long."""

    __slots__ = ("_first", "_second")

    def __init__(
        self, first: AbstractContextManager[object], second: AbstractContextManager[object]
    ) -> None:
        self._first = first
        self._second = second

    def __enter__(self) -> None:
        self._first.__enter__()
        self._second.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._second.__exit__(*error)
        self._first.__exit__(*error)


class XlaFunction:
    """See :class:`ArrayFunction`.

    Args:
        compiled: JAX's, which :attr:`call` is.
        stored: whether it was read from disk.
    """

    def __init__(self, compiled: Any, *, stored: bool) -> None:
        self.call = compiled
        self.stored = stored

    def __call__(self, operands: Sequence[Any]) -> Sequence[Any]:
        try:
            results: Sequence[Any] = self.call(*operands)
        except OstinatoError:
            raise
        except Exception as error:
            raise _device_error(error) from error
        return results

    @property
    def text(self) -> str:
        """The optimised HLO."""
        return str(self.call.as_text())

    @property
    def memory(self) -> FunctionMemory:
        """XLA's own account."""
        found = self.call.memory_analysis()
        temporary = int(getattr(found, "temp_size_in_bytes", 0) or 0)
        return FunctionMemory(temporary, temporary)


def _device_error(error: Exception) -> DeviceError:
    """The error for one of XLA's."""
    message = f"XLA: {error}"
    if "RESOURCE_EXHAUSTED" in message:
        return DeviceMemoryError(message)
    return DeviceError(message)
