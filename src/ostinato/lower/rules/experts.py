"""The rule of ``expert_mlp``: two loop nests that read the experts' matrices as they are stored.

The first computes the hidden units of the chosen experts, a row for each token and choice; the
second sums over choices and hidden units at once. The numbers of experts are read where they are
needed, so that nothing is sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import cast, store_at, symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Load, Reduce, Ref, Stage, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.expert_operands import ExpertOperands
from ostinato.lower.rules.loops import BLOCK
from ostinato.ops.moe import ACTIVATIONS

if TYPE_CHECKING:
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Scalar, Statement
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Dim

__all__ = ["lower_expert_mlp"]


def lower_expert_mlp(
    lowering: ProgramBuilder, region: Region, root: Node, operands: ExpertOperands | None = None
) -> None:
    """Lower a region around an ``expert_mlp`` node.

    Args:
        lowering: takes the kernels.
        region: the nodes.
        root: the experts' networks.
        operands: their matrices; by default, those of the node, where they are.
    """
    x, ids, _, up, *_ = root.inputs
    operands = operands or ExpertOperands(ids, up.shape[0])
    acc = x.dtype.accumulator
    type_ = TensorType(acc, (ids.shape[0], ids.shape[1], up.shape[2]))
    hidden = LoweredBuffer(type_, Role.TEMP, f"{root.label}.hidden")
    _lower_hidden(lowering, root, hidden, operands)
    lowering.counted.add(root)
    _lower_result(lowering, region, root, hidden, operands)


def _lower_hidden(
    lowering: ProgramBuilder, root: Node, hidden: LoweredBuffer, operands: ExpertOperands
) -> None:
    """Compute the hidden units of the chosen experts: a row for each token and choice."""
    x, _, _, up, _, *gate = root.inputs
    build, acc = lowering.helper_builder(operands.instead), hidden.type.dtype
    token, choice, column = build.axes(hidden.type.shape)
    depth = build.axis(x.shape[1])
    expert = operands.expert(build, (token, choice))
    left = cast(build.at(x, (token, depth)), acc)
    sums: list[Statement] = []
    for number, matrix in enumerate((up, *gate)):
        right = cast(build.at(matrix, (expert, depth, column)), acc)
        product = Apply("multiply", (left, right), acc)
        sums.append(Reduce(f"r{number}", "sum", product, acc, fused=True))
    op, attrs = ACTIVATIONS[root.attrs["activation"]]
    through = Ref(f"r{len(gate)}", acc)
    value: Scalar = Apply(op.name, (through,), acc, tuple(attrs.items()))
    if gate:
        value = Apply("multiply", (value, Ref("r0", acc)), acc)
    position = build.argument(hidden, writes=True)
    store = Store(position, linear_index(hidden.type.shape, (token, choice, column)), value)
    nest = _nest(lowering, build, (token, choice, column), (depth,), sums, [store])
    flops = root.op.flops([operand.type for operand in root.inputs], root.attrs)
    lowering.helper_call(root, "experts' hidden units", build, nest, flops)


def _lower_result(
    lowering: ProgramBuilder,
    region: Region,
    root: Node,
    hidden: LoweredBuffer,
    operands: ExpertOperands,
) -> None:
    """Sum the hidden units times the last matrices, weighted; then the rest of the region."""
    _, ids, weights, _, down, *_ = root.inputs
    build = lowering.builder(region, operands.instead)
    outputs, acc = lowering.region_outputs(region), hidden.type.dtype
    (out,) = root.outputs
    token, column = build.axes(out.shape)
    choice, unit = build.axis(ids.shape[1]), build.axis(down.shape[1])
    expert = operands.expert(build, (token, choice))
    position = build.argument(hidden, reads=True)
    left = Load(position, linear_index(hidden.type.shape, (token, choice, unit)), acc)
    weighted = Apply("multiply", (cast(build.at(weights, (token, choice)), acc), left), acc)
    right = cast(build.at(down, (expert, unit, column)), acc)
    product = Apply("multiply", (weighted, right), acc)
    total = Reduce("r0", "sum", product, acc, fused=True)
    build.results[out] = cast(Ref("r0", acc), out.dtype)
    at = (token, column)
    stores = [store_at(build, value, buffer, out.shape, at) for value, buffer in outputs]
    nest = _nest(lowering, build, at, (choice, unit), [total], stores)
    lowering.call(region, build, nest, outputs)


def _nest(
    lowering: ProgramBuilder,
    build: KernelBuilder,
    outer: tuple[Dim, ...],
    inner: tuple[Dim, ...],
    sums: list[Statement],
    stores: list[Store],
) -> LoopNest:
    """Sums over some axes for each point of others, columns side by side."""
    axes = symbols_of(outer)
    last = axes[-1] if symbols_of(outer[-1:]) else None
    return LoopNest(
        build.args,
        axes if last is None else axes[:-1],
        (Stage(symbols_of(inner), tuple(sums)), Stage((), tuple(stores))),
        inner_axis=last,
        block=BLOCK,
        variables=lowering.variables,
    )
