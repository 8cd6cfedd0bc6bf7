"""Division of an FX graph into native partitions and nodes that PyTorch runs."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.fx import Graph, Node

__all__ = ["Phase", "counts_as_node", "eager_by_nature", "is_tensor", "partition"]


@dataclass
class Phase:
    """Nodes that run one after the other, without nodes of other phases in between.

    Attributes:
        native: whether they are one native partition.
        nodes: in program order.
        inputs: of a native one, the tensors that it reads.
        scalars: of a native one, the numbers that it reads.
        outputs: of a native one, the tensors that others read.
        writes: of a native one, by placeholder, the value that its tensor takes.
        copies: the nodes of the graph that write these values.
    """

    native: bool
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    scalars: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    writes: dict[Node, Node] = field(default_factory=dict)
    copies: list[Node] = field(default_factory=list)


def partition(
    graph: Graph, eager: Mapping[str, str], min_nodes: int
) -> tuple[list[Phase], dict[str, str]]:
    """Divide the nodes of a graph into phases.

    Native nodes without eager ones between them share a phase. Random ops and ops with side effects
    keep their order; an op that writes a tensor comes after all nodes before it.

    Args:
        graph: ATen ops.
        eager: the nodes without an equivalent, with the reasons.
        min_nodes: the fewest nodes of a native phase, where there is more than one phase.

    Returns:
        The phases in the order of execution; and all nodes that PyTorch runs, with the reasons.
    """
    reasons = {**eager, **eager_by_nature(graph)}
    while True:
        numbers = _numbers(graph, reasons)
        counts: dict[int, int] = {}
        for node, number in numbers.items():
            if number % 2 == 0:
                counts[number] = counts.get(number, 0) + counts_as_node(node)
        split = len(counts) > 1 or any(
            number % 2 and is_tensor(node) and counts_as_node(node)
            for node, number in numbers.items()
        )
        small = {n for n, count in counts.items() if count < (min_nodes if split else 1)}
        if not small:
            return _phases(graph, numbers), reasons
        text = "no arithmetic" if not split else f"a partition of fewer than {min_nodes} nodes"
        for node, number in numbers.items():
            if number in small:
                reasons[node.name] = text


def eager_by_nature(graph: Graph) -> dict[str, str]:
    """The nodes that PyTorch runs whether or not they have a converter, with the reasons."""
    reasons = {n.name: _reason(n) for n in graph.nodes if n.op == "call_function"}
    return {name: reason for name, reason in reasons.items() if reason}


def is_tensor(node: Node) -> bool:
    """Whether a node's result is a tensor, or a list of them, rather than a number."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor | tuple | list)


def counts_as_node(node: Node) -> bool:
    """Whether a node computes something: views and parts of results do not."""
    return node.target is not operator.getitem and is_tensor(node) and not _is_view(node)


def _is_ordered(node: Node) -> bool:
    """Whether a node has to keep its place among others of its kind."""
    return _is_random(node) or _writes(node) or node.is_impure(impure_random=False)


def _is_random(node: Node) -> bool:
    """Whether a node takes numbers from PyTorch's generator."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = node.target._schema.arguments
    for position, argument in enumerate(arguments):
        if argument.name == "dropout_p":  # attention, which is random only where it drops
            default = argument.default_value
            given = node.args[position] if position < len(node.args) else default
            return bool(node.kwargs.get("dropout_p", given))
    return True


def _reason(node: Node) -> str:
    """The cause that a node runs in eager although it may have a converter; empty: none."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return "it calls graphs"
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    if _writes(node):
        return "it writes to a tensor of the caller"
    if _is_random(node):
        return "its numbers come from PyTorch's generator"
    if node.is_impure(impure_random=False):
        return "it has side effects"
    for tensor in _tensors(node):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return f"a tensor on {tensor.device}"
    return ""


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    for item in (node, *node.all_input_nodes):
        value = item.meta.get("val")
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_view(node: Node) -> bool:
    """Whether a node's result shares memory with its operand."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    return not schema.is_mutable and any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in schema.returns
    )


def _numbers(graph: Graph, eager: Mapping[str, str]) -> dict[Node, int]:
    """By node, its phase: even numbers are native ones."""
    numbers: dict[Node, int] = {}
    last_ordered = barrier = latest = -1
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.args[0] in numbers:
            numbers[node] = numbers[node.args[0]]
            continue
        native = node.name not in eager and is_tensor(node)
        number = max((numbers.get(n, -1) for n in node.all_input_nodes), default=-1)
        number = max(number, barrier)
        if _is_ordered(node):
            number = max(number, last_ordered)
        if _writes(node):
            number = max(number, latest)
        if number % 2 != (0 if native else 1):
            number += 1
        if _is_ordered(node):
            last_ordered = number
        if _writes(node):
            barrier = number
        latest = max(latest, number)
        numbers[node] = number
    return numbers


def _phases(graph: Graph, numbers: dict[Node, int]) -> list[Phase]:
    views = _outside_views(numbers)
    phases: dict[int, Phase] = {}
    in_place = _writes_in_place(numbers, views)
    for node, number in numbers.items():
        if node in in_place:
            phase = phases[in_place[node]]
            placeholder, value = node.args[:2]
            phase.writes[placeholder] = value
            phase.copies.append(node)
            continue
        if number % 2 == 0 and node not in views.dropped:
            phases.setdefault(number, Phase(native=True)).nodes.append(node)
        if node in views.repeated:
            at = views.repeated[node]
            phases.setdefault(at, Phase(native=False)).nodes.append(node)
        elif number % 2:
            phases.setdefault(number, Phase(native=False)).nodes.append(node)
    for phase in phases.values():
        if phase.native:
            _find_interface(phase, views.repeated, in_place)
    return [phases[number] for number in sorted(phases)]


@dataclass
class _Views:
    """Views, within native partitions, that others read and that share memory outside.

    They are views of tensors from outside, or of a result that is given besides. PyTorch makes
    them, since a partition would copy.

    Attributes:
        repeated: those that PyTorch makes, each with its phase.
        dropped: those that no node of the partition reads.
    """

    repeated: dict[Node, int] = field(default_factory=dict)
    dropped: set[Node] = field(default_factory=set)


def _outside_views(numbers: dict[Node, int]) -> _Views:
    views = _Views()
    roots = _roots(numbers)
    shared = _shared_roots(roots)
    for node in reversed(numbers):
        root = roots.get(node)
        number = numbers[node]
        if root is None or (numbers.get(root) == number and root not in shared):
            continue
        outside = [
            user for user in node.users if numbers.get(user) != number or user in views.repeated
        ]
        if outside:
            views.repeated[node] = number + (1 if root in shared else -1)
        if all(user in views.dropped or numbers.get(user) != number for user in node.users):
            views.dropped.add(node)
    return views


def _roots(numbers: Mapping[Node, int]) -> dict[Node, Node]:
    """By view within a native partition, the tensor that it is a view of in the end."""
    roots: dict[Node, Node] = {}
    for node, number in numbers.items():
        if number % 2 or not node.args:
            continue
        base: Any = node.args[0]
        if _is_view(node) or (node.target is operator.getitem and base in roots):
            same = numbers.get(base) == number
            roots[node] = roots.get(base, base) if same else base
    return roots


def _shared_roots(roots: Mapping[Node, Node]) -> set[Node]:
    """The results of partitions whose memory several results of the graph share."""
    given: dict[Node, int] = {}
    for node in {*roots, *roots.values()}:
        if any(user.op == "output" for user in node.users):
            root = roots.get(node, node)
            given[root] = given.get(root, 0) + 1
    return {root for root, count in given.items() if count > 1 and root.op == "call_function"}


def _writes_in_place(numbers: Mapping[Node, int], views: _Views) -> dict[Node, int]:
    """The copies to placeholders that native partitions can make, with the partition's number.

    Nodes outside of the partition must have read the tensor before it, since it writes to the
    tensor as soon as its own nodes have read it.
    """
    found: dict[Node, int] = {}
    for node in numbers:
        if node.target is not torch.ops.aten.copy_.default or len(node.args) != 2 or node.users:
            continue
        placeholder: Any = node.args[0]
        value: Any = node.args[1]
        number = numbers.get(value, -1) if isinstance(value, torch.fx.Node) else -1
        if placeholder.op != "placeholder" or number < 0 or number % 2 or value in views.dropped:
            continue
        if not _replaceable(placeholder.meta["val"], value.meta["val"]):
            continue
        readers = _readers(placeholder) - {node}
        if all(
            numbers.get(n, number + 1) < number or (numbers.get(n) == number and not repeated)
            for n in readers
            for repeated in (n in views.repeated,)
        ):
            found[node] = number
    return found


def _replaceable(tensor: Any, value: Any) -> bool:
    """Whether the elements of a value can be computed in the memory of a tensor."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype == value.dtype
        and not tensor.is_complex()
        and tensor.is_contiguous()
        and [*map(str, tensor.shape)] == [*map(str, value.shape)]
    )


def _readers(placeholder: Node) -> set[Node]:
    """The nodes that read a tensor, also through views."""
    found: set[Node] = set()
    waiting = [placeholder]
    while waiting:
        for user in waiting.pop().users:
            if user not in found:
                found.add(user)
                if _is_view(user):
                    waiting.append(user)
    return found


def _find_interface(
    phase: Phase, repeated: Mapping[Node, int], in_place: Mapping[Node, int]
) -> None:
    """The tensors and numbers that a native phase reads, and the tensors that others read."""
    members = set(phase.nodes)
    inputs: dict[Node, None] = {}
    for node in phase.nodes:
        for read in node.all_input_nodes:
            if read not in members:
                inputs[read] = None
    inputs.update(dict.fromkeys(phase.writes))
    phase.inputs = [node for node in inputs if is_tensor(node)]
    phase.scalars = [node for node in inputs if not is_tensor(node)]
    phase.outputs = [
        node
        for node in phase.nodes
        if node not in repeated
        and isinstance(node.meta.get("val"), torch.Tensor)
        and any(
            user in repeated or (user not in members and user not in in_place)
            for user in node.users
        )
    ]
