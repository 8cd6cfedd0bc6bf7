"""Names of devices."""

from __future__ import annotations

import re
from typing import ClassVar

from ostinato.errors import DeviceUnavailableError
from ostinato.records import dataclass

__all__ = ["KINDS", "Device"]

#: Every kind that a name may have.
KINDS = ("CPU", "CUDA", "ROCM", "TPU", "METAL", "VULKAN", "WEBGPU", "MLX", "XLA", "REFERENCE")

_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?::([0-9]{1,3}))?")


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

        Any word is accepted as a kind, since other packages may add some;
        :func:`ostinato.is_available` tests for the device.

        Raises:
            DeviceUnavailableError: it is no name of a device.
        """
        if isinstance(device, Device):
            return device
        match = _NAME.fullmatch(device) if isinstance(device, str) else None
        if match is None:
            names = ", ".join(kind.lower() for kind in KINDS)
            raise DeviceUnavailableError(
                f"{device!r:.80} names no device; a name is a kind ({names}) and perhaps a number, "
                "such as 'cuda:1'"
            )
        return Device(match[1].upper(), int(match[2] or 0))


for _kind in KINDS:
    setattr(Device, _kind, Device(_kind))
