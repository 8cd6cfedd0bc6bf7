"""The registry of devices: those that this process can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.device import KINDS, Device
from ostinato.backends.registration import GROUP, Registrations, built_in
from ostinato.errors import DeviceUnavailableError, InputError, OstinatoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.base import Backend
    from ostinato.backends.registration import Registration

__all__ = ["available_devices", "is_available", "open_backend", "present_devices"]

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
    registration = built_in(wanted.kind) or Registrations().of(wanted.kind)
    if registration is None:
        raise DeviceUnavailableError(_missing(wanted))
    try:
        backend = registration.load()
        count = _count(registration, backend.probe)
    except DeviceUnavailableError as error:
        raise DeviceUnavailableError(
            f"{wanted} is not available: {error}; available here: {_listed()}"
        ) from error
    if not 0 <= wanted.index < count:
        present = f"the only one is {wanted.kind}:0" if count == 1 else f"there are {count}"
        raise DeviceUnavailableError(f"{wanted} is not present: of this kind, {present}")
    try:
        return backend(wanted, threads, **settings)
    except OstinatoError:
        raise  # it says why
    except Exception as error:  # another package's code may fail in any way
        raise DeviceUnavailableError(
            f"{wanted} is not available: the backend {registration} failed to open: {error!r}"
        ) from error


def available_devices() -> list[Device]:
    """Every device that a session can be opened on.

    A backend of another package that is refused or fails to load contributes none; opening one of
    its devices raises the reason.
    """
    return [device for found in present_devices(Registrations()).values() for device in found]


def present_devices(registrations: Registrations) -> dict[str, list[Device]]:
    """The devices of each kind that has a backend; none of one that fails."""
    return {kind: _present(registration) for kind, registration in registrations.usable.items()}


def _present(registration: Registration) -> list[Device]:
    """The devices of a registration's kind; none where it is refused or fails."""
    try:
        count = _count(registration, registration.load().count)
    except DeviceUnavailableError:
        count = 0
    return [Device(registration.kind, i) for i in range(count)]


def is_available(device: Device | str) -> bool:
    """Whether a session can be opened on ``device``.

    Raises:
        DeviceUnavailableError: ``device`` is no name of a device at all.
    """
    wanted = Device.parse(device)
    registration = built_in(wanted.kind) or Registrations().of(wanted.kind)
    if registration is None and wanted.kind not in KINDS:
        raise DeviceUnavailableError(_missing(wanted))
    return registration is not None and wanted in _present(registration)


def _count(registration: Registration, find: Callable[[], object]) -> int:
    """The number of devices that a backend finds.

    Raises:
        DeviceUnavailableError: its search failed.
    """
    kind = registration.kind
    try:
        count = find()
    except DeviceUnavailableError:
        raise  # it says why
    except Exception as error:  # another package's code may fail in any way
        raise DeviceUnavailableError(
            f"looking for {kind} devices by {registration} failed: {error!r}"
        ) from error
    if isinstance(count, int) and count >= 0:
        return count
    raise DeviceUnavailableError(f"the number of {kind} devices by {registration} is {count!r:.80}")


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
        f"entry-point group {GROUP!r}; available here: {here}"
    )


def _check_threads(threads: object) -> None:
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (whole and threads in range(1, _MAX_THREADS + 1)):
        raise InputError(f"threads is an int within 1..{_MAX_THREADS}, got {threads!r:.80}")
