"""Params whose matrices of experts are in a file: which nodes of a graph read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import UINT8
from ostinato.errors import InputError
from ostinato.ir.leaves import PARAM
from ostinato.ops.moe import EXPERT_MLP, GROUPED_MATMUL
from ostinato.ops.packed_experts import PACKED_GROUPED_BLOCK_MATMUL
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ostinato.backends.common.experts import ExpertsInFile
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ir.stored import MatrixLayout

__all__ = ["ExpertStore", "check_uses", "expert_matrices", "reads_stored"]


@dataclass(frozen=True)
class ExpertStore:
    """The params in files of experts, and the memory that their experts may take.

    Attributes:
        params: by name, the layout of their matrices in the files.
        budget: bytes; ``None``: as many as it takes.
    """

    params: Mapping[str, MatrixLayout]
    budget: int | None = None

    @staticmethod
    def of(experts: ExpertsInFile) -> ExpertStore:
        """That of params whose tensors are known."""
        layouts = {name: tensor.layout for name, tensor in experts.tensors.items()}
        return ExpertStore(layouts, experts.budget)


def expert_matrices(node: Node) -> Sequence[Value]:
    """The operands of a node that are matrices of experts."""
    if node.op is EXPERT_MLP:
        return node.inputs[3:]
    if node.op is PACKED_GROUPED_BLOCK_MATMUL:
        return node.inputs[3:4]
    return node.inputs[1:2] if node.op is GROUPED_MATMUL else ()


def reads_stored(node: Node, store: ExpertStore) -> bool:
    """Whether a node has experts whose matrices are in the file."""
    return any(m.node.op is PARAM and m.name in store.params for m in expert_matrices(node))


def check_uses(
    graph: BaseGraph, nodes: Sequence[Node], readers: Collection[Node], store: ExpertStore
) -> None:
    """Refuse params of the file that are anything but matrices of experts.

    Args:
        graph: what is lowered.
        nodes: those of its nodes that results depend on.
        readers: those that :func:`reads_stored`.
        store: the file.

    Raises:
        InputError: there is such a param; or a node has some matrices in the file and others not.
    """
    for name in store.params:
        value = graph.params[name]
        reading = [node for node in nodes if value in node.inputs]
        wrong = [n for n in reading if n.inputs.count(value) != expert_matrices(n).count(value)]
        if wrong or value in graph.results():
            by = f"{wrong[0]} {wrong[0].source}".rstrip() if wrong else "the outputs"
            decoded = value.dtype == UINT8 and len(wrong) == len(reading) > 0
            hint = ": a device that decodes packed matrices can not leave them there" * decoded
            raise InputError(
                f"param {name!r} is in the file of experts, but is also read by {by}{hint}"
            )
    for node in readers:
        missing = [m for m in expert_matrices(node) if m.node.op is not PARAM]
        missing += [m for m in expert_matrices(node) if m.name not in store.params]
        if missing:
            raise InputError(
                f"{node} {node.source}: of its matrices, {missing[0].name!r} is not in the "
                "file of experts, others are"
            )
