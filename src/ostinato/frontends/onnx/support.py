"""The support of a model's nodes, one by one, and sizes at which a model makes sense."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ostinato.errors import OstinatoError
from ostinato.frontends.onnx.order import label_of
from ostinato.frontends.onnx.reading import ModelReader
from ostinato.frontends.onnx.symbolic import import_model, sizes_that_fit
from ostinato.ir.leaves import Leaf
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ostinato.frontends.onnx.obstacles import Obstacle
    from ostinato.ir.graph import BaseGraph

__all__ = ["NodeSupport", "fitting_sizes", "node_support"]


@dataclass(frozen=True)
class NodeSupport:
    """The support of one node of a model.

    Attributes:
        name: of the node, or of its first output.
        op: its type, with the domain unless that is the default one.
        status: ``"native"``, ``"rewritten"`` into ops that the device has, ``"folded"`` while
            loading, ``"specialised"``: built for the sizes of a run, or ``"unsupported"``;
            ``"not reached"`` behind one of these.
        detail: the ops that it becomes, or the reason.
    """

    name: str
    op: str
    status: str
    detail: str


def node_support(
    source: Any,
    native: Collection[str],
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> list[NodeSupport]:
    """The support of each node of the model's graph.

    Args:
        source, dims, constants: see :func:`ostinato.load_onnx`.
        native: the ops that the device computes natively.

    Raises:
        ModelFormatError, VariableError, InputError: the model cannot be read.
    """
    reader = ModelReader(
        source, dims=dims, constants=constants or {}, name=None, base_dir=None, parted=None
    )
    obstacles: Sequence[Obstacle] = ()
    try:
        reader.graph({})
    except OstinatoError as error:
        obstacles = reader.obstacles_of(error)
        if not obstacles:
            raise
    graph: BaseGraph = reader.attempt
    blocking = {obstacle.label: obstacle for obstacle in obstacles}
    specialised: Collection[str] = ()
    try:
        imported = import_model(reader)
        graph = imported.built or graph
        if imported.graph is imported.built:
            blocking = {}  # conditions that narrow the sizes
        else:
            specialised = blocking.keys()
    except OstinatoError:
        pass  # the obstacles say why
    ops: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Leaf):
            ops.setdefault(node.label, Counter())[node.op.name] += 1
    skipped = bool(blocking) and not specialised
    return [
        _support(name, op, blocking.get(name), name in specialised, ops.get(name), native, skipped)
        for name, op in _nodes(reader)
    ]


def _nodes(reader: ModelReader) -> list[tuple[str, str]]:
    """Labels and types of the nodes of the model's graph."""
    nodes = reader.model.proto.graph.node
    return [
        (
            label_of(node),
            f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type,
        )
        for node in nodes
    ]


def _support(
    name: str,
    op: str,
    obstacle: Obstacle | None,
    specialised: bool,
    ops: Counter[str] | None,
    native: Collection[str],
    skipped: bool,
) -> NodeSupport:
    if obstacle is not None:
        status = "specialised" if specialised else "unsupported"
        return NodeSupport(name, op, status, obstacle.reason.partition(": ")[2])
    if ops is None:
        if skipped:
            return NodeSupport(name, op, "not reached", "it reads what is unsupported, or nothing")
        return NodeSupport(name, op, "folded", "computed while loading")
    listed = ", ".join(f"{o} ×{count}" if count > 1 else o for o, count in ops.items())
    status = "native" if ops.keys() <= {*native} else "rewritten"
    return NodeSupport(name, op, status, listed)


def fitting_sizes(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """A value for each Variable of the model's inputs, at which the model makes sense.

    Args:
        source, dims, constants: see :func:`ostinato.load_onnx`.

    Returns:
        Small values, whatever they are worth, where none was found at which it does.
    """
    reader = ModelReader(
        source, dims=dims, constants=constants or {}, name=None, base_dir=None, parted=None
    )
    return sizes_that_fit(reader)
