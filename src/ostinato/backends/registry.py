"""The registry of backends: the devices that this process can use.

Backends of other packages register a class under the entry-point group ``ostinato.backends``, with
the device kind in lower case as the entry's name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ostinato.backends.base import Backend
from ostinato.backends.device import KINDS, Device
from ostinato.errors import DeviceUnavailableError, InputError
from ostinato.lazy import LazyModule

if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LazyModule("importlib.metadata")

__all__ = ["available_devices", "is_available", "open_backend"]

_BUILT_IN = {
    "CPU": ("ostinato.backends.cpu.backend", "CpuBackend"),
    "CUDA": ("ostinato.backends.cuda.backend", "CudaBackend"),
    "WEBGPU": ("ostinato.backends.webgpu.backend", "WebGpuBackend"),
}

_GROUP = "ostinato.backends"

_MAX_THREADS = 1024


def open_backend(device: Device | str, threads: int | None = None, **settings: object) -> Backend:
    """Open the backend of ``device``.

    Args:
        device: a device or its name.
        threads: on the CPU, the number of threads that run a graph; ``None``: one for each
            processor that the process may use.
        settings: further arguments of backends of the device's kind.

    Raises:
        DeviceUnavailableError: there is no backend for it; the message says what to do.
        InputError: ``threads`` is no int within its range.
    """
    _check_threads(threads)
    wanted = Device.parse(device)
    backend = _backend_class(wanted.kind)
    if backend is None:
        raise DeviceUnavailableError(_missing(wanted))
    try:
        count = _count(wanted.kind, backend)
    except DeviceUnavailableError as error:
        raise DeviceUnavailableError(
            f"{wanted} is not available: {error}; available here: {_listed()}"
        ) from error
    if not 0 <= wanted.index < count:
        present = f"the only one is {wanted.kind}:0" if count == 1 else f"there are {count}"
        raise DeviceUnavailableError(f"{wanted} is not present: of this kind, {present}")
    return backend(wanted, threads, **settings)


def available_devices() -> list[Device]:
    """Every device that a session can be opened on.

    A backend of another package that fails to load contributes none; opening one of its devices
    raises the reason.
    """
    found: list[Device] = []
    for kind in _registered_kinds():
        try:
            backend = _backend_class(kind)
            count = 0 if backend is None else _count(kind, backend)
        except DeviceUnavailableError:
            continue
        found += [Device(kind, i) for i in range(count)]
    return found


def is_available(device: Device | str) -> bool:
    """Whether a session can be opened on ``device``.

    Raises:
        DeviceUnavailableError: ``device`` is no name of a device at all.
    """
    wanted = Device.parse(device)
    if wanted.kind not in (*KINDS, *_registered_kinds()):
        raise DeviceUnavailableError(_missing(wanted))
    return wanted in available_devices()


def _registered_kinds() -> list[str]:
    """The kinds that have a backend, those of this package first."""
    others = sorted(entry.name.upper() for entry in metadata.entry_points(group=_GROUP))
    return list(dict.fromkeys([*_BUILT_IN, *others]))


def _backend_class(kind: str) -> type[Backend] | None:
    """The backend for a kind, or ``None`` where none is registered.

    Raises:
        DeviceUnavailableError: there is one, and it fails to load.
    """
    if kind in _BUILT_IN:
        module, name = _BUILT_IN[kind]
        return _checked(f"{module}:{name}", getattr(import_module(module), name))
    for entry in metadata.entry_points(group=_GROUP):
        if entry.name.upper() == kind:
            try:
                loaded = entry.load()
            except Exception as error:  # another package's import may fail in any way
                raise DeviceUnavailableError(
                    f"the backend {entry.value} for {kind} failed to load: {error!r}"
                ) from error
            return _checked(entry.value, loaded)
    return None


def _checked(origin: str, loaded: object) -> type[Backend]:
    if isinstance(loaded, type) and issubclass(loaded, Backend):
        return loaded
    raise DeviceUnavailableError(f"the entry point {origin} is no Backend, but {loaded!r:.80}")


def _count(kind: str, backend: type[Backend]) -> int:
    """The number of devices that ``backend`` finds.

    Raises:
        DeviceUnavailableError: its search failed.
    """
    try:
        return backend.count()
    except DeviceUnavailableError:
        raise  # it says why
    except Exception as error:  # another package's code may fail in any way
        raise DeviceUnavailableError(f"looking for {kind} devices failed: {error!r}") from error


def _listed() -> str:
    """The devices that are available, for messages."""
    return ", ".join(map(str, available_devices()))


def _missing(device: Device) -> str:
    """The error message for a device without a backend, with what to do."""
    here = _listed()
    if device.kind not in KINDS:
        names = ", ".join(kind.lower() for kind in KINDS)
        return f"unknown device {device}: the names are {names}; available here: {here}"
    return (
        f"{device} is not available: this version of Ostinato has no {device.kind} backend "
        f"yet, and no other package registers one as {device.kind.lower()!r} in the "
        f"entry-point group {_GROUP!r}; available here: {here}"
    )


def _check_threads(threads: object) -> None:
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (whole and threads in range(1, _MAX_THREADS + 1)):
        raise InputError(f"threads is an int within 1..{_MAX_THREADS}, got {threads!r:.80}")
