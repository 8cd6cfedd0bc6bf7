"""The kernels of the CUDA device: the interface of all kernels, plus a launch and CUDA C++."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch, is_guarded
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.sharing import with_shared_scalars
from ostinato.lower.loopir.text import digest
from ostinato.lower.rules.gpu_nest import GpuLoopNest
from ostinato.lower.rules.sizes import SizeStep
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.render import mapping, nests, sizes
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nest import LoopNest
else:
    mapping = LazyModule("ostinato.backends.cuda.render.mapping")
    nests = LazyModule("ostinato.backends.cuda.render.nests")
    sizes = LazyModule("ostinato.backends.cuda.render.sizes")

__all__ = ["CudaKernel", "CudaLoopNest", "CudaSizeStep"]


class CudaKernel(Kernel):
    """A kernel that runs on an NVIDIA GPU; :mod:`ostinato.backends.cuda.abi` has its signature.

    Attributes:
        prefix: the first part of its name.
    """

    prefix: ClassVar[str] = "kernel"

    @cached_property
    def name(self) -> str:
        """The symbol of its code, the same for kernels with the same description."""
        return f"{self.prefix}{'_guarded' * self.guarded}_{digest(self)[:20]}"

    @property
    def guarded(self) -> bool:
        """See :func:`~ostinato.backends.cuda.abi.is_guarded`."""
        return is_guarded(self.variables)

    @abstractmethod
    def launch(self, target: CudaTarget) -> Launch:
        """The launch on a GPU."""

    @abstractmethod
    def source(self, target: CudaTarget) -> str:
        """CUDA C++ with the function :attr:`name`.

        It may ``#include`` the headers of :mod:`ostinato.backends.cuda.headers`, which are all that
        there are. Everything else that it defines has a name of its own, beginning with
        :attr:`name`: sources are compiled together.
        """

    def body(self, target: CudaTarget) -> Body | None:
        """The code, which may be part of a segment; ``None``: the kernel stands alone."""
        return None

    @property
    def plain_arguments(self) -> frozenset[int]:
        """The arguments that the code reads by loads alone: copies in shared memory will do."""
        return frozenset()


@dataclass(frozen=True, eq=False)
class CudaLoopNest(GpuLoopNest, CudaKernel):
    """A loop nest, its points mapped to the threads of a grid."""

    prefix: ClassVar[str] = "loops"

    @staticmethod
    def of(nest: LoopNest) -> CudaLoopNest:
        """``nest`` as a GPU runs it."""
        shared = replace(nest, stages=with_shared_scalars(nest.stages))
        return CudaLoopNest.with_groups(shared, mapping.scratch_groups(shared))

    @property
    def scratch_bytes(self) -> int:
        return self.scratch_groups * mapping.temp_bytes(self.temps)

    def launch(self, target: CudaTarget) -> Launch:
        return nests.launch(self, target, self.scratch_groups)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        return nests.body(self, target, self.scratch_groups)

    @property
    def plain_arguments(self) -> frozenset[int]:
        return frozenset(range(len(self.args)))

    def whole_rows(self, target: CudaTarget) -> dict[int, int]:
        """See :func:`~ostinato.backends.cuda.render.nests.whole_rows`."""
        return {} if self.scratch_groups else nests.whole_rows(self, target)


@dataclass(frozen=True, eq=False)
class CudaSizeStep(SizeStep, CudaKernel):
    """A kernel that binds or checks a size that depends on data.

    It writes the variable block: the Variable, or, where a number is out of bounds, the status
    words.
    """

    prefix: ClassVar[str] = "size"

    @staticmethod
    def of(step: SizeStep) -> CudaSizeStep:
        """``step`` as a GPU runs it."""
        return CudaSizeStep(step.args, step.variables, step.symbol, step.limit, step.problem)

    @cached_property
    def code(self) -> int:
        """The number in the variable block that stands for this step's failure: not 0."""
        return int(hashlib.sha256(self.problem.encode()).hexdigest()[:15], 16) | 1

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(1, 1)

    def source(self, target: CudaTarget) -> str:
        return sizes.source(self, self.name, self.code)
