"""The number of adapters, found by the native library alone: importing ``wgpu`` takes a second."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from ostinato.errors import DeviceUnavailableError

__all__ = ["adapter_count"]

_MISSING = "the package wgpu is not installed: pip install 'ostinato[webgpu]'"

#: Interfaces of the system with the library's numbers, in the order of
#: :func:`ostinato.backends.webgpu.driver.adapters`.
_INTERFACES = {"Metal": 4, "D3D12": 8, "Vulkan": 1}

_FILES = {"win32": "wgpu_native-release.dll", "darwin": "libwgpu_native-release.dylib"}


class _Options(ctypes.Structure):
    """``WGPUInstanceEnumerateAdapterOptions``."""

    _fields_ = (("next_in_chain", ctypes.c_void_p), ("backends", ctypes.c_uint64))


def adapter_count(interface: str = "") -> int:
    """The number of adapters of this machine, each counted once.

    Args:
        interface: see :func:`ostinato.backends.webgpu.driver.adapters`.

    Raises:
        DeviceUnavailableError: the package ``wgpu`` is missing, or its library cannot be loaded.
    """
    counts = _counts(os.getpid())
    return counts[interface] if interface else next((n for n in counts.values() if n), 0)


@functools.cache
def _counts(_process: int) -> dict[str, int]:
    """The numbers by interface, the preferred one first."""
    library = _library()
    create = library.wgpuCreateInstance
    create.restype, create.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    enumerate_ = library.wgpuInstanceEnumerateAdapters
    enumerate_.restype = ctypes.c_size_t
    enumerate_.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Options), ctypes.c_void_p)
    release = library.wgpuInstanceRelease
    release.restype, release.argtypes = None, (ctypes.c_void_p,)
    instance = create(None)
    if not instance:
        return dict.fromkeys(_INTERFACES, 0)
    try:
        return {
            name: int(enumerate_(instance, _Options(None, number), None))
            for name, number in _INTERFACES.items()
        }
    finally:
        release(instance)


def _library() -> ctypes.CDLL:
    found = find_spec("wgpu")
    if found is None or not found.submodule_search_locations:
        raise DeviceUnavailableError(_MISSING)
    name = _FILES.get(sys.platform, "libwgpu_native-release.so")
    path = Path(next(iter(found.submodule_search_locations))) / "resources" / name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceUnavailableError(f"the library of wgpu cannot be loaded: {error}") from None
