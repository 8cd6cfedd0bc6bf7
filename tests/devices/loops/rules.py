"""The rule table and the capabilities: what loop nests cannot express is a library call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato import reference
from ostinato.backends.base import Capabilities
from ostinato.dtypes import ALL_DTYPES
from ostinato.ir.graph import Node, Value
from ostinato.ir.leaves import LEAVES
from ostinato.lower.control import CONTROL_OPS
from ostinato.lower.fusion.regions import Region
from ostinato.lower.loopir.builder import INDEX_OPS, POINTWISE
from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.loopir.text import KernelText
from ostinato.lower.loopir.views import VIEWS
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.program_builder import ProgramBuilder
from ostinato.lower.rules.table import SHARED_RULES, RuleTable
from ostinato.lower.rules.updates import copy_nest
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.variables import Symbol, evaluate

__all__ = ["CAPABILITIES", "TABLE", "LibraryCall"]


@dataclass(frozen=True, eq=False)
class LibraryCall(Kernel):
    """An op by a library call: here its own rule, on NumPy arrays.

    Attributes:
        args: the operands and results, each buffer once.
        variables: the graph's Variables.
        node: the op, its attributes and the types of its operands.
        operands: by operand, the position of its buffer among ``args``.
        results: the same by result.
    """

    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...]
    node: Node
    operands: tuple[int, ...]
    results: tuple[int, ...]

    def describe(self, text: KernelText) -> None:
        text.line(0, f"call {self.node}")
        text.head(self.args)

    def run(self, buffers: Sequence[np.ndarray[Any, Any]], sizes: Mapping[Symbol, int]) -> None:
        """Run on one-dimensional buffers, one for each argument."""
        values = {symbol.name: size for symbol, size in sizes.items()}
        operands = [
            buffers[position].reshape([evaluate(dim, values) for dim in value.shape])
            for value, position in zip(self.node.inputs, self.operands, strict=True)
        ]
        found = reference.evaluate_node(self.node, operands, values)
        for position, result in zip(self.results, found, strict=True):
            buffers[position][...] = result.ravel()


def lower_library_call(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Call the library for the root, then store what else the region computes."""
    outputs = dict(lowering.region_outputs(region))
    build = lowering.helper_builder()
    read = tuple(build.argument(_whole(lowering, v), reads=True) for v in root.inputs)
    results = {}
    for value in root.outputs:
        whole = value in outputs and outputs[value].layout is None
        aside = LoweredBuffer(value.type, Role.TEMP, root.label, value)
        results[value] = outputs.pop(value) if whole else aside
    written = tuple(build.argument(buffer, writes=True) for buffer in results.values())
    kernel = LibraryCall(build.args, lowering.variables, root, read, written)
    lowering.helper_call(root, root.op.name, build, kernel)
    lowering.stored.update(results)
    for value, buffer in outputs.items():
        build = lowering.builder(region)
        nest = copy_nest(build, value, buffer, lowering.variables)
        lowering.call(region, build, nest, [(value, buffer)])


def _whole(lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
    """A buffer that holds ``value`` alone and in C order: its own, or that of a copy."""
    buffer = lowering.stored.get(value)
    if buffer is None or buffer.layout is not None:
        lowering.copy(value)
    return lowering.stored[value]


#: The device's own rules; the shared ones, made of loop nests, are found beneath them.
TABLE = RuleTable(
    "the loops device",
    {
        "topk": lower_library_call,
        "non_max_suppression": lower_library_call,
        "recurrent_scan": lower_library_call,
        "grouped_matmul": lower_library_call,
        "blockwise_matmul": lower_library_call,
    },
)

#: All that is not listed is rewritten into what is: attention into matmuls and a softmax.
CAPABILITIES = Capabilities(
    ops=frozenset(
        {
            *ELEMENTWISE,
            *LEAVES,
            *VIEWS,
            *INDEX_OPS,
            *POINTWISE,
            *SHARED_RULES,
            *TABLE.rules,
            *CONTROL_OPS,
        }
    ),
    dtypes=frozenset(ALL_DTYPES),
    padded_conv=False,
    capture=False,
    single_ops=True,
)
