"""Early slices: matmuls and attention of those rows alone that results depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from ostinato.ops.base import Elementwise
from ostinato.ops.shape import SLICE
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.rewrite import Rewriter
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.variables import Dim

__all__ = ["EarlySlices"]

#: A range of each axis: its start and its stop.
Box: TypeAlias = tuple[tuple["Dim", "Dim"], ...]


class _Needs(NamedTuple):
    """A part of a node's result that can be computed by itself.

    Attributes:
        box: the part; it contains the one that was asked for.
        operands: the parts of the operands that it depends on.
    """

    box: Box
    operands: tuple[Box, ...]


class EarlySlices(Pass):
    """Moves slices in front of what is computed for each row by itself.

    The last layer of a decoder whose last row alone is read then computes one row. Ranges that
    readers want of a value are taken together, so that nothing is computed twice. Graphs stay as
    they are where no matmul or attention gets smaller.
    """

    name: ClassVar[str] = "early_slices"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rewriter = Rewriter(graph)
        needs = _needs_of(graph, rewriter.nodes())
        smaller = [
            node
            for node, found in needs.items()
            if node.op.name in _WORK and found.box != _whole(node.outputs[0])
        ]
        if not smaller:
            return graph
        for node in smaller:
            report.changed(self, f"sliced {node.op.name} before it is computed", node)
        return _Narrowing(rewriter, needs).run()


def _needs_of(graph: BaseGraph, nodes: Sequence[Node]) -> dict[Node, _Needs]:
    """The parts of all nodes that have a rule and a reader."""
    wanted = {value: _whole(value) for value in graph.results()}
    found: dict[Node, _Needs] = {}
    for node in reversed(nodes):
        box = wanted.get(node.outputs[0]) if len(node.outputs) == 1 else None
        rule = _RULES.get(node.op.name, _elementwise if isinstance(node.op, Elementwise) else None)
        needs = None if rule is None or box is None else rule(node, box)
        if needs is None:
            values = {value for other in graph.needed_by(node) for value in other.outputs}
            wanted.update((value, _whole(value)) for value in values)
            continue
        found[node] = needs
        for operand, part in zip(node.inputs, needs.operands, strict=True):
            before = wanted.get(operand)
            wanted[operand] = part if before is None else _hull(operand, before, part)
    return found


class _Narrowing:
    """The graph under construction, with parts of values."""

    def __init__(self, rewriter: Rewriter, needs: Mapping[Node, _Needs]) -> None:
        self._rewriter = rewriter
        self._needs = needs
        self._parts: dict[Value, tuple[Value, Box]] = {}

    def run(self) -> BaseGraph:
        """The new graph."""
        rewriter = self._rewriter
        for node in rewriter.nodes():
            needs = self._needs.get(node)
            if needs is None:
                rewriter.copy(node)
                continue
            result = rewriter.build(node, lambda: self._part_of(node, needs))  # noqa: B023
            assert result is not None
            (value,) = result if isinstance(result, tuple) else (result,)
            assert not isinstance(value, int)
            self._parts[node.outputs[0]] = value, needs.box
            if needs.box == _whole(node.outputs[0]):
                rewriter.replace(node, value)
        return rewriter.finish()

    def _part_of(self, node: Node, needs: _Needs) -> tuple[Value, ...]:
        """The part of a node's result."""
        if node.op is SLICE:
            return (self._operand(node.inputs[0], needs.operands[0]),)
        operands = [self._operand(*pair) for pair in zip(node.inputs, needs.operands, strict=True)]
        attrs = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = tuple(stop - start for start, stop in needs.box)
        return self._rewriter.graph.apply(node.op, operands, attrs)

    def _operand(self, value: Value, box: Box) -> Value:
        """A part of a value."""
        made, has = self._parts.get(value) or (self._rewriter[value], _whole(value))
        if has == box:
            return made
        starts = tuple(start - first for (start, _), (first, _) in zip(box, has, strict=True))
        stops = tuple(stop - first for (_, stop), (first, _) in zip(box, has, strict=True))
        attrs = {"starts": starts, "stops": stops, "steps": (1,) * len(box)}
        return self._rewriter.graph.apply(SLICE, (made,), attrs)[0]


def _whole(value: Value) -> Box:
    """All of a value."""
    return tuple((0, size) for size in value.shape)


def _hull(value: Value, left: Box, right: Box) -> Box:
    """A part that contains two; all of an axis where it is open which range begins first."""

    def both(size: Dim, a: tuple[Dim, Dim], b: tuple[Dim, Dim]) -> tuple[Dim, Dim]:
        if a == b:
            return a
        (start, stop), (first, last) = a, b
        if isinstance(start, int) and isinstance(first, int):
            if stop == last:
                return min(start, first), stop
            if isinstance(stop, int) and isinstance(last, int):
                return min(start, first), max(stop, last)
        return 0, size

    return tuple(map(both, value.shape, left, right))


# -- rules: the part of a result that is possible, and those of its operands ----------------------


def _along(operand: Value, sizes: Sequence[Dim], box: Box) -> Box:
    """The part of an operand that broadcasts to axes of these sizes."""
    count = operand.ndim
    if count == 0:
        return ()
    pairs = zip(operand.shape, sizes[-count:], box[-count:], strict=True)
    return tuple(part if size == whole else (0, size) for size, whole, part in pairs)


def _elementwise(node: Node, box: Box) -> _Needs:
    sizes = node.outputs[0].shape
    return _Needs(box, tuple(_along(operand, sizes, box) for operand in node.inputs))


def _matmul(node: Node, box: Box) -> _Needs | None:
    a, b = node.inputs
    if a.ndim < 2 or b.ndim < 2:
        return None
    sizes = node.outputs[0].shape
    batch = box[:-2]

    def outer(operand: Value) -> Box:
        count = operand.ndim - 2
        pairs = zip(operand.shape[:count], sizes[:-2][-count:], batch[-count:], strict=True)
        return tuple(p if size == whole else (0, size) for size, whole, p in pairs) if count else ()

    left = (*outer(a), box[-2], (0, a.shape[-1]))
    right = (*outer(b), *((0, size) for size in b.shape[-2:]))
    return _Needs((*box[:-1], (0, sizes[-1])), (left, right))


def _attention(node: Node, box: Box) -> _Needs:
    q, k, v, *mask = node.inputs
    length = q.shape[2]
    start, stop = box[2]
    if node.attrs["causal"] or node.attrs["window"] is not None:
        stop = length  # the last query is at the last key
    whole = _whole(node.outputs[0])
    own = (*whole[:2], (start, stop), whole[3])
    of_scores = (*own[:3], (0, k.shape[2]))
    sizes = (*q.shape[:3], k.shape[2])
    of_mask = tuple(_along(value, sizes, of_scores) for value in mask)
    queries = (*_whole(q)[:2], (start, stop), (0, q.shape[3]))
    return _Needs(own, (queries, _whole(k), _whole(v), *of_mask))


def _norm(node: Node, box: Box) -> _Needs:
    x, *rest = node.inputs
    axis = node.attrs["axis"]
    own = (*box[:axis], *_whole(x)[axis:])
    return _Needs(own, (own, *map(_whole, rest)))


def _softmax(node: Node, box: Box) -> _Needs:
    axis, (x,) = node.attrs["axis"], node.inputs
    own = tuple((0, x.shape[i]) if i == axis else part for i, part in enumerate(box))
    return _Needs(own, (own,))


def _rope(node: Node, box: Box) -> _Needs:
    x, *angles = node.inputs
    own = (*box[:-1], (0, x.shape[-1]))
    outer, sizes = box[:-1], x.shape[:-1]

    def of_angles(value: Value) -> Box:
        count = value.ndim - 1
        pairs = zip(value.shape[:-1], sizes[-count:], outer[-count:], strict=True)
        part = tuple(p if size == whole else (0, size) for size, whole, p in pairs) if count else ()
        return (*part, (0, value.shape[-1]))

    return _Needs(own, (own, *map(of_angles, angles)))


def _reshape(node: Node, box: Box) -> _Needs:
    (x,), (out,) = node.inputs, node.outputs
    own, part = list(_whole(out)), list(_whole(x))
    before = {prod(x.shape[:j]): j for j in reversed(range(x.ndim)) if x.shape[j] != 1}
    for i, size in enumerate(out.shape):
        j = before.get(prod(out.shape[:i]))
        if j is not None and size == x.shape[j]:
            own[i] = part[j] = box[i]
    return _Needs(tuple(own), (tuple(part),))


def _permute_dims(node: Node, box: Box) -> _Needs:
    by_axis = dict(zip(node.attrs["axes"], box, strict=True))
    return _Needs(box, (tuple(by_axis[axis] for axis in range(len(box))),))


def _slice(node: Node, box: Box) -> _Needs | None:
    if any(step != 1 for step in node.attrs["steps"]):
        return None
    starts = node.attrs["starts"]
    part = tuple(
        (first + start, first + stop) for first, (start, stop) in zip(starts, box, strict=True)
    )
    return _Needs(box, (part,))


def _take(node: Node, box: Box) -> _Needs:
    x, indices = node.inputs
    axis, whole = node.attrs["axis"], _whole(node.outputs[0])
    end = axis + indices.ndim
    return _Needs((*whole[:axis], *box[axis:end], *whole[end:]), (_whole(x), box[axis:end]))


#: The ops that are worth a change.
_WORK = frozenset({"matmul", "attention"})

_RULES: dict[str, Callable[[Node, Box], _Needs | None]] = {
    "attention": _attention,
    "broadcast_to": _elementwise,
    "layer_norm": _norm,
    "matmul": _matmul,
    "permute_dims": _permute_dims,
    "reshape": _reshape,
    "rms_norm": _norm,
    "rope": _rope,
    "slice": _slice,
    "softmax": _softmax,
    "take": _take,
}
