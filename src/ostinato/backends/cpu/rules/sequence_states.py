"""The kernels of ops whose rows carry a state: linear attention and causal convolution.

A step of the parallel range has some columns of the state to itself, and goes through all rows with
them: no two threads share an element, and rows take effect in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import GRAIN_POINTS, CpuKernel
from ostinato.dtypes import BOOL, INT64
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.nodes import Accumulator, Apply, Number, Scalar, Store, max_extent
from ostinato.lower.rules.updates import copy_nest
from ostinato.ops.sequence_states import SequenceStateOp
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, axis

if TYPE_CHECKING:
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = [
    "CausalConvolution",
    "LinearAttention",
    "SequenceStateKernel",
    "lower_causal_convolution",
    "lower_linear_attention",
]

#: Vectors of columns that a step goes through the rows with: enough to hide latencies, few enough
#: that a head's columns stay in the first-level cache.
_VECTORS = 4


@dataclass(frozen=True, eq=False)
class SequenceStateKernel(CpuKernel):
    """A kernel whose rows carry a state.

    Scalar expressions are over ``row`` and ``column``, and the axes that a kernel adds; in stores,
    ``Accumulator`` is what is stored.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        row: the axis of rows, which are gone through in order.
        column: the axis of vector lanes.
        state: stores an element of the state, and says where it is read.
        first: whether a row begins its sequence.
        y: stores a result; ``None``: none is read.
        width: columns of a step.
        acc: the dtype of sums.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    row: Symbol
    column: Symbol
    state: Store
    first: Scalar
    y: Store | None
    width: int
    acc: DType
    variables: tuple[Symbol, ...]

    def describe_rows(self, text: KernelText) -> None:
        """Write the parts that all these kernels have."""
        text.head(self.args)
        text.line(1, f"rows {text.axis(self.row)}")
        text.line(1, f"columns {text.axis(self.column)} by {self.width}")
        text.line(1, f"accumulate {self.acc.short}")
        text.named("first", [self.first])
        text.statement(self.state)

    def describe_result(self, text: KernelText) -> None:
        """Write what is stored for each row."""
        if self.y is not None:
            text.statement(self.y)

    @property
    def blocks(self) -> int:
        """Steps that the columns of one head take."""
        return -(-max_extent(self.column) // self.width)


@dataclass(frozen=True, eq=False)
class LinearAttention(SequenceStateKernel):
    """Linear attention: a step has some columns of one head's matrix.

    Attributes:
        head: the axis of heads.
        query: the axis of query heads that read one head.
        key: the axis that products sum over.
        q: the element of the queries at ``row``, ``head``, ``query`` and ``key``.
        k: the element of the keys at ``row``, ``head`` and ``key``.
        v: the element of the values at ``row``, ``head`` and ``column``.
        decay: a logarithm, at ``row``, ``head`` and perhaps ``key``; ``None``: there is none.
        beta: the update's factor, at ``row`` and ``head``; ``None``: no delta rule.
        scale: a factor on the results.
    """

    head: Symbol
    query: Symbol
    key: Symbol
    q: Scalar
    k: Scalar
    v: Scalar
    decay: Scalar | None
    beta: Scalar | None
    scale: float

    renderer: ClassVar[str] = "linear_attention"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"linear attention, scale {self.scale!r}")
        self.describe_rows(text)
        for name in ("head", "query", "key"):
            text.line(1, f"{name} {text.axis(getattr(self, name))}")
        text.named("qkv", (self.q, self.k, self.v))
        if self.decay is not None:
            text.named("decay", [self.decay])
        if self.beta is not None:
            text.named("beta", [self.beta])
        self.describe_result(text)

    @property
    def extent(self) -> Dim:
        """The parallel range: heads, each in blocks of columns."""
        return max_extent(self.head) * self.blocks

    @property
    def grain(self) -> int:
        points = max_extent(self.row) * max_extent(self.key) * self.width
        return max(1, GRAIN_POINTS // max(1, points))


@dataclass(frozen=True, eq=False)
class CausalConvolution(SequenceStateKernel):
    """Causal convolution: a step has some channels, the columns.

    Attributes:
        tap: the axis of earlier inputs, which the state holds; one less than the weights.
        x: the element of the input at ``row`` and ``column``.
        weight: the weight at ``column`` and ``tap``.
        last: the weight of the row itself.
        bias: at ``column``; ``None``: there is none.
        activation: see the op.
    """

    tap: Symbol
    x: Scalar
    weight: Scalar
    last: Scalar
    bias: Scalar | None
    activation: str

    renderer: ClassVar[str] = "causal_convolution"

    def describe(self, text: KernelText) -> None:
        text.line(0, f"causal convolution, activation {self.activation}")
        self.describe_rows(text)
        text.line(1, f"tap {text.axis(self.tap)}")
        text.named("x, weights", (self.x, self.weight, self.last))
        if self.bias is not None:
            text.named("bias", [self.bias])
        self.describe_result(text)

    @property
    def extent(self) -> Dim:
        """The parallel range: blocks of channels."""
        return self.blocks

    @property
    def grain(self) -> int:
        points = max_extent(self.row) * max_extent(self.tap) * self.width
        return max(1, GRAIN_POINTS // max(1, points))


# -- lowering --------------------------------------------------------------------------------------


class _Lowering:
    """Operands, results and buffers of a node that is lowered.

    Args:
        lowering: the program.
        region: the region around the node.
        root: the node.
        registers: the vector registers.
    """

    def __init__(
        self, lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
    ) -> None:
        self.program, self.region, self.root = lowering, region, root
        op = root.op
        assert isinstance(op, SequenceStateOp)
        self.named = op.named(root.inputs, root.attrs)
        self.acc = self.named[op.by_row[0]].dtype.accumulator
        self.width = _VECTORS * max(1, registers.vector_bytes // self.acc.itemsize)
        self.row = axis("row", self.named["sequence"].shape[0])
        updated, result = root.outputs
        stored = dict(lowering.region_outputs(region))
        self._state = stored.get(updated) or lowering.placement.target(updated)
        if lowering.placement.updated_state(root) is None:
            copy = lowering.helper_builder()
            nest = copy_nest(copy, root.inputs[0], self._state, lowering.variables)
            lowering.helper_call(root, "copy", copy, nest)
        self.build = lowering.builder(region)
        self._result = stored.get(result)

    def at(self, name: str, *indices: Dim) -> Scalar:
        """An element of an operand."""
        return self.build.at(self.named[name], indices)

    def optional(self, name: str, *indices: Dim) -> Scalar | None:
        """An element of an operand that may be missing; of more indices, those of its axes."""
        operand = self.named.get(name)
        return None if operand is None else self.at(name, *indices[: operand.ndim])

    def state(self, *indices: Dim) -> Store:
        """The store of an element of the state of the row's sequence."""
        shape = self.named["state"].shape
        slot = self.build.data_index(self.named["sequence"], (self.row,), shape[0], wrap=True)
        position = self.build.argument(self._state, reads=True, writes=True)
        index = self._state.offset(shape, (slot, *indices))
        bindings = self.build.bindings_of(index)
        return Store(position, index, Accumulator(self.acc), bindings)

    def first(self) -> Scalar:
        """Whether a row begins its sequence."""
        position = cast(self.at("position", self.row), INT64)
        return Apply("equal", (position, Number(0, INT64)), BOOL)

    def result(self, *indices: Dim) -> Store | None:
        """The store of a row's result, if it is read."""
        if self._result is None:
            return None
        position = self.build.argument(self._result, writes=True)
        index = self._result.offset(self.root.outputs[1].shape, (self.row, *indices))
        return Store(position, index, Accumulator(self.acc))

    def finish(self, kernel: SequenceStateKernel) -> None:
        """Append the kernel."""
        buffers = (self._state, self._result)
        pairs = zip(self.root.outputs, buffers, strict=True)
        outputs = [(value, buffer) for value, buffer in pairs if buffer is not None]
        self.program.call(self.region, self.build, kernel, outputs)


def lower_linear_attention(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around a ``linear_attention`` node."""
    given = _Lowering(lowering, region, root, registers)
    _, heads, depth, features = given.named["state"].shape
    group = given.named["q"].shape[1] // heads
    row, column, key = given.row, axis("n", features), axis("k", depth)
    head, query = axis("head", heads), axis("query", group)
    q = given.at("q", row, head * group + query, key)
    k, v = given.at("k", row, head, key), given.at("v", row, head, column)
    decay, beta = given.optional("decay", row, head, key), given.optional("beta", row, head)
    state, first = given.state(head, key, column), given.first()
    y = given.result(head * group + query, column)
    symbols = symbols_of((row, column, head, query, key))
    row_symbol, column_symbol, head_symbol, query_symbol, key_symbol = symbols
    kernel = LinearAttention(
        given.build.args,
        row_symbol,
        column_symbol,
        state,
        first,
        y,
        given.width,
        given.acc,
        lowering.variables,
        head_symbol,
        query_symbol,
        key_symbol,
        q,
        k,
        v,
        decay,
        beta,
        root.attrs["scale"],
    )
    given.finish(kernel)


def lower_causal_convolution(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around a ``causal_conv_with_state`` node."""
    given = _Lowering(lowering, region, root, registers)
    channels, taps = given.named["weight"].shape
    row, column, tap = given.row, axis("n", channels), axis("tap", taps - 1)
    x, bias = given.at("x", row, column), given.optional("bias", column)
    weight, last = given.at("weight", column, tap), given.at("weight", column, taps - 1)
    state, first, y = given.state(column, tap), given.first(), given.result(column)
    row_symbol, column_symbol, tap_symbol = symbols_of((row, column, tap))
    kernel = CausalConvolution(
        given.build.args,
        row_symbol,
        column_symbol,
        state,
        first,
        y,
        given.width,
        given.acc,
        lowering.variables,
        tap_symbol,
        x,
        weight,
        last,
        bias,
        root.attrs["activation"],
    )
    given.finish(kernel)
