"""Steps: the parts of a segment while it is put together, and their order."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.chained_nests import ChainedNests, may_chain
from ostinato.backends.cuda.rules.joint_nests import JointNests, may_join
from ostinato.backends.cuda.rules.joint_products import JointProducts
from ostinato.backends.cuda.rules.packets import ReceivePackets
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.rounded_products import RoundedProduct
from ostinato.backends.cuda.rules.segment_kernel import SpaceKind
from ostinato.dtypes import UINT16, DType
from ostinato.ir.types import TensorType
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import Arg
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render import weight_streams
else:
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = [
    "MOST_ARGUMENTS",
    "Step",
    "Value",
    "call_of",
    "in_order",
    "rounded_step",
    "with_joint",
    "with_shares",
]

MOST_ARGUMENTS = 16
"""Arguments of a part, at most: shared memory has a table of all of them."""


@dataclass(eq=False)
class Step:
    """A part under construction.

    Attributes:
        kernel: of the part.
        operands: by argument, what has its memory.
        call: what it was made of, if it was made of one, or of the product that it begins with.
        level: the number of barriers before it.
        reader: the call of attention whose points are the shares that it is run for, or which it
            is.
        strides: by argument, elements from one share to the next.
        joined: the calls that it was made of, if it was made of several.
    """

    kernel: CudaKernel
    operands: tuple[LoweredBuffer | Value, ...]
    call: Call | None
    level: int
    reader: Call | None = None
    strides: tuple[int, ...] = ()
    joined: tuple[Call, ...] = ()

    def written(self) -> list[LoweredBuffer | Value]:
        """The memory that it writes."""
        pairs = zip(self.kernel.args, self.operands, strict=True)
        return [operand for arg, operand in pairs if arg.writes]


@dataclass(eq=False)
class Value:
    """Memory of a segment's own for a value.

    Attributes:
        kind: see :class:`SpaceKind`.
        size: its bytes.
    """

    kind: SpaceKind
    size: int


def in_order(steps: Sequence[Step]) -> list[Step]:
    """The steps in the order of blocks, with values that are received together as one.

    Parts come first that wait for the fewest values, one behind the other: what the next ones wait
    for may then be there.
    """
    written: dict[LoweredBuffer | Value, int] = {}
    ranks = {}
    for step in steps:
        packets = any(
            isinstance(operand, Value) and operand.kind is SpaceKind.PACKETS and not arg.writes
            for arg, operand in zip(step.kernel.args, step.operands, strict=True)
        )
        found = [written.get(operand, 0) for operand in step.operands]
        ranks[step] = max(found, default=0) + packets
        for arg, operand in zip(step.kernel.args, step.operands, strict=True):
            if arg.writes:
                written[operand] = ranks[step]

    def place(step: Step) -> tuple[int, int, bool]:
        return step.level, ranks[step], not isinstance(step.kernel, ReceivePackets)

    ordered: list[Step] = []
    for _, together in groupby(sorted(steps, key=place), key=place):
        group = list(together)
        if isinstance(group[0].kernel, ReceivePackets):
            keys = dict.fromkeys(map(_received_as, group))
            group = [_received([s for s in group if _received_as(s) == key]) for key in keys]
        ordered += group
    return ordered


def with_shares(steps: Sequence[Step]) -> list[Step]:
    """The steps, those for the shares of attention right in front of it."""
    shares: dict[Call, list[Step]] = {}
    for step in steps:
        if step.reader is not None:
            shares.setdefault(step.reader, []).append(step)
    ordered: list[Step] = []
    for step in steps:
        if step.reader is not None:
            continue
        if step.call is not None and step.call in shares:
            for share in shares[step.call]:
                share.level = step.level
            ordered += shares[step.call]
            step.reader = step.call
        ordered.append(step)
    return ordered


def with_joint(steps: Sequence[Step], alone: Set[Step], everywhere: Set[Call]) -> list[Step]:
    """The steps, some as one with those in front of them.

    These are short ones for the same shares of attention, products of the same rows whose weights
    come through a ring, and nests that every block runs, one of which reads what another one
    writes.

    Args:
        steps: in order.
        alone: products that stay as they are.
        everywhere: the calls that every block runs for itself.
    """
    groups: list[list[Step]] = []
    for step in steps:
        if groups and (_chains(groups[-1], step, everywhere) or _joins(groups[-1], step, alone)):
            groups[-1].append(step)
        else:
            groups.append([step])
    return [group[0] if len(group) == 1 else _joint(group) for group in groups]


def _chains(group: Sequence[Step], step: Step, everywhere: Set[Call]) -> bool:
    """Whether a step becomes one with the only one in front of it, which writes what it reads."""
    (first, *others) = group
    if others or not {first.call, step.call} <= everywhere or first.level != step.level:
        return False
    if first.reader is not None or step.reader is not None:
        return False
    operands = {*first.operands, *step.operands}
    passed = {*first.written()} & {*step.operands}
    few = len(operands) < MOST_ARGUMENTS  # with the packets of a row that it receives
    return few and bool(passed) and may_chain(first.kernel, step.kernel)


def _joins(group: Sequence[Step], step: Step, alone: Set[Step]) -> bool:
    """Whether a step becomes one with those in front of it."""
    first = group[0]
    if (step.reader, step.level) != (first.reader, first.level):
        return False
    if step.reader is None:
        if {first, step} & alone or not _have_same_rows(first, step):
            return False
        if (
            len({operand for other in (*group, step) for operand in other.operands})
            > MOST_ARGUMENTS
        ):
            return False
    elif (
        isinstance(step.kernel, ReceivePackets)
        or not all(may_join(other.kernel) for other in (first, step))
        or not _have_same_strides(group, step)
    ):
        return False
    others = [other for other in group if not isinstance(other.kernel, ReceivePackets)]
    written = {operand for other in others for operand in other.written()}
    used = {operand for other in others for operand in other.operands}
    return not written & {*step.operands} and not used & {*step.written()}


def _have_same_strides(group: Sequence[Step], step: Step) -> bool:
    """Whether shares of what several steps read are as far apart for each of them."""
    strides = dict(pair for other in group for pair in _strides(other))
    return all(strides.get(operand, stride) == stride for operand, stride in _strides(step))


def _strides(step: Step) -> Iterator[tuple[LoweredBuffer | Value, int]]:
    """The operands of a step, with the elements from one share of them to the next."""
    return zip(step.operands, step.strides, strict=True)


def _have_same_rows(step: Step, other: Step) -> bool:
    """Whether two steps are products of one left operand by matrices that a ring can bring."""
    keys = []
    for each in (step, other):
        if not isinstance(each.kernel, Matmul) or weight_streams.stream_of(each.kernel) is None:
            return False
        arguments, rest = weight_streams.rows_key(each.kernel)
        left = [each.operands[argument] for argument in arguments]
        if any(isinstance(value, Value) and value.kind is SpaceKind.PACKETS for value in left):
            return False
        keys.append((left, rest))
    return keys[0] == keys[1]


def rounded_step(product: Step, nest: Step, result: int) -> Step:
    """A product and the nest that rounds its tiles as one.

    Args:
        product, nest: the steps.
        result: the position of what the nest reads among the product's arguments.
    """
    args, operands, at = _together([product, nest])
    assert isinstance(product.kernel, Matmul)
    assert isinstance(nest.kernel, CudaLoopNest)
    kernel = RoundedProduct(args, (product.kernel, nest.kernel), at, nest.kernel.variables, result)
    calls = tuple(step.call for step in (product, nest) if step.call is not None)
    level = max(product.level, nest.level)
    return Step(kernel, operands, product.call, level, None, (0,) * len(operands), calls)


def _joint(group: Sequence[Step]) -> Step:
    """Several steps as one."""
    first = group[0]
    args, operands, at = _together(group)
    strides = dict(pair for step in group for pair in _strides(step))
    kernels, variables = tuple(step.kernel for step in group), group[-1].kernel.variables
    products = tuple(kernel for kernel in kernels if isinstance(kernel, Matmul))
    nests = tuple(kernel for kernel in kernels if isinstance(kernel, CudaLoopNest))
    kernel: CudaKernel
    if products:
        kernel = JointProducts(args, products, at, variables)
    elif first.reader is None:
        kernel = ChainedNests(args, (nests[0], nests[1]), at, variables)
    else:
        kernel = JointNests(args, kernels, at, variables)
    calls = tuple(step.call for step in group if step.call is not None)
    return Step(kernel, operands, None, first.level, first.reader, tuple(strides.values()), calls)


def _together(
    group: Sequence[Step],
) -> tuple[tuple[Arg, ...], tuple[LoweredBuffer | Value, ...], tuple[tuple[int, ...], ...]]:
    """The arguments of several steps, each once; what has their memory; by step, their places."""
    operands = tuple(dict.fromkeys(operand for step in group for operand in step.operands))
    places = {operand: place for place, operand in enumerate(operands)}
    reads, writes = [False] * len(places), [False] * len(places)
    dtypes = [UINT16] * len(places)
    for step in group:
        for arg, operand in zip(step.kernel.args, step.operands, strict=True):
            reads[places[operand]] |= arg.reads
            writes[places[operand]] |= arg.writes
            dtypes[places[operand]] = arg.dtype
    args = tuple(map(Arg, dtypes, reads, writes))
    return args, operands, tuple(tuple(places[o] for o in step.operands) for step in group)


def _received_as(step: Step) -> tuple[Call | None, DType]:
    """The key by which steps receive values together."""
    return step.reader, step.kernel.args[0].dtype


def _received(steps: Sequence[Step]) -> Step:
    """The step that receives what several do."""
    kernels = [step.kernel for step in steps if isinstance(step.kernel, ReceivePackets)]
    counts = tuple(count for kernel in kernels for count in kernel.counts)
    args = tuple(arg for kernel in kernels for arg in kernel.args)
    operands = tuple(operand for step in steps for operand in step.operands)
    strides = tuple(stride for step in steps for stride in step.strides)
    first = steps[0]
    return Step(ReceivePackets(counts, args), operands, None, first.level, first.reader, strides)


def call_of(step: Step) -> Call:
    """The call that a part was made of; for one about packets, a call on memory for the values."""
    if step.call is not None and not step.joined:
        return step.call
    buffers = [
        operand
        if isinstance(operand, LoweredBuffer)
        else LoweredBuffer(
            TensorType(arg.dtype, (operand.size // arg.dtype.itemsize,)), Role.TEMP, "values"
        )
        for arg, operand in zip(step.kernel.args, step.operands, strict=True)
    ]
    if step.joined:
        labels = tuple(dict.fromkeys(label for call in step.joined for label in call.nodes))
        title = ", ".join(dict.fromkeys(call.title for call in step.joined))
        flops = sum((call.flops for call in step.joined), start=0)
        return Call(step.kernel, tuple(buffers), labels, title, flops)
    title = "receive values" if isinstance(step.kernel, ReceivePackets) else "clear packets"
    return Call(step.kernel, tuple(buffers), (), title)
