"""An opened GPU: its primary context, its code, and what has become of it."""

from __future__ import annotations

import os
import weakref
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ostinato.agreed import agreed_property
from ostinato.backends.common.mutex import Mutex
from ostinato.backends.cuda.driver import DriverFailure
from ostinato.backends.cuda.target import CudaTarget
from ostinato.errors import DeviceError, DeviceMemoryError
from ostinato.plan.dlpack import LEGACY_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from ostinato.backends.cuda.driver import DeviceProperties, Driver
    from ostinato.backends.cuda.product import ProductLibrary
    from ostinato.backends.device import Device

__all__ = ["CurrentContext", "Gpu", "Library", "Stream"]


class Gpu:
    """A GPU that this process uses, through its primary context.

    Args:
        driver: the driver.
        device: its name.
        products: opens the library of matrix products; ``None``: there is none.

    Attributes:
        driver, device: see above.
        context: the driver's handle of its primary context.

    Raises:
        DeviceError: it was lost to this process.
    """

    def __init__(
        self,
        driver: Driver,
        device: Device,
        products: Callable[[], ProductLibrary] | None = None,
    ) -> None:
        self.driver = driver
        self.device = device
        self._open_products = products
        self._process = os.getpid()
        self._lost = ""
        try:
            self.context = driver.retain(device.index)
        except DriverFailure as error:
            raise self.explain(error) from error
        self._current = CurrentContext(self, self.context)
        self._guard = Mutex()
        self._libraries: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()

    @cached_property
    def properties(self) -> DeviceProperties:
        """The properties that decide how code is made."""
        return self.driver.properties(self.device.index)

    @cached_property
    def target(self) -> CudaTarget:
        """The GPU as the compiler sees it."""
        found = self.properties
        return CudaTarget(
            found.arch,
            found.multiprocessors,
            found.shared_bytes_per_block,
            found.threads_per_multiprocessor,
        )

    @property
    def has_products(self) -> bool:
        """Whether there is a library of matrix products."""
        return self._open_products is not None

    @agreed_property
    def products(self) -> ProductLibrary | None:
        """The library of matrix products, opened at its first use.

        Raises:
            DeviceUnavailableError: its file cannot be loaded.
        """
        return None if self._open_products is None else self._open_products()

    @agreed_property
    def memory_stream(self) -> Stream:
        """The stream that memory is taken and given back on; nothing else, so it never records."""
        return Stream(self)

    def current(self) -> CurrentContext:
        """Make its context the calling thread's current one, for the length of a ``with``.

        Raises:
            DeviceError: (within the ``with``) the device was lost, by this or an earlier call; or
                the process was forked.
        """
        return self._current

    def check(self) -> None:
        """Check that the device can be used.

        Raises:
            DeviceError: it was lost, or the process was forked.
        """
        if self._lost:
            raise DeviceError(self._lost)
        if self._process != os.getpid():
            raise DeviceError(
                f"{self.device} was opened before os.fork, and CUDA does not work in the child: "
                "open sessions in the child, or start it with the method 'spawn'"
            )

    def explain(self, error: DriverFailure) -> DeviceError:
        """The error for a call of the driver that failed; the device may be lost from now on."""
        if not error.sticky:
            return DeviceError(f"{self.device}: {error}")
        self._lost = (
            f"{self.device} was lost and cannot be used again in this process: {error}; a kernel "
            "has failed, which CompileOptions(launch_graphs=False) and compute-sanitizer narrow "
            "down"
        )
        return DeviceError(self._lost)

    def refuse(self, name: str, status: int) -> None:
        """Raise the error for a call of the driver that native code made, and that failed."""
        try:
            self.driver.refuse(name, status)
        except DriverFailure as error:
            raise self.explain(error) from error

    def allocate(self, nbytes: int, purpose: str) -> int:
        """Zeroed memory of the device.

        Raises:
            DeviceMemoryError: there is not enough of it.
        """
        stream = self.memory_stream.handle
        with self.current() as driver:
            self._expect_room(driver, nbytes, purpose)
            with self._enough(driver, nbytes, purpose):
                address = driver.allocate(max(nbytes, 1), stream)
            driver.fill(address, 0, max(nbytes, 1), stream)
            driver.synchronize(stream)
        return address

    @cached_property
    def page_bytes(self) -> int:
        """The size of a page of its memory."""
        with self.current() as driver:
            return driver.page_bytes(self.device.index)

    def reserve(self, nbytes: int, purpose: str) -> int:
        """The first of addresses for whole pages, which have no memory until :meth:`map_pages`.

        Raises:
            DeviceMemoryError: there are not as many addresses.
        """
        with self.current() as driver, self._enough(driver, nbytes, purpose):
            return driver.reserve(nbytes)

    def map_pages(self, address: int, nbytes: int, purpose: str) -> None:
        """Give whole pages of reserved addresses memory, zeroed.

        Raises:
            DeviceMemoryError: there is not enough of it.
        """
        stream = self.memory_stream.handle
        with self.current() as driver:
            self._expect_room(driver, nbytes, purpose)
            with self._enough(driver, nbytes, purpose):
                driver.map_pages(self.device.index, address, nbytes)
            driver.fill(address, 0, nbytes, stream)
            driver.synchronize(stream)

    @contextmanager
    def _enough(self, driver: Driver, nbytes: int, purpose: str) -> Iterator[None]:
        """Name the use of memory where there is not enough of it."""
        try:
            yield
        except DriverFailure as error:
            if not error.out_of_memory:
                raise
            raise self._no_room(driver, nbytes, purpose) from None

    def _expect_room(self, driver: Driver, nbytes: int, purpose: str) -> None:
        """Refuse more than the GPU has: the driver takes all that is free before it fails."""
        if nbytes > self.properties.total_bytes:
            raise self._no_room(driver, nbytes, purpose)

    def _no_room(self, driver: Driver, nbytes: int, purpose: str) -> DeviceMemoryError:
        free, total = driver.memory_info()
        return DeviceMemoryError(
            f"{self.device} has no {nbytes:,} bytes for {purpose}: {free:,} of its "
            f"{total:,} bytes are free; close other graphs, or bound sizes more tightly"
        )

    def wait_for_legacy_stream(self) -> None:
        """Wait for the legacy default stream, on which producers hand arrays over."""
        with self.current() as driver:
            driver.synchronize(LEGACY_STREAM)

    def library(self, key: str, image: bytes) -> Library:
        """The library of an image of code, loaded once."""
        with self._guard:
            found = self._libraries.get(key)
            if found is None:
                with self.current() as driver:
                    found = Library(self, driver.load(image))
                self._libraries[key] = found
            return found

    def release(self, call: str, *arguments: Any) -> None:
        """Call the driver to give something back; nothing is left to be done where that fails.

        Finalisers come here, on any thread, and as late as at the end of the process.
        """
        if self._lost or self._process != os.getpid():
            return
        try:
            self.driver.push(self.context)
            try:
                getattr(self.driver, call)(*arguments)
            finally:
                self.driver.pop()
        except Exception:  # even modules may be gone by then
            return


class CurrentContext:
    """See :meth:`Gpu.current`; used by all threads, since it has nothing of its own."""

    __slots__ = ("_context", "_driver", "_gpu")

    def __init__(self, gpu: Gpu, context: int) -> None:
        self._gpu = gpu
        self._driver = gpu.driver
        self._context = context

    def __enter__(self) -> Driver:
        self._gpu.check()
        self._driver.push(self._context)
        return self._driver

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._driver.pop()
        except DriverFailure as failure:
            if error is None:
                raise self._gpu.explain(failure) from failure
        if isinstance(error, DriverFailure):
            raise self._gpu.explain(error) from error


class Library:
    """Compiled kernels on a GPU, unloaded with the last reference.

    Args:
        gpu: the GPU.
        handle: the driver's.
    """

    def __init__(self, gpu: Gpu, handle: int) -> None:
        self._gpu = gpu
        self._handle = handle
        self._functions: dict[tuple[str, int], int] = {}
        weakref.finalize(self, gpu.release, "unload", handle).atexit = False

    def function(self, name: str, shared_bytes: int) -> int:
        """A kernel that may be launched with as much dynamic shared memory."""
        key = name, shared_bytes
        if key not in self._functions:
            with self._gpu.current() as driver:
                self._functions[key] = driver.function(self._handle, name, shared_bytes)
        return self._functions[key]


class Stream:
    """A stream of a GPU.

    Attributes:
        gpu: the GPU.
        handle: the driver's.
        guard: to be held from the first work of a run until it is done: a graph that is recorded
            must not hold work of others.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.guard = Mutex()
        with gpu.current() as driver:
            self.handle = driver.create_stream()
        weakref.finalize(self, gpu.release, "destroy_stream", self.handle).atexit = False
