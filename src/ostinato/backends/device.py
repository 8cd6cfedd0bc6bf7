"""Names of devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ostinato.errors import DeviceUnavailableError

__all__ = ["KINDS", "Device"]

#: Every kind that a name may have.
KINDS = ("CPU", "CUDA", "ROCM", "TPU", "METAL", "VULKAN", "WEBGPU", "MLX", "XLA", "REFERENCE")


@dataclass(frozen=True)
class Device:
    """A device: its kind, and which one of that kind.

    ``str(Device.CPU)`` is ``"CPU:0"``; ``Device.parse("cuda:1")`` is the second CUDA device.
    """

    kind: str
    index: int = 0

    CPU: ClassVar[Device]
    CUDA: ClassVar[Device]
    ROCM: ClassVar[Device]
    TPU: ClassVar[Device]
    METAL: ClassVar[Device]
    VULKAN: ClassVar[Device]
    WEBGPU: ClassVar[Device]
    MLX: ClassVar[Device]
    XLA: ClassVar[Device]
    REFERENCE: ClassVar[Device]

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    @staticmethod
    def parse(device: Device | str) -> Device:
        """The device of a name such as ``"cpu"`` or ``"cuda:1"``, in any case.

        Raises:
            DeviceUnavailableError: no device has such a name.
        """
        if isinstance(device, Device):
            return device
        match = (
            re.fullmatch(r"([A-Za-z]+)(?::(\d{1,3}))?", device) if isinstance(device, str) else None
        )
        kind = match[1].upper() if match else ""
        if match is None or kind not in KINDS:
            names = ", ".join(k.lower() for k in KINDS)
            raise DeviceUnavailableError(f"unknown device {device!r}; the devices are {names}")
        return Device(kind, int(match[2] or 0))


for _kind in KINDS:
    setattr(Device, _kind, Device(_kind))
