"""Kernels about packets: values that are passed from block to block, each element with a mark.

A packet is an element whose bits are all ones until it is there: a NaN that no part sends. Signed
bytes are sent so that -128 would be that, and no part sends it either. Blocks that want the values
read the packets until all of them are there.
"""

from __future__ import annotations

from abc import abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.kernel import CudaKernel
from ostinato.backends.cuda.render.body import Body
from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.dtypes import UINT16
from ostinato.lower.loopir.nodes import Arg
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Symbol

__all__ = ["UNIT_BYTES", "ClearPackets", "ReceivePackets"]

_INCLUDES = '#include "packets.cuh"\n'

UNIT_BYTES = 16
"""Bytes that are received at once, where values are multiples of them, as those of bytes are."""


class _PacketKernel(CudaKernel):
    """A kernel about packets.

    Attributes:
        args: packets, and elements.
        counts: of the elements of each value.
        blocks: blocks that share the work.
    """

    args: tuple[Arg, ...]
    counts: tuple[int, ...]
    variables: tuple[Symbol, ...] = ()

    blocks: ClassVar[int] = 1

    def describe(self, text: KernelText) -> None:
        text.line(0, f"{type(self).__name__}, {self.counts}")
        text.head(self.args)

    def variable_free(self) -> bool:
        return True

    def launch(self, target: CudaTarget) -> Launch:
        return Launch(self.blocks, SEGMENT_BLOCK)

    def source(self, target: CudaTarget) -> str:
        return self.body(target).kernel(self.name)

    def body(self, target: CudaTarget) -> Body:
        return self._body(self._text())

    def _body(self, text: str) -> Body:
        dialect = CudaDialect()
        parameters = [
            f"{'' if arg.writes else 'const '}{dialect.memory_type(arg.dtype)}* b{i}"
            for i, arg in enumerate(self.args)
        ]
        return Body(_INCLUDES, (*parameters, "const long long* vars"), text, SEGMENT_BLOCK)

    @abstractmethod
    def _text(self) -> str:
        """The statements."""


@dataclass(frozen=True, eq=False)
class ClearPackets(_PacketKernel):
    """Empties packets, which are units of two bytes here: nothing is there yet."""

    counts: tuple[int, ...]
    args: tuple[Arg, ...] = (Arg(UINT16, reads=False, writes=True),)
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "clear"
    blocks: ClassVar[int] = 256

    def _text(self) -> str:
        return f"    ost::clear_packets(b0, {sum(self.counts)}, own, all);\n"


@dataclass(frozen=True, eq=False)
class ReceivePackets(_PacketKernel):
    """Copies the elements of packets, once they are there, into memory of the block.

    Its arguments are the packets and the memory of the first value, then those of the next one.
    """

    counts: tuple[int, ...]
    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...] = ()

    prefix: ClassVar[str] = "receive"

    def padded_body(self, rows: Mapping[int, int]) -> Body:
        """The code that leaves 16 bytes behind each row of some values.

        Args:
            rows: by argument, the elements of its rows, whole vectors of 16 bytes.
        """
        return self._body(self._text(rows))

    def _text(self, rows: Mapping[int, int] = MappingProxyType({})) -> str:
        dialect = CudaDialect()
        (dtype,) = {arg.dtype for arg in self.args}
        whole = all(count * dtype.itemsize % UNIT_BYTES == 0 for count in self.counts)
        each = UNIT_BYTES // dtype.itemsize if whole else 1
        type_ = dialect.memory_type(dtype)
        unit = f"ost::packet_unit<{type_}, {each}>"
        packet, lines, first = "", [], 0
        for value, count in enumerate(self.counts):
            last = value + 1 == len(self.counts)
            at = f"(i - {first})" if first else "i"
            address = f"(const {unit}*)b{2 * value} + {at}"
            end = first + count // each
            packet += address if last else f"i < {end} ? {address} : "
            condition = "" if last else f"if (i < {end}) "
            row = rows.get(2 * value + 1, 0) // each
            padding = UNIT_BYTES // (each * dtype.itemsize)
            to = f"{at} + {at} / {row}{f' * {padding}' if padding > 1 else ''}" if row else at
            lines.append(f"{condition}(({unit}*)b{2 * value + 1})[{to}] = found;")
            first = end
        put = " else ".join(lines)
        return (
            f"    ost::receive_packets<{type_}, {first}>([&](int i) {{ return {packet}; }},\n"
            f"        [&](int i, const {unit}& found) {{ {put} }});\n"
        )
