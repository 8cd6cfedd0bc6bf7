"""The choice among the algorithms that a library has for a product.

The library guesses which is fastest. The few that it puts first are timed, once for each product on
a kind of GPU; the cache keeps the answer, so that the next process computes the same bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.backends.cuda.driver import DriverFailure
from ostinato.backends.cuda.gpu import Stream
from ostinato.backends.cuda.memory import DeviceBlock
from ostinato.cache.fingerprint import object_key
from ostinato.cache.objects import process_cache
from ostinato.dtypes import FLOAT32, DType
from ostinato.errors import DeviceError, DeviceMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.driver import Driver
    from ostinato.backends.cuda.gpu import Gpu
    from ostinato.backends.cuda.product import Matrix, Multiplication, Product

__all__ = ["ReadyProduct", "ready_product"]

#: Algorithms that are timed, of each kind, and launches of each that count.
_CANDIDATES, _LAUNCHES = 8, 5

#: Bytes that are written before each launch, so that no cache has the operands: weights are read
#: once in a run. The right operand is read behind that: what it has was often just computed.
_FLUSHED = 96 << 20

#: The highest byte of the numbers that operands hold, but for the sign: they are of modest size.
#: All else is random, since the clock depends on how many bits change, and repeats after so many
#: bytes.
_HIGHEST, _RANDOM = 0x3C, 1 << 20


class ReadyProduct:
    """A product with its algorithm: launched like a kernel.

    Args:
        multiplication: computes it.
        algorithm: the way in which it does.
    """

    def __init__(self, multiplication: Multiplication, algorithm: bytes) -> None:
        self._multiplication = multiplication
        self._algorithm = algorithm

    def launch(self, addresses: Sequence[int], stream: int) -> None:
        """Launch it; see :class:`~ostinato.backends.cuda.product.Product`."""
        self._multiplication.launch(self._algorithm, addresses, stream)


def ready_product(gpu: Gpu, product: Product) -> ReadyProduct:
    """A product that a program launches.

    Raises:
        DeviceError: the library has no algorithm for it.
    """
    library = gpu.products
    if library is None:
        raise DeviceError(f"{gpu.device}: there is no library for the product {product}")
    with gpu.current():
        multiplication = library.multiplication(product)
        known = multiplication.algorithms(_CANDIDATES if product.timed else 1)
    if not known:
        raise DeviceError(
            f"{gpu.device}: {library.identity} has no algorithm for the product {product}; compile "
            "with CompileOptions(library_products=False)"
        )
    if len(known) == 1:
        return ReadyProduct(multiplication, known[0])
    text = f"algorithm and workspace for an operand in the cache of {product!r}"
    key = object_key(text, f"{gpu.properties.name} {gpu.target.identity} {library.identity}")
    try:
        found = process_cache().get_or_build(
            key, lambda: _fastest(gpu, product, multiplication, known)
        )
    except DeviceMemoryError:
        return ReadyProduct(multiplication, known[0])
    return ReadyProduct(multiplication, found if found in known else known[0])


def _fastest(
    gpu: Gpu, product: Product, multiplication: Multiplication, algorithms: Sequence[bytes]
) -> bytes:
    """The algorithm that takes the least time.

    Raises:
        DeviceMemoryError: there is no memory to try them.
    """
    left, right, result = (DType.parse(name).itemsize for name in (*product.dtypes, product.result))
    sizes = [
        _nbytes(product, product.a, left),
        _nbytes(product, product.b, right),
        _nbytes(product, product.d, result),
        product.workspace,
        *([product.d.rows * result] if product.bias else ()),
        *(count * FLOAT32.itemsize for count in product.scale_counts),
        _FLUSHED,
    ]
    blocks = [DeviceBlock(gpu, nbytes, f"timing the product {product}") for nbytes in sizes]
    addresses = [block.address for block in blocks]
    stream = Stream(gpu)
    with stream.guard, gpu.current() as driver:
        for address, nbytes, itemsize in zip(addresses, sizes, (left, right), strict=False):
            numbers = _numbers(itemsize)
            for start in range(0, nbytes, _RANDOM):
                part = min(_RANDOM, nbytes - start)
                driver.copy(address + start, numbers.ctypes.data, part, stream.handle)
        timed = _Timed(driver, multiplication, addresses, sizes[1], stream.handle)
        try:
            return min(algorithms, key=timed.seconds)
        finally:
            driver.synchronize(stream.handle)


def _numbers(itemsize: int) -> np.ndarray[Any, Any]:
    """Random numbers of a dtype of so many bytes, little-endian."""
    made = np.random.default_rng(0).integers(0, 256, (_RANDOM // itemsize, itemsize), np.uint8)
    made[:, -1] = made[:, -1] & 0x80 | _HIGHEST
    return made


class _Timed:
    """The times of a product's algorithms, on memory that was filled."""

    def __init__(
        self,
        driver: Driver,
        multiplication: Multiplication,
        addresses: Sequence[int],
        right_bytes: int,
        stream: int,
    ) -> None:
        self._driver = driver
        self._multiplication = multiplication
        self._arguments, self._flushed = addresses[:-1], addresses[-1]
        self._right, self._right_bytes = addresses[1], min(right_bytes, _FLUSHED)
        self._stream = stream

    def seconds(self, algorithm: bytes) -> float:
        """The time that an algorithm takes: the least of several launches."""
        driver, stream = self._driver, self._stream
        try:
            self._multiplication.launch(algorithm, self._arguments, stream)  # loads its kernels
        except DriverFailure as failure:
            if failure.sticky:
                raise
            return math.inf
        events = [driver.create_event(timed=True) for _ in range(2 * _LAUNCHES)]
        try:
            for start, end in zip(events[::2], events[1::2], strict=True):
                driver.fill(self._flushed, 0, _FLUSHED, stream)
                driver.copy(self._flushed, self._right, self._right_bytes, stream)
                driver.record(start, stream)
                self._multiplication.launch(algorithm, self._arguments, stream)
                driver.record(end, stream)
            driver.synchronize(stream)
            pairs = zip(events[::2], events[1::2], strict=True)
            return min(driver.elapsed(start, end) for start, end in pairs)
        finally:
            for event in events:
                driver.destroy_event(event)


def _nbytes(product: Product, matrix: Matrix, itemsize: int) -> int:
    """The bytes from the first element of a matrix, or of a batch of them, to the last."""
    last = (product.batch - 1) * matrix.stride + (matrix.columns - 1) * matrix.pitch + matrix.rows
    return last * itemsize
