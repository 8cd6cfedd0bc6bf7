"""A kernel behind all others of a run, whose only work is to show the host that they have ended.

The host watches a word of page-locked memory, which takes less time than the driver's wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import SIGNAL, SIGNAL_LAUNCH
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import Arg
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["Signal"]

_TEXT = """\
extern "C" __global__ void %s(long long* b0, long long* b1, const long long* vars) {
    const long long runs = b1[0] + 1;
    b1[0] = runs;
#ifdef __CUDA_ARCH__
    __threadfence_system();  // what was written before is there once the host sees the word
#endif
    *(volatile long long*)b0 = runs;
}
"""


@dataclass(frozen=True, eq=False)
class Signal(CudaKernel):
    """Counts runs in the device's memory, and writes their number to the host's.

    Attributes:
        args: the word of the host, and that of the device.
    """

    args: tuple[Arg, ...] = (
        Arg(INT64, reads=False, writes=True),
        Arg(INT64, reads=True, writes=True),
    )
    variables: tuple[Symbol, ...] = ()

    @property
    def name(self) -> str:  # the same in all programs
        return SIGNAL

    def describe(self, text: KernelText) -> None:
        text.line(0, "count a run, and write the number to the host")
        text.head(self.args)

    def launch(self, target: CudaTarget) -> Launch:
        return SIGNAL_LAUNCH

    def source(self, target: CudaTarget) -> str:
        return _TEXT % self.name
