"""``ostinato devices``: the kinds of devices, their availability, and reasons for its lack."""

from __future__ import annotations

from typing import Any

from ostinato.backends.cpu.host import usable_processors
from ostinato.backends.device import KINDS, Device
from ostinato.backends.registration import Registration, Registrations
from ostinato.backends.registry import open_backend, present_devices
from ostinato.errors import DeviceUnavailableError
from ostinato.tools.output import console, printable, table

__all__ = ["list_devices", "show"]


def list_devices() -> dict[str, Any]:
    """The report on devices and on the processor, as JSON has it."""
    registrations = Registrations()
    present = present_devices(registrations)
    kinds = dict.fromkeys([*KINDS, *present])
    return {
        "devices": [
            _device(kind, present.get(kind, []), registrations.usable.get(kind)) for kind in kinds
        ],
        "refused": [_refused(registration) for registration in registrations.refused],
        "cpu": _cpu(),
    }


def _device(kind: str, present: list[Device], registration: Registration | None) -> dict[str, Any]:
    return {
        "kind": kind.lower(),
        "available": bool(present),
        "names": [str(device) for device in present],
        "package": None if registration is None else registration.package,
        "reason": None if present else _why_not(Device(kind)),
    }


def _refused(registration: Registration) -> dict[str, Any]:
    """A backend that another package registers in vain."""
    return {
        "kind": registration.kind.lower(),
        "package": registration.package,
        "reason": registration.problem,
    }


def _why_not(device: Device) -> str:
    try:
        open_backend(device)
    except DeviceUnavailableError as error:
        return str(error)
    return "it has just become available"


def _cpu() -> dict[str, Any]:
    import llvmlite

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.cache.store import default_directory

    target = TargetSpec.named("host", amx=True)
    features = [f[1:] for f in target.features.split(",") if f.startswith("+")]
    return {
        "processor": target.cpu,
        "triple": target.triple,
        "vector_bits": 8 * target.vector_bytes,
        "features": sorted(features),
        "threads": usable_processors(),
        "llvmlite": llvmlite.__version__,
        "cache_directory": str(default_directory()),
    }


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    out = console()
    rows = [
        (
            d["kind"],
            "yes" if d["available"] else "no",
            printable(d["package"] or ""),
            printable(", ".join(d["names"]) or d["reason"]),
        )
        for d in report["devices"]
    ]
    out.print(table("Devices", ["device", "available", "package", ""], rows))
    refused = [
        (printable(d["kind"]), printable(d["package"]), printable(d["reason"]))
        for d in report["refused"]
    ]
    if refused:
        out.print(table("Refused", ["device", "package", "reason"], refused))
    cpu = dict(report["cpu"])
    cpu["features"] = " ".join(cpu["features"])
    rows_of_cpu = [(name.replace("_", " "), printable(str(value))) for name, value in cpu.items()]
    out.print(table("This processor", ["", ""], rows_of_cpu))
