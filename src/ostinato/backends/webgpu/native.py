"""The package ``wgpu``, its native library, and their failures."""

from __future__ import annotations

import functools
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DriverFailure", "failures", "library", "native_api", "new_map_callback"]

#: Interfaces of the system that the library looks at. OpenGL lacks much of what kernels use.
_INTERFACES = ("Metal", "DX12", "Vulkan")


class DriverFailure(Exception):
    """A call of the driver that failed.

    Attributes:
        out_of_memory: whether the device lacked memory.
        lost: whether the device is gone.
    """

    def __init__(self, message: str, *, out_of_memory: bool = False, lost: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory
        self.lost = lost


@functools.cache
def library() -> Any:
    """The package ``wgpu``, with its native library loaded.

    Raises:
        DeviceUnavailableError: it is not installed, or its library cannot be loaded.
    """
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except Exception as error:  # whatever the loader raises
        raise DeviceUnavailableError(
            f"the package wgpu is missing or broken ({error}): pip install 'ostinato[webgpu]'"
        ) from error
    with suppress(RuntimeError):  # the user of this process has made an instance before
        set_instance_extras(backends=_INTERFACES)
    return wgpu


@functools.cache
def native_api() -> Any:
    """The module of the package with ``lib``, ``ffi`` and ``error_handler``."""
    library()
    from wgpu.backends.wgpu_native import _api

    return _api


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Raise what the library reports within the ``with``, on this thread.

    Args:
        doing: what is being done, for messages.
    """
    native = native_api()
    native.error_handler.capture(doing)
    try:
        try:
            yield
        finally:
            reported = native.error_handler.release(doing)
    except DriverFailure:
        raise
    except (library().GPUError, RuntimeError) as error:
        reported = type(error).__name__, str(error)
    if reported is not None:
        kind, message = reported
        raise DriverFailure(
            f"{doing}: {message.strip()}",
            out_of_memory="OutOfMemory" in kind,
            lost="lost" in message.lower(),
        )


def new_map_callback() -> Any:
    """A function that the library calls when a buffer is mapped: it notes the outcome.

    It has to be kept as long as the library may call it.
    """
    native = native_api()

    @native.ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")  # type: ignore[untyped-decorator]
    def mapped(status: int, _message: Any, outcome: Any, _unused: Any) -> None:
        native.ffi.from_handle(outcome).append(status)

    return mapped
