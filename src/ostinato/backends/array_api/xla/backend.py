"""The backends of XLA's devices."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from ostinato.backends.array_api.backend import ArrayBackend
from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from ostinato.backends.device import Device

__all__ = ["RocmBackend", "TpuBackend", "XlaBackend"]


class XlaBackend(ArrayBackend):
    """A device of JAX's default platform: ``XLA:0`` is the first of ``jax.devices()``.

    Args:
        device: its name.
        threads: has no effect: XLA has threads of its own.

    Attributes:
        platform: JAX's name of the platform; empty: its default one.
        package: the one that brings the platform.
        advice: how to install it.
    """

    platform: ClassVar[str] = ""
    package: ClassVar[str] = "jax"
    advice: ClassVar[str] = "install the extra ostinato[xla]"

    def __init__(self, device: Device, threads: int | None = None) -> None:
        from ostinato.backends.array_api.xla.framework import XlaFramework

        super().__init__(device, XlaFramework(self._devices()[device.index]))

    @classmethod
    def count(cls) -> int:
        """The number of devices; 1, where a package brings some and nothing has imported JAX."""
        return len(cls._devices()) if "jax" in sys.modules else int(cls._installed())

    @classmethod
    def probe(cls) -> int:
        return len(cls._devices())

    @classmethod
    def _installed(cls) -> bool:
        return find_spec(cls.package) is not None

    @classmethod
    def _devices(cls) -> list[Any]:
        """JAX's devices.

        Raises:
            DeviceUnavailableError: it is not installed, or finds none.
        """
        if not cls._installed():
            raise DeviceUnavailableError(
                f"the package {cls.package} is not installed; {cls.advice}"
            )
        try:
            import jax
        except ImportError as error:
            raise DeviceUnavailableError(f"JAX cannot be imported: {error}") from error
        try:
            return list(jax.devices(cls.platform or None))
        except RuntimeError as error:
            raise DeviceUnavailableError(f"JAX finds no device: {error}") from error


class TpuBackend(XlaBackend):
    """A TPU."""

    platform = "tpu"
    package = "libtpu"
    advice = "install jax[tpu]"


class RocmBackend(XlaBackend):
    """A GPU of AMD, through JAX's plug-in for ROCm."""

    platform = "rocm"
    package = "jax_rocm7_plugin"
    advice = "install jax[rocm7-local]"
