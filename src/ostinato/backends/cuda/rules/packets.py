"""Kernels about packets: values that are passed from block to block, each element with a flag.

A packet is 64 bits, an element below a word that is not 0 once the element is there. Blocks that
want the values read the packets until all of them are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.body import Body
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.dtypes import UINT64
from ostinato.lower.loopir.nodes import Arg
from ostinato.records import dataclass

if TYPE_CHECKING:
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["ClearPackets", "ReceivePackets"]

_INCLUDES = '#include "packets.cuh"\n'


class _PacketKernel(CudaKernel):
    """A kernel of one call into a header.

    Attributes:
        args: the packets first.
        count: of packets.
    """

    args: tuple[Arg, ...]
    count: int
    variables: tuple[Symbol, ...] = ()

    #: The call, and the number of blocks that share it.
    call: ClassVar[str]
    blocks: ClassVar[int]

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{type(self).__name__}, {self.count}")
        text.head(self.args)

    def variable_free(self) -> bool:
        return True

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(self.blocks, SEGMENT_BLOCK)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        dialect = CudaDialect()
        parameters = [
            f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
            for i, arg in enumerate(self.args)
        ]
        text = f"    {self.call.format(count=self.count)};\n"
        return Body(_INCLUDES, (*parameters, "const long long* vars"), text, SEGMENT_BLOCK)


@dataclass(frozen=True, eq=False)
class ClearPackets(_PacketKernel):
    """Empties packets: nothing is there yet."""

    count: int
    args: tuple[Arg, ...] = (Arg(UINT64, reads=False, writes=True),)
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "clear"
    call: ClassVar[str] = "ost::clear_packets(b0, {count}, own, all)"
    blocks: ClassVar[int] = 64


@dataclass(frozen=True, eq=False)
class ReceivePackets(_PacketKernel):
    """Copies the elements of packets, once they are there, into memory of the block."""

    count: int
    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "receive"
    call: ClassVar[str] = "ost::receive_packets(b0, b1, {count})"
    blocks: ClassVar[int] = 1
