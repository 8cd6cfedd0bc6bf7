"""The interface of compilers of CUDA kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.base import Progress
    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.target import CudaTarget

__all__ = ["Toolchain"]


class Toolchain(Protocol):
    """Makes objects, which the driver loads, from the sources of kernels."""

    @property
    def target(self) -> CudaTarget:
        """The GPU that it compiles for."""

    @property
    def identity(self) -> str:
        """All that objects depend on besides their sources."""

    def compile(
        self, kernels: Sequence[CudaKernel], progress: Progress | None = None
    ) -> Mapping[str, tuple[bytes, Sequence[str]]]:
        """Objects by the cache's key, each with the symbols of its kernels."""

    def assembly(self, kernel: CudaKernel) -> str | None:
        """The code of a kernel as text, if there is a text form."""
