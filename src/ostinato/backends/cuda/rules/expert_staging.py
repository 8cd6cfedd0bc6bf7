"""Kernels for experts of which some are resident: they bring the others that a run has chosen.

A *place* is the position of an expert's matrices in the device's memory: a slot of a resident
expert, or one of the places behind all slots, where experts are staged for the length of a layer.
The matrices of all experts are in page-locked memory of the host, which the device reads.
"""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.frame import function
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["PlaceExperts", "StageExperts"]

_THREADS = 256

_PLACE = Template("""\
    __shared__ int found[$experts];
    for (int expert = threadIdx.x; expert < $experts; expert += $threads)
        found[expert] = 0;
    __syncthreads();
    for (long long row = threadIdx.x; row < rows; row += $threads) {
        long long expert = b0[row];
        expert = expert < 0 ? expert + $experts : expert;
        expert = expert < 0 ? 0 : expert > $experts - 1 ? $experts - 1 : expert;
        atomicOr(&found[expert], 1);
        b2[row] = expert;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int count = 0;
        for (int expert = 0; expert < $experts; expert++) {
            const long long slot = b1[expert];
            if (slot >= 0) {
                found[expert] = (int)slot;
            } else if (found[expert]) {
                found[expert] = $first + count;
                b3[count] = expert;
                count++;
            }
        }
        b1[$experts] += count;
        for (int i = count; i < $staged; i++)
            b3[i] = -1;
    }
    __syncthreads();
    for (long long row = threadIdx.x; row < rows; row += $threads)
        b2[row] = found[b2[row]];
""")


@dataclass(frozen=True, eq=False)
class PlaceExperts(CudaKernel):
    """Finds the place of each row's expert, and lists the experts that have to be staged.

    Attributes:
        args: the ids of the experts, by row; the table: by expert its slot or -1, then the number
            of experts that were staged so far; the places, by row; the experts to be staged, then
            -1.
        rows: how many there are.
        experts: how many there are.
        first: the first place of staged experts.
        staged: how many are staged at most, as many as a run can miss.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    rows: Dim
    experts: int
    first: int
    staged: int
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "place_experts"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"places of {self.experts} experts, staged ones from {self.first} on")
        text.head(self.args)
        text.line(1, f"{text.dim(self.rows)} rows, {self.staged} staged")

    def variable_free(self) -> bool:
        return isinstance(self.rows, int)

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(1, _THREADS)

    def source(self, target: CudaTarget) -> str:
        body = _PLACE.substitute(
            threads=_THREADS, experts=self.experts, first=self.first, staged=self.staged
        )
        return function(self, body, {"rows": self.rows}, _THREADS)


#: Bytes that a block copies, and those of a thread that are under way at a time.
_BLOCK_BYTES, _AT_ONCE = 64 << 10, 4

_STAGE = Template("""\
    const int number = blockIdx.x / $blocks, part = blockIdx.x % $blocks;
    const long long expert = b0[number];
    if (expert < 0)
        return;
    const $word* source = (const $word*)b1[expert];
    $word* target = ($word*)b2 + ($first + number) * ${words}LL;
    const long long start = (long long)part * $share;
    const long long end = start + $share < $words ? start + $share : $words;
    for (long long at = start + threadIdx.x; at < end; at += $threads * $unroll) {
        $word read[$unroll];
        for (int i = 0; i < $unroll; i++) {
            if (at + i * $threads < end)
                read[i] = source[at + i * $threads];
        }
        for (int i = 0; i < $unroll; i++) {
            if (at + i * $threads < end)
                target[at + i * $threads] = read[i];
        }
    }
""")


@dataclass(frozen=True, eq=False)
class StageExperts(CudaKernel):
    """Copies a matrix of each expert to be staged from the host's memory to its place.

    Attributes:
        args: the experts to be staged; by expert, the address of its matrix; all places.
        nbytes: of a matrix.
        first: the first place of staged experts.
        staged: how many there are at most.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    nbytes: int
    first: int
    staged: int
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "stage_experts"

    def describe(self, text: KernelText) -> None:
        text.line(
            0, f"{self.staged} matrices of {self.nbytes} bytes to places from {self.first} on"
        )
        text.head(self.args)

    def variable_free(self) -> bool:
        return False

    @property
    def _blocks(self) -> int:
        """Blocks for a matrix."""
        return -(-self.nbytes // _BLOCK_BYTES)

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(self.staged * self._blocks, _THREADS)

    def source(self, target: CudaTarget) -> str:
        width = math.gcd(self.nbytes, 16)
        body = _STAGE.substitute(
            threads=_THREADS,
            unroll=_AT_ONCE,
            blocks=self._blocks,
            share=_BLOCK_BYTES // width,
            words=self.nbytes // width,
            first=self.first,
            word=_WORDS.get(width, "unsigned char"),
        )
        return function(self, body, {}, _THREADS)


#: By bytes, the widest type that a matrix consists of.
_WORDS = {
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
    16: "ost::vector<unsigned int, 4>",
}
