"""The backend of MLX's devices."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ostinato.backends.array_api.backend import ArrayBackend
from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from ostinato.backends.device import Device

__all__ = ["MlxBackend"]


class MlxBackend(ArrayBackend):
    """MLX's default device: the GPU where there is one, else the CPU.

    Args:
        device: its name.
        threads: has no effect: MLX has threads of its own.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        from ostinato.backends.array_api.mlx.framework import MlxFramework

        super().__init__(device, MlxFramework())

    @staticmethod
    def count() -> int:
        return int(find_spec("mlx") is not None)

    @classmethod
    def probe(cls) -> int:
        try:
            import mlx.core  # noqa: F401
        except ImportError as error:
            raise DeviceUnavailableError(
                f"MLX cannot be imported ({error}); install the extra ostinato[mlx]"
            ) from error
        return 1
