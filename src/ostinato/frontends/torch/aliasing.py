"""Functionalisation: tensors that share memory, and ops that write to them, as values of a graph.

PyTorch's tensors are views of storages, and in-place ops write through them. Here a storage is the
value that it holds at this point of the program; a view is computed from it when it is read, and a
write to a view makes a new value of the whole storage.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.dtypes import INT64
from ostinato.errors import GraphError
from ostinato.frontends.torch.call import Complex, NotSupported
from ostinato.frontends.torch.layout import is_viewable
from ostinato.frontends.torch.program import Named, Program, Ref, TensorMeta
from ostinato.ir.graph import Value
from ostinato.ops.vocabulary.ranges import resolve_range
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.frontends.torch.program import Argument, ProgramNode, Size
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["INLINED", "Tensor", "View", "aliases", "functional_target", "written_inputs"]

#: Ops of higher order that run a program as if its nodes stood there: the position of the program.
INLINED = {
    "higher_order.wrap_with_set_grad_enabled": 1,
    "higher_order.wrap_with_autocast": 4,
    "higher_order.hints_wrapper": 0,
}

#: The elements of a tensor.
Elements: TypeAlias = "Value | Complex"


class _Storage:
    """The elements that tensors share, as they are at this point of the program."""

    def __init__(self, value: Elements) -> None:
        self.value = value
        self.version = 0


class Tensor:
    """A tensor of a program: a storage as a whole, or a view of another tensor.

    Args:
        value: its elements.
        base: the tensor that it is a view of.
        view: computes it from its base.
        meta: its type, with its position in memory; ``None`` where unknown.
    """

    def __init__(
        self,
        value: Elements,
        base: Tensor | None = None,
        view: View | None = None,
        meta: TensorMeta | None = None,
    ) -> None:
        self._storage: _Storage = _Storage(value) if base is None else base._storage
        self._value, self._version = value, self._storage.version
        self._base, self._view = base, view
        self.meta = meta

    @property
    def root(self) -> Tensor:
        """The tensor that has the whole storage."""
        return self if self._base is None else self._base.root

    @property
    def written(self) -> bool:
        """Whether an op has written to the storage."""
        return self._storage.version > 0

    def shares_memory(self, other: Tensor) -> bool:
        """Whether both are views of one storage."""
        return self._storage is other._storage

    def read(self) -> Elements:
        """The elements as of now."""
        if self._version != self._storage.version:
            self._value = self._storage.value if self._base is None else self._reviewed()
            self._version = self._storage.version
        return self._value

    def _reviewed(self) -> Elements:
        assert self._base is not None and self._view is not None
        return self._view.apply(self._base.read())

    def write(self, g: Graph, value: Elements) -> None:
        """Replace the elements, and so those of every tensor that shares them.

        Raises:
            NotSupported: the view has no inverse.
        """
        if value is self.read():
            return
        root = value
        if self._base is not None:
            root = self._written_through(g, value)
        self._storage.value = root
        self._storage.version += 1
        self._value, self._version = value, self._storage.version

    def _written_through(self, g: Graph, value: Elements) -> Elements:
        """The storage's new elements, when this view's are ``value``."""
        steps: list[Tensor] = []
        tensor = self
        while tensor._base is not None:
            steps.append(tensor)
            tensor = tensor._base
        new = value
        for step in steps:
            assert step._view is not None and step._base is not None
            restored = step._view.restore(g, step._base.read(), new)
            if restored is None:
                return _scattered(g, tensor.read(), [s._view for s in reversed(steps)], value)
            new = restored
        return new


@dataclass(frozen=True, eq=False)
class View:
    """The op that makes a view.

    Attributes:
        node: the op.
        compute: its converter, applied to the base's elements: the results.
        arguments: its arguments by PyTorch's names, the base aside.
        index: which of its results the view is, where it has several.
    """

    node: ProgramNode
    compute: Callable[[Elements], Any]
    arguments: Mapping[str, Any]
    index: int | None = None

    def apply(self, base: Elements) -> Elements:
        """The view of ``base``."""
        results = self.compute(base)
        return results if self.index is None else results[self.index]  # type: ignore[no-any-return]

    def restore(self, g: Graph, base: Elements, value: Elements) -> Elements | None:
        """``base`` with the elements of this view replaced; ``None`` without a direct way."""
        found = _RESTORED.get(_op(self.node.target))
        if found is None or isinstance(base, Complex) != isinstance(value, Complex):
            return None
        if isinstance(base, Complex) and isinstance(value, Complex):
            pairs = found(g, self, base.pairs, value.pairs, base.ndim)
            return None if pairs is None else Complex(pairs)
        assert isinstance(base, Value) and isinstance(value, Value)
        return found(g, self, base, value, base.ndim)

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """The axis that an argument names."""
        dim: int = self.arguments.get(name, default)
        return dim % max(rank, 1)


def functional_target(target: str) -> str | None:
    """The op without a write that computes what ``target`` writes; ``None`` if it writes nothing.

    >>> functional_target("aten.add_.Tensor")
    'aten.add.Tensor'
    """
    found = re.fullmatch(r"(\w+)\.(\w+?)(\.\w+)?", target)
    if found is None or found[1] != "aten":
        return None
    name, overload = found[2], found[3] or ""
    if dunder := re.fullmatch(r"__i(\w+)__", name):
        return f"aten.__{dunder[1]}__{overload}" if dunder[1] in _DUNDERS else None
    if name.endswith("_") and not name.endswith("__"):
        return f"aten.{name[:-1]}{overload}"
    return None


def written_inputs(program: Program) -> frozenset[str]:
    """The inputs that ops of a program may write to, by name."""
    origins: dict[str, frozenset[str]] = {s.name: frozenset((s.name,)) for s in program.inputs}
    written: set[str] = set()
    for node in program.nodes:
        operands = _origins(node.args[:1], origins)
        if functional_target(node.target) is not None:
            written |= operands
        written |= _origins(tuple(v for k, v in node.kwargs.items() if k == "out"), origins)
        if (also := _ALSO_WRITTEN.get(_op(node.target))) is not None:
            first, last, mode = also
            if node.args[mode : mode + 1] == (True,):
                written |= _origins(node.args[first:last], origins)
        for argument in (*node.args, *node.kwargs.values()):
            if isinstance(argument, Program):  # its operands may be the results
                operands |= _origins(node.args, origins)
                if written_inputs(argument):
                    written |= _origins(node.args, origins)
        gives_operand = functional_target(node.target) is not None
        if gives_operand or _op(node.target) in _ALIASING or node.target in _TRANSPARENT:
            origins.update(dict.fromkeys(node.results, operands))
    return frozenset(written)


def _origins(
    arguments: tuple[Argument, ...], origins: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for argument in arguments:
        if isinstance(argument, Ref):
            found |= origins.get(argument.name, frozenset())
        elif isinstance(argument, tuple) and not isinstance(argument, Named):
            found |= _origins(argument, origins)
    return found


def aliases(
    node: ProgramNode,
    base: TensorMeta | None,
    arguments: Mapping[str, Any],
    dim: Callable[[Size], Dim],
) -> bool:
    """Whether an op's results share the memory of its first operand.

    Args:
        node: the op, one that writes nothing or only to its operand's shape.
        base: the type of its first operand.
        arguments: its arguments by PyTorch's names.
        dim: gives the dim that a size stands for.
    """
    op = _op(node.target)
    if op in _VIEWS:
        return True
    result = node.metas[0] if node.metas else None
    if not isinstance(result, TensorMeta) or base is None:
        return False
    if op in _RESHAPES:
        if base.strides is None:
            return False
        sizes, strides, new = (
            [*map(dim, part)] for part in (base.shape, base.strides, result.shape)
        )
        return is_viewable(sizes, strides, new)
    if op in _CONVERSIONS:
        fields = ("dtype", "device", "strides")
        same = all(getattr(base, name) == getattr(result, name) for name in fields)
        return same and not arguments.get("copy", False)
    if op in _DROPOUTS:
        training = arguments.get("train", arguments.get("training", True))
        return not training or arguments.get("p") == 0
    return False


# -- writes to views ---------------------------------------------------------------------------


def _reshaped(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    return g.reshape(value, base.shape)


def _permuted(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    axes = [dim % rank for dim in view.arguments["dims"]]
    inverse = [axes.index(axis) for axis in range(rank)]
    return g.permute_dims(value, [*inverse, *range(rank, base.ndim)])


def _transposed(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    if rank == 0:
        return value
    first = view.arguments.get("dim0", view.arguments.get("axis0", 0))
    second = view.arguments.get("dim1", view.arguments.get("axis1", 1))
    return g.swapaxes(value, first % rank, second % rank)


def _matrix_transposed(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    return value if rank < 2 else g.swapaxes(value, 0, 1)


def _selected(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value | None:
    axis, index = view.axis("dim", rank), view.arguments["index"]
    if isinstance(index, Value):
        return None
    first = index + base.shape[axis] if isinstance(index, int) and index < 0 else index
    return _block_replaced(g, base, g.unsqueeze(value, axis), axis, first)


def _sliced(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value | None:
    given = view.arguments
    if given.get("step", 1) != 1:
        return None
    axis = view.axis("dim", rank)
    size = base.shape[axis]
    try:
        cut = resolve_range(given.get("start"), given.get("end"), 1, size)
    except GraphError:
        return None
    return _block_replaced(g, base, value, axis, cut.start)


def _narrowed(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value | None:
    axis, start = view.axis("dim", rank), view.arguments["start"]
    if isinstance(start, Value):
        return None
    first = start + base.shape[axis] if isinstance(start, int) and start < 0 else start
    return _block_replaced(g, base, value, axis, first)


def _part_replaced(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    """``base`` with one of the parts that it was split into replaced."""
    axis = view.axis("dim", rank)
    parts = view.compute(base if base.ndim == rank else Complex(base))
    first: Dim = 0
    for part in parts[: view.index]:
        first = first + part.shape[axis]
    return _block_replaced(g, base, value, axis, first)


def _item_replaced(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value:
    axis = view.axis("dim", rank)
    assert view.index is not None
    return _block_replaced(g, base, g.unsqueeze(value, axis), axis, view.index)


def _identical(g: Graph, view: View, base: Value, value: Value, rank: int) -> Value | None:
    return value if value.shape == base.shape else None


def _block_replaced(g: Graph, base: Value, block: Value, axis: int, first: Dim) -> Value:
    if block.shape == base.shape:
        return block
    starts: list[Dim] = [0] * base.ndim
    starts[axis] = first
    return g.dynamic_update_slice(base, block, starts)


def _scattered(g: Graph, root: Elements, views: Sequence[View | None], value: Elements) -> Elements:
    """``root`` with ``value`` at the positions that a chain of views gives.

    The views of the positions' numbers are the positions that the elements come from.
    """
    whole = root.pairs if isinstance(root, Complex) else root
    flat = g.reshape(g.arange(math.prod(whole.shape)), whole.shape)
    positions: Elements = Complex(flat) if isinstance(root, Complex) else flat
    for view in views:
        assert view is not None
        if _op(view.node.target) == "aten.view" and view.node.target.endswith(".dtype"):
            raise NotSupported("a write through a view of another dtype")
        positions = view.apply(positions)
    if isinstance(positions, Complex) != isinstance(value, Complex):
        raise NotSupported("a write through a view between complex and real numbers")
    where = positions.pairs if isinstance(positions, Complex) else positions
    new = value.pairs if isinstance(value, Complex) else value
    if where.dtype != INT64:
        raise NotSupported("a write through a view that computes")
    count = math.prod(new.shape)
    written = g.scatter(
        g.reshape(whole, (math.prod(whole.shape),)),
        g.reshape(where, (count,)),
        g.reshape(new, (count,)),
    )
    result = g.reshape(written, whole.shape)
    return Complex(result) if isinstance(root, Complex) else result


def _op(target: str) -> str:
    """An op's name without the overload, and without the underscore of a changed shape."""
    return ".".join((functional_target(target) or target).split(".")[:2])


#: Dunder methods that write.
_DUNDERS = frozenset({"and", "or", "xor", "lshift", "rshift"})

_Restore: TypeAlias = "Callable[[Graph, View, Value, Value, int], Value | None]"

#: Views that can be written to without the positions of their elements.
_RESTORED: dict[str, _Restore] = {
    **{
        f"aten.{name}": _reshaped
        for name in (
            *("view", "reshape", "_reshape_alias", "_unsafe_view", "view_as", "reshape_as"),
            *("flatten", "ravel", "unflatten", "squeeze", "unsqueeze"),
        )
    },
    **{
        f"aten.{name}": _identical
        for name in (
            *("alias", "detach", "lift_fresh", "lift", "positive", "contiguous", "to"),
            *("expand", "expand_as", "broadcast_to", "resolve_conj", "resolve_neg"),
            *("type_as", "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
            *("conj_physical", "conj", "real", "cpu", "float", "double", "half", "bfloat16"),
        )
    },
    "aten.permute": _permuted,
    "aten.transpose": _transposed,
    "aten.swapaxes": _transposed,
    "aten.swapdims": _transposed,
    "aten.t": _matrix_transposed,
    "aten.select": _selected,
    "aten.slice": _sliced,
    "aten.narrow": _narrowed,
    "aten.split": _part_replaced,
    "aten.split_with_sizes": _part_replaced,
    "aten.chunk": _part_replaced,
    "aten.tensor_split": _part_replaced,
    "aten.unbind": _item_replaced,
}

#: Ops whose results always share the memory of their first operand.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("view", "_reshape_alias", "_unsafe_view", "view_as", "squeeze", "unsqueeze"),
        *("alias", "detach", "lift_fresh", "lift", "positive", "resolve_conj", "resolve_neg"),
        *("expand", "expand_as", "broadcast_to", "permute", "transpose", "swapaxes", "swapdims"),
        *("t", "numpy_T", "mT", "mH", "matrix_H", "adjoint", "movedim", "moveaxis", "unflatten"),
        *("select", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split"),
        *("hsplit", "vsplit", "dsplit", "unbind", "diagonal", "linalg_diagonal", "unfold"),
        *("as_strided", "view_as_real", "view_as_complex", "real", "imag", "_conj", "_neg_view"),
        *("conj",),
    )
)

#: Ops that give a view where strides allow it, and else a copy.
_RESHAPES = frozenset(f"aten.{name}" for name in ("reshape", "reshape_as", "flatten", "ravel"))

#: Ops that give their operand where it is what they would make.
_CONVERSIONS = frozenset(
    f"aten.{name}"
    for name in (*("contiguous", "to", "type_as", "cpu", "float", "double", "half", "bfloat16"),)
)

#: Ops that give their operand where they drop nothing.
_DROPOUTS = frozenset(
    f"aten.{name}"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)

#: Ops whose results may share the memory of their first operand.
_ALIASING = _VIEWS | _RESHAPES | _CONVERSIONS | _DROPOUTS

#: The range of the operands that an op writes to besides, where the last of these operands is true.
_ALSO_WRITTEN = {"aten.batch_norm": (3, 5, 5)}

#: Nodes that give their operands on as they are.
_TRANSPARENT = frozenset({"_operator.getitem", *INLINED})
