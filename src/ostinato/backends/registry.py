"""Which devices this process can use.

Backends of other packages register a class under the entry-point group ``ostinato.backends``, with
the device kind in lower case as the entry's name.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, cast

from ostinato.backends.device import Device
from ostinato.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from ostinato.backends.base import Backend

__all__ = ["available_devices", "is_available", "open_backend"]

_BUILT_IN = {"CPU": ("ostinato.backends.cpu.backend", "CpuBackend")}

_GROUP = "ostinato.backends"


def open_backend(device: Device | str, threads: int | None = None) -> Backend:
    """The backend that drives ``device``.

    Raises:
        DeviceUnavailableError: nothing here drives it; the message says what is available.
    """
    wanted = Device.parse(device)
    backend = _backend_class(wanted.kind)
    if backend is None:
        known = ", ".join(str(d) for d in available_devices())
        raise DeviceUnavailableError(
            f"no backend for {wanted} is installed: this version of Ostinato has one for {known}; "
            f"other packages add theirs through the entry-point group {_GROUP!r}"
        )
    if wanted.index >= backend.count():
        raise DeviceUnavailableError(
            f"{wanted} is not present: there are {backend.count()} devices of kind {wanted.kind}"
        )
    return backend(wanted, threads)


def available_devices() -> list[Device]:
    """Every device that a session can be opened on."""
    kinds = [*_BUILT_IN, *(e.name.upper() for e in metadata.entry_points(group=_GROUP))]
    found: list[Device] = []
    for kind in dict.fromkeys(kinds):
        backend = _backend_class(kind)
        if backend is not None:
            found += [Device(kind, i) for i in range(backend.count())]
    return found


def is_available(device: Device | str) -> bool:
    """Whether a session can be opened on ``device``."""
    return Device.parse(device) in available_devices()


def _backend_class(kind: str) -> type[Backend] | None:
    if kind in _BUILT_IN:
        module, name = _BUILT_IN[kind]
        return cast("type[Backend]", getattr(import_module(module), name))
    for entry in metadata.entry_points(group=_GROUP, name=kind.lower()):
        return cast("type[Backend]", entry.load())
    return None
