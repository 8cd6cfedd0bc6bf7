"""The one list of passes, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ostinato.errors import InputError
from ostinato.ir.verify import verify as verify_graph
from ostinato.passes.algebraic import Algebraic
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.common_subexpressions import CommonSubexpressions
from ostinato.passes.constant_folding import ConstantFolding
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.decompose import Decompose, Native
from ostinato.passes.explicit_padding import ExplicitPadding
from ostinato.passes.recover_activations import RecoverActivations
from ostinato.passes.recover_attention import RecoverAttention
from ostinato.passes.recover_gelu import RecoverGelu
from ostinato.passes.recover_norms import RecoverNorms
from ostinato.passes.recover_softmax import RecoverSoftmax
from ostinato.passes.shapes import Shapes
from ostinato.passes.shared_concats import SharedConcats
from ostinato.passes.static_slices import StaticSlices
from ostinato.passes.wide_updates import WideUpdates

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.dtypes import DType
    from ostinato.ir.graph import BaseGraph, Node
    from ostinato.passes.base import Event

__all__ = ["OPTIONAL_PASSES", "Capabilities", "pipeline", "run_passes"]

#: Makes arithmetic and data movement plain, so that patterns come in few spellings.
_SIMPLIFY: tuple[Pass, ...] = (
    ConstantFolding(),
    CommonSubexpressions(),
    Algebraic(),
    StaticSlices(),
    Shapes(),
)

#: Tidies up after recovery and decomposition, which bring constants, casts and reshapes.
_TIDY: tuple[Pass, ...] = (
    ConstantFolding(),
    Algebraic(),
    StaticSlices(),
    Shapes(),
    CommonSubexpressions(),
    SharedConcats(),
    DeadCode(),
)

#: Finds composite ops; the later ones build on the earlier ones.
_RECOVER: tuple[Pass, ...] = (
    RecoverNorms(),
    RecoverSoftmax(),
    RecoverGelu(),
    RecoverActivations(),
    RecoverAttention(),
)


class Capabilities(Protocol):
    """What passes ask of a backend's declaration (:class:`ostinato.backends.base.Capabilities`)."""

    @property
    def ops(self) -> Collection[str]:
        """The names of the ops that the backend takes as they are."""

    @property
    def dtypes(self) -> Collection[DType]:
        """The element types that it computes with."""

    @property
    def padded_conv(self) -> bool:
        """Whether a convolution may carry padding."""


def pipeline(capabilities: Capabilities) -> tuple[Pass, ...]:
    """Every pass, in order, for a backend."""
    required: tuple[Pass, ...] = (Decompose(_native(capabilities)), WideUpdates())
    if not capabilities.padded_conv:
        required += (ExplicitPadding(),)
    return (DeadCode(), *_SIMPLIFY, *_RECOVER, *required, *_TIDY)


#: The names that ``disabled=`` accepts; the other passes make a graph one that a backend takes.
OPTIONAL_PASSES: frozenset[str] = frozenset(pass_.name for pass_ in (*_SIMPLIFY, *_RECOVER, *_TIDY))


def run_passes(
    graph: BaseGraph,
    *,
    capabilities: Capabilities,
    optimize: bool = True,
    disabled: Collection[str] = frozenset(),
    verify: bool = False,
) -> tuple[BaseGraph, list[Event]]:
    """``graph`` as a backend takes it, and what was done to it.

    Args:
        graph: is not changed.
        capabilities: what the backend takes as it is.
        optimize: when false, only the passes that are needed to make it so run.
        disabled: names of passes to leave out (:data:`OPTIONAL_PASSES`); results stay the same.
        verify: check the graph before the first pass and after each that changes it.

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
    if verify:
        verify_graph(graph)
    for pass_ in pipeline(capabilities):
        if pass_.name in disabled or (not optimize and pass_.name in OPTIONAL_PASSES):
            continue
        before, graph = graph, pass_.run(graph, report)
        if verify and graph is not before:
            verify_graph(graph)
    return graph, report.events


def _native(capabilities: Capabilities) -> Native:
    ops, dtypes = frozenset(capabilities.ops), frozenset(capabilities.dtypes)

    def native(node: Node) -> bool:
        return node.op.name in ops and all(
            value.dtype in dtypes for value in (*node.inputs, *node.outputs)
        )

    return native
