"""The one list of passes, in the order in which they run.

Each is imported when it has to run: those that look for certain ops, for graphs that have them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ostinato.errors import InputError
from ostinato.ir.verify import verify as verify_graph
from ostinato.passes.base import Pass, PassReport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ostinato.dtypes import DType
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.passes.base import Event
    from ostinato.passes.decompose import Native
    from ostinato.passes.nested_graphs import RunPasses

__all__ = ["OPTIONAL_PASSES", "Capabilities", "Listed", "pipeline", "run_passes"]


class Listed(NamedTuple):
    """A pass of the pipeline, imported when it is used.

    Attributes:
        name: the pass's, and of the module that has it.
        kind: its class.
        ops: it leaves graphs alone that have none of these; empty: it may change any graph.
        options: what the pass is made with.
    """

    name: str
    kind: str
    ops: frozenset[str] = frozenset()
    options: tuple[Any, ...] = ()

    def concerns(self, graph: BaseGraph) -> bool:
        """Whether the pass may have something to do."""
        return not self.ops or any(node.op.name in self.ops for node in graph.nodes)

    def make(self) -> Pass:
        """Import and instantiate the pass."""
        made = getattr(import_module(f"ostinato.passes.{self.name}"), self.kind)(*self.options)
        assert isinstance(made, Pass)
        return made


_CONSTANT_FOLDING = Listed("constant_folding", "ConstantFolding")
_COMMON_SUBEXPRESSIONS = Listed("common_subexpressions", "CommonSubexpressions")
_ALGEBRAIC = Listed("algebraic", "Algebraic")
_STATIC_SLICES = Listed("static_slices", "StaticSlices", frozenset({"take", "dynamic_slice"}))
_SHAPES = Listed("shapes", "Shapes")

#: Makes arithmetic and data movement plain, so that patterns come in few spellings.
_SIMPLIFY = (_CONSTANT_FOLDING, _COMMON_SUBEXPRESSIONS, _ALGEBRAIC, _STATIC_SLICES, _SHAPES)

_SHARED_CONCATS = Listed("shared_concats", "SharedConcats", frozenset({"concat"}))
_DEAD_CODE = Listed("dead_code", "DeadCode")

#: Tidies up after recovery and decomposition, which bring constants, casts and reshapes.
_TIDY = (
    _CONSTANT_FOLDING,
    _ALGEBRAIC,
    _STATIC_SLICES,
    _SHAPES,
    _COMMON_SUBEXPRESSIONS,
    _SHARED_CONCATS,
    _DEAD_CODE,
)

#: Takes matmuls and convolutions back to the integers and 8-bit floats that they are spelled in;
#: before weights could be folded into wide floats.
_NARROW_ARITHMETIC = (
    Listed(
        "integer_arithmetic",
        "IntegerArithmetic",
        frozenset({"dequantize", "quantize", "requantize"}),
    ),
    Listed("float8_matmuls", "Float8Matmuls", frozenset({"cast"})),
)

#: The ops that spelled-out activations contain.
_CURVES = frozenset({"clip", "exp", "hard_sigmoid", "logaddexp", "relu6", "sigmoid", "tanh"})

#: Finds composite ops; the later ones build on the earlier ones.
_RECOVER = (
    Listed("recover_norms", "RecoverNorms", frozenset({"pow", "rsqrt", "sqrt"})),
    Listed("recover_softmax", "RecoverSoftmax", frozenset({"exp"})),
    Listed("recover_gelu", "RecoverGelu", frozenset({"erf", "tanh"})),
    Listed("recover_activations", "RecoverActivations", _CURVES),
    Listed("recover_attention", "RecoverAttention", frozenset({"softmax"})),
)

#: Leaves out rows of composite ops that nothing reads.
_EARLY_SLICES = Listed("early_slices", "EarlySlices", frozenset({"slice"}))

#: The ops that hold nested graphs.
_CONTROL_OPS = frozenset({"cond", "loop"})
_CONTROL_FLOW = Listed("control_flow", "ControlFlow", _CONTROL_OPS)

#: Inlines first what later passes then see as part of the graph.
_CONTROL = (Listed("constant_folding", "ConstantFolding", _CONTROL_OPS), _CONTROL_FLOW)

_MATMULS = frozenset({"matmul"})
_WIDENED_ROWS = "widened_rows"
_WIDE_UPDATES = Listed("wide_updates", "WideUpdates", frozenset({"scatter", "scatter_nd"}))
_CONVOLUTIONS = frozenset({"conv", "integer_conv"})
_EXPLICIT_PADDING = Listed("explicit_padding", "ExplicitPadding", _CONVOLUTIONS)


class Capabilities(Protocol):
    """The part of a backend's :class:`~ostinato.backends.base.Capabilities` that passes read."""

    @property
    def ops(self) -> Collection[str]:
        """The names of the ops that the backend takes as they are."""

    @property
    def dtypes(self) -> Collection[DType]:
        """The element types that it computes with."""

    @property
    def padded_conv(self) -> bool:
        """Whether a convolution may carry padding."""

    @property
    def excluded(self) -> Collection[tuple[str, DType]]:
        """Pairs of an op and a dtype that it does not take, although other ops do."""


def pipeline(
    capabilities: Capabilities,
    nested: RunPasses | None = None,
    bfloat16_rows: Callable[[], bool] | None = None,
    widened_rows: Callable[[DType], bool] | None = None,
) -> tuple[Listed, ...]:
    """Every pass, in order, for a backend.

    Args:
        capabilities: of the backend.
        nested: runs the pipeline on nested graphs; ``None``: they stay as they are.
        bfloat16_rows, widened_rows: see :func:`run_passes`.
    """
    decompose = Listed("decompose", "Decompose", options=(_native(capabilities),))
    required: tuple[Listed, ...] = (decompose, _WIDE_UPDATES)
    if bfloat16_rows is not None:
        rounding = Listed("bfloat16_rows", "Bfloat16Rows", _MATMULS, (bfloat16_rows,))
        required = (rounding, *required)
    if widened_rows is not None:
        widening = Listed(_WIDENED_ROWS, "WidenedRows", _MATMULS, (widened_rows,))
        required = (widening, *required)
    if not capabilities.padded_conv:
        required += (_EXPLICIT_PADDING,)
    if nested is not None:
        required += (Listed("nested_graphs", "NestedGraphs", _CONTROL_OPS, (nested,)),)
    return (
        _DEAD_CODE,
        *_CONTROL,
        *_NARROW_ARITHMETIC,
        *_SIMPLIFY,
        _CONTROL_FLOW,
        *_RECOVER,
        _EARLY_SLICES,
        *required,
        *_TIDY,
    )


#: The names that ``disabled=`` accepts; the other passes make a graph one that a backend takes.
OPTIONAL_PASSES: frozenset[str] = frozenset(
    listed.name
    for listed in (*_NARROW_ARITHMETIC, *_SIMPLIFY, _CONTROL_FLOW, *_RECOVER, _EARLY_SLICES, *_TIDY)
) | {_WIDENED_ROWS}


def run_passes(
    graph: BaseGraph,
    *,
    capabilities: Capabilities,
    optimize: bool = True,
    disabled: Collection[str] = frozenset(),
    verify: bool = False,
    bfloat16_rows: Callable[[], bool] | None = None,
    widened_rows: Callable[[DType], bool] | None = None,
) -> tuple[BaseGraph, list[Event]]:
    """Run the pipeline; returns the rewritten graph and the report.

    Args:
        graph: is not changed.
        capabilities: what the backend takes as it is.
        optimize: when false, only the passes that are needed to make it so run.
        disabled: names of passes to leave out (:data:`OPTIONAL_PASSES`); results stay the same.
        verify: check the graph before the first pass and after each that changes it.
        bfloat16_rows: finds whether rows that a matmul multiplies with bfloat16 weights are to be
            rounded to bfloat16; asked when there are such matmuls. ``None``: they are not.
        widened_rows: finds whether rows of a 16-bit float are to be widened before a matmul with
            weights of the same; asked likewise. ``None``: they are not.

    Raises:
        UnsupportedOpError: the backend neither takes some nodes nor can they be rewritten; lists
            every one.
        GraphError: ``verify`` found something wrong.
        InputError: ``disabled`` names a pass that does not exist or cannot be left out.
    """
    unknown = set(disabled) - OPTIONAL_PASSES
    if unknown:
        known = ", ".join(sorted(OPTIONAL_PASSES))
        raise InputError(f"no such passes: {', '.join(sorted(unknown))}; there are {known}")
    report = PassReport()

    def run(graph: BaseGraph, report: PassReport) -> BaseGraph:
        if verify:
            verify_graph(graph)
        for listed in pipeline(capabilities, run, bfloat16_rows, widened_rows):
            if listed.name in disabled or (not optimize and listed.name in OPTIONAL_PASSES):
                continue
            if not listed.concerns(graph):
                continue
            before, graph = graph, listed.make().run(graph, report)
            if verify and graph is not before:
                verify_graph(graph)
        return graph

    return run(graph, report), report.events


def _native(capabilities: Capabilities) -> Native:
    ops, dtypes = frozenset(capabilities.ops), frozenset(capabilities.dtypes)
    excluded = frozenset(capabilities.excluded)

    def native(node: Node) -> bool:
        name = node.op.name
        return name in ops and all(
            value.dtype in dtypes and (name, value.dtype) not in excluded
            for value in (*node.inputs, *node.outputs)
        )

    return native
