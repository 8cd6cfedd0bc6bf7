"""Arrays in the memory of a device, as users give them and handles keep them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CUDA", "DeviceArray", "Flags", "device_of", "may_share_memory", "on_host"]

#: DLPack's type of devices with CUDA memory.
CUDA = 2

#: By kind of device, DLPack's type of it.
_DLPACK_TYPES = {"CUDA": CUDA, "VULKAN": 7, "METAL": 8, "WEBGPU": 15}


class Flags(NamedTuple):
    """The flags of an array that checks ask for, by NumPy's names."""

    c_contiguous: bool = True
    writeable: bool = True


class DeviceArray:
    """An array in the memory of a device, its elements in C order.

    One in CUDA memory is exported to other libraries by DLPack, without a copy. NumPy gets a copy.

    Args:
        device: the device.
        memory: the block that it starts.
        shape: its shape.
        dtype: NumPy's element type.
        flags: whether its elements lie in C order, and may be written.

    Attributes:
        device, memory, shape, dtype, flags: see above.
    """

    def __init__(
        self,
        device: Any,
        memory: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        flags: Flags | None = None,
    ) -> None:
        self.device = device
        self.memory = memory
        self.shape = tuple(shape)
        self.dtype = dtype
        self.flags = flags or Flags()

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        """The address of the first element, on the device."""
        address: int = self.memory.address
        return address

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of it in the memory of the host."""
        array = np.empty(self.shape, self.dtype)
        octets: Any = array.reshape(-1).view(np.uint8)
        self.memory.read(0, memoryview(octets))
        return array

    def __getitem__(self, rows: int | slice) -> np.ndarray[Any, Any]:
        """A copy of a row, or of some, in the memory of the host.

        Raises:
            IndexError: there is no such row.
        """
        found = range(self.shape[0])[rows]
        if isinstance(found, range) and found.step != 1:
            return self.numpy()[rows]
        first, count = (found, 1) if isinstance(found, int) else (found.start, len(found))
        array = np.empty((count, *self.shape[1:]), self.dtype)
        octets: Any = array.reshape(-1).view(np.uint8)
        if octets.size:
            self.memory.read(first * (octets.size // count), memoryview(octets))
        return array[0] if isinstance(found, int) else array

    def copy(self, order: str = "C") -> DeviceArray:
        """A copy of it on the same device."""
        return type(self)(self.device, self.memory.copy(), self.shape, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"an array on {self.device} cannot be seen by NumPy without a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_TYPES.get(self.device.kind, CUDA), self.device.index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule; all work on the array is done, so ``stream`` has nothing to wait for.

        Raises:
            BufferError: the memory has no address that other libraries could use.
        """
        if self.__dlpack_device__()[0] != CUDA:
            raise BufferError(f"memory of {self.device} is not exported; call numpy() for a copy")
        if copy:
            raise BufferError("DLPack exports the memory itself; copy the array before")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"an array on {self.device} is not exported to another device")
        from ostinato.plan.dlpack import export_tensor  # ctypes, only where it is needed

        device = self.__dlpack_device__()
        return export_tensor(self, self.address, self.shape, self.dtype, device)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype} {self.shape} on {self.device}>"


def device_of(given: object) -> int | None:
    """DLPack's type of the device that an object has its elements on; ``None``: it says nothing."""
    ask = getattr(given, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        return int(ask()[0])
    except Exception:  # what a foreign object raises is its own choice; it is no device's
        return None


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """An array of the host: this one, or a copy of one on a device."""
    found: np.ndarray[Any, Any] = array.numpy() if isinstance(array, DeviceArray) else array
    return found


def may_share_memory(a: Any, b: Any) -> bool:
    """Whether the bytes of two arrays overlap, as far as their first and last bytes say."""
    if not (isinstance(a, DeviceArray) or isinstance(b, DeviceArray)):
        return np.may_share_memory(a, b)
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return False
    return a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
