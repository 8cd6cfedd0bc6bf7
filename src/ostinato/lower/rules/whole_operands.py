"""Kernels that take their operands whole, each in C order, and write whole results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.updates import copy_nest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["Places", "lower_whole", "whole"]


class Places:
    """The arguments of a kernel, and the positions of a node's operands and results among them.

    Attributes:
        args: the buffers, each once.
        operands: by operand, its position.
        results: by result, its position.
        scratch: the positions of memory that the kernel alone uses.
    """

    def __init__(
        self,
        args: tuple[Arg, ...],
        operands: tuple[int, ...],
        results: tuple[int, ...],
        scratch: tuple[int, ...],
    ) -> None:
        self.args = args
        self.operands = operands
        self.results = results
        self.scratch = scratch


def lower_whole(
    lowering: ProgramBuilder,
    region: Region,
    root: Node,
    make: Callable[[Places], Kernel],
    scratch: Sequence[LoweredBuffer] = (),
) -> None:
    """Lower the root as a kernel of its own, then store what else the region computes.

    Args:
        lowering: the program under construction.
        region: the root, and elementwise nodes after it.
        root: the node that the kernel computes.
        make: makes the kernel.
        scratch: memory that the kernel needs besides its operands and results.
    """
    outputs = dict(lowering.region_outputs(region))
    build = lowering.helper_builder()
    read = tuple(build.argument(whole(lowering, v), reads=True) for v in root.inputs)
    results: dict[Value, LoweredBuffer] = {}
    for value in root.outputs:
        direct = value in outputs and outputs[value].layout is None
        aside = LoweredBuffer(value.type, Role.TEMP, root.label, value)
        results[value] = outputs.pop(value) if direct else aside
    written = tuple(build.argument(buffer, writes=True) for buffer in results.values())
    extra = tuple(build.argument(buffer, reads=True, writes=True) for buffer in scratch)
    kernel = make(Places(build.args, read, written, extra))
    flops = root.op.flops([v.type for v in root.inputs], root.attrs)
    lowering.helper_call(root, root.op.name, build, kernel, flops)
    lowering.counted.add(root)
    lowering.stored.update(results)
    _store_rest(lowering, region, outputs)


def whole(lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
    """A buffer that holds ``value`` alone and in C order: its own, or that of a copy."""
    buffer = lowering.stored.get(value)
    if buffer is None or buffer.layout is not None:
        lowering.copy(value)
    return lowering.stored[value]


def _store_rest(
    lowering: ProgramBuilder, region: Region, outputs: Mapping[Value, LoweredBuffer]
) -> None:
    for value, buffer in outputs.items():
        build = lowering.builder(region)
        nest = copy_nest(build, value, buffer, lowering.variables)
        lowering.call(region, build, nest, [(value, buffer)])
