"""A library of matrix products in this process, on the memory of a driver of the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ostinato.backends.cuda.driver import DriverFailure
from ostinato.backends.cuda.product import Matrix, Product
from ostinato.dtypes import DType

from .driver import HostDriver
from .interpreter import memory_at

__all__ = ["HostMultiplication", "HostProducts"]


class HostProducts:
    """See :class:`~ostinato.backends.cuda.product.ProductLibrary`: products by NumPy.

    Args:
        driver: has the memory and the streams.

    Attributes:
        products: those that it was asked for, in order.
    """

    identity = "NumPy"

    def __init__(self, driver: HostDriver) -> None:
        self.driver = driver
        self.products: list[Product] = []

    def multiplication(self, product: Product) -> HostMultiplication:
        self.products.append(product)
        return HostMultiplication(self.driver, product)


class HostMultiplication:
    """See :class:`~ostinato.backends.cuda.product.Multiplication`."""

    def __init__(self, driver: HostDriver, product: Product) -> None:
        self._driver = driver
        self._product = product
        for matrix in (product.a, product.b, product.d):
            if matrix.pitch < matrix.rows:
                raise DriverFailure("layout", "CUBLAS_STATUS_INVALID_VALUE", f"{matrix}")

    def algorithms(self, most: int) -> list[bytes]:
        return [bytes([number] * 64) for number in range(min(most, 3))]

    def launch(self, algorithm: bytes, addresses: Sequence[int], stream: int) -> None:
        product = self._product
        matrices = (product.a, product.b, product.d)
        for address, matrix in zip(addresses, matrices, strict=False):
            assert address % matrix.alignment == 0, f"{address:#x} of {matrix}"

        def work() -> None:
            self._multiply(addresses)

        self._driver.enqueue("multiply", algorithm[0], work, stream)

    def _multiply(self, addresses: Sequence[int]) -> None:
        product = self._product
        a, b = (
            self._array(address, matrix, dtype).astype(_acc(product.result))
            for address, matrix, dtype in zip(
                addresses, (product.a, product.b), product.dtypes, strict=False
            )
        )
        a, b = (
            array.swapaxes(1, 2) if transposed else array
            for array, transposed in zip((a, b), product.transposed, strict=True)
        )
        self._fill(addresses[3], product.workspace)
        target = self._array(addresses[2], product.d, product.result)
        found = np.matmul(a, b)
        if product.scales:
            for address, count, axis in zip(
                addresses[-2:], product.scale_counts, (1, 0), strict=True
            ):
                self._within(address, count * 4)
                found = found * np.expand_dims(
                    memory_at(address, np.dtype(np.float32), count), axis
                )
        if product.bias:
            kind = DType.parse(product.result)
            self._within(addresses[4], product.d.rows * kind.itemsize)
            bias = memory_at(addresses[4], kind.numpy, product.d.rows)
            found = found + bias.astype(found.dtype)[:, None]
        target[:] = found.astype(target.dtype)

    def _fill(self, address: int, nbytes: int) -> None:
        """Spoil the workspace, as an algorithm may."""
        memory_at(address, np.uint8, self._within(address, nbytes))[:] = 0xEE

    def _array(self, address: int, matrix: Matrix, dtype: str) -> np.ndarray:
        """Matrices as an array ``[batch, row, column]``."""
        kind = DType.parse(dtype)
        size, batch = kind.itemsize, self._product.batch
        last = (batch - 1) * matrix.stride + (matrix.columns - 1) * matrix.pitch + matrix.rows
        self._within(address, last * size)
        shape = (batch, matrix.rows, matrix.columns)
        strides = (matrix.stride * size, size, matrix.pitch * size)
        memory = memory_at(address, kind.numpy, last)
        if kind.is_narrow:  # NumPy does not know its name
            return as_strided(memory.view(np.uint8), shape, strides).view(kind.numpy)
        return as_strided(memory, shape, strides)

    def _within(self, address: int, nbytes: int) -> int:
        span = self._driver.span(address)
        assert address + nbytes <= span.end, f"{nbytes} bytes at {address:#x} are not in {span}"
        return nbytes


def _acc(result: str) -> str:
    return "float32" if result in ("float16", "bfloat16") else result
