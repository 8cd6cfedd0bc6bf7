"""Tensor maps: what the driver is asked for, and where kernels get the answer."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from ostinato.backends.cuda.abi import TENSOR_MAP_BYTES, Launch, TensorMap
from ostinato.backends.cuda.driver import NvidiaDriver

from .test_failures import FakeApi

#: Two matrices: one in lines, swizzled, and scales beside it.
MAPS = (
    TensorMap(1, 32, 32, 64, 16, 2048, 32, 8, 16, True),
    TensorMap(2, 0, 32, 64, 1, 128, 32, 8, 1, False),
)


class MapsApi(FakeApi):
    """The bindings of a driver that numbers the maps it encodes, and records launches."""

    CUtensorMapDataType = SimpleNamespace(CU_TENSOR_MAP_DATA_TYPE_INT32="int32")
    CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE="packed")
    CUtensorMapSwizzle = SimpleNamespace(
        CU_TENSOR_MAP_SWIZZLE_NONE="none", CU_TENSOR_MAP_SWIZZLE_128B="128 bytes"
    )
    CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B="256 bytes")
    CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE="zeros")
    cuuint64_t = cuuint32_t = int

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[tuple[Any, ...]] = []
        self.launched: list[tuple[list[int], bytes]] = []
        self.kept: list[Any] = []

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[Any, Any]:
        self.encoded.append(arguments)
        words = ctypes.create_string_buffer(
            bytes([len(self.encoded)]) * TENSOR_MAP_BYTES, TENSOR_MAP_BYTES
        )
        self.kept.append(words)
        return "success", SimpleNamespace(getPtr=lambda: ctypes.addressof(words))

    def cuLaunchCooperativeKernel(self, *arguments: Any) -> tuple[Any]:
        params = (ctypes.c_void_p * 4).from_address(arguments[-1])
        values = [ctypes.c_uint64.from_address(params[i]).value for i in range(3)]
        self.launched.append((values, ctypes.string_at(params[3], 2 * TENSOR_MAP_BYTES)))
        return ("success",)


def test_a_kernel_gets_the_maps_of_its_arguments_behind_them() -> None:
    api = MapsApi()
    driver = NvidiaDriver(api)
    launch = Launch(132, 288, 1024, cooperative=True, maps=tuple(map(tuple, MAPS)))
    driver.launch(5, launch, [1 << 20, 2 << 20, 3 << 20], 7)
    common = ("packed", "128 bytes", "256 bytes", "zeros")
    address = (2 << 20) + 32
    assert api.encoded == [
        ("int32", 3, address, [32, 64, 16], [2048, 128], [32, 8, 16], [1, 1, 1], *common),
        (
            *("int32", 3, 3 << 20, [32, 64, 1], [128, 128], [32, 8, 1], [1, 1, 1]),
            *("packed", "none", "256 bytes", "zeros"),
        ),
    ]
    words = bytes([1]) * TENSOR_MAP_BYTES + bytes([2]) * TENSOR_MAP_BYTES
    assert api.launched == [([1 << 20, 2 << 20, 3 << 20], words)]
    driver.launch(5, launch, [1 << 20, 2 << 20, 3 << 20], 7)
    assert len(api.encoded) == 2  # the same again
    driver.launch(5, launch, [1 << 20, 4 << 20, 3 << 20], 7)
    assert len(api.encoded) == 4
