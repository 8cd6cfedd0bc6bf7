"""The backend of XLA's devices."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ostinato.backends.array_api.backend import ArrayBackend
from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from ostinato.backends.device import Device

__all__ = ["XlaBackend"]


class XlaBackend(ArrayBackend):
    """A device of JAX's default platform: ``XLA:0`` is the first of ``jax.devices()``.

    Args:
        device: its name.
        threads: has no effect: XLA has threads of its own.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        from ostinato.backends.array_api.xla.framework import XlaFramework

        super().__init__(device, XlaFramework(_devices()[device.index]))

    @staticmethod
    def count() -> int:
        """The number of devices; 1, where JAX is installed and nothing has imported it yet."""
        if "jax" in sys.modules:
            return len(_devices())
        return int(find_spec("jax") is not None)

    @classmethod
    def probe(cls) -> int:
        return len(_devices())


def _devices() -> list[Any]:
    """JAX's devices.

    Raises:
        DeviceUnavailableError: it is not installed, or finds none.
    """
    try:
        import jax
    except ImportError as error:
        raise DeviceUnavailableError(
            f"JAX cannot be imported ({error}); install the extra ostinato[xla]"
        ) from error
    try:
        return list(jax.devices())
    except RuntimeError as error:
        raise DeviceUnavailableError(f"JAX finds no device: {error}") from error
