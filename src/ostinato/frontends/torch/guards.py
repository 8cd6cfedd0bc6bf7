"""Guards: conditions of an export on the shapes of its inputs, as facts about sizes.

PyTorch writes them as Python: ``L['x'].size()[1] == L['mask'].size()[0]``.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NoReturn

from ostinato.errors import ModelFormatError, UnsupportedOpError
from ostinato.frontends.torch.program import ScalarMeta, TensorMeta
from ostinato.ir.facts import Fact
from ostinato.variables import maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.frontends.torch.program import InputSpec
    from ostinato.frontends.torch.symbols import SymbolTable
    from ostinato.variables import Dim

__all__ = ["guard_facts", "worded"]

#: No guard is longer; a file whose guards are is made to exhaust memory.
_LONGEST = 100_000

#: Names of comparisons where SymPy writes them as calls.
_CALLS: dict[str, type[ast.cmpop]] = {
    "Eq": ast.Eq,
    "Ne": ast.NotEq,
    "Lt": ast.Lt,
    "Le": ast.LtE,
    "Gt": ast.Gt,
    "Ge": ast.GtE,
}


def guard_facts(guard: str, users: Sequence[InputSpec], symbols: SymbolTable) -> list[Fact]:
    """The facts that a guard consists of, without those that always hold.

    Args:
        guard: the condition.
        users: the inputs that it may mention, by the names that PyTorch gives placeholders.
        symbols: the dims that the program's symbols stand for.

    Raises:
        UnsupportedOpError: a run could not check it.
        ModelFormatError: it is no condition.
    """
    if len(guard) > _LONGEST:
        raise ModelFormatError(f"the guard {guard[:60]!r}… has {len(guard)} characters")
    try:
        tree = ast.parse(guard.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModelFormatError(f"the guard {guard!r} is no condition") from None
    reader = _GuardReader(guard, users, symbols)
    problem = f"the export holds for {worded(guard)}"
    facts = (Fact(size, least, problem) for size, least in reader.conditions(tree.body))
    return [fact for fact in facts if not fact.certain]


class _GuardReader:
    """The conditions that one guard consists of."""

    def __init__(self, guard: str, users: Sequence[InputSpec], symbols: SymbolTable) -> None:
        self._guard = guard
        self._users = {spec.name: spec for spec in users}
        self._symbols = symbols.copy()

    def conditions(self, tree: ast.expr) -> Iterator[tuple[Dim, int]]:
        """Pairs of a size and its least value."""
        match tree:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from self.conditions(value)
            case ast.Call(func=ast.Name(id="And"), args=args):
                for arg in args:
                    yield from self.conditions(arg)
            case (
                ast.BoolOp(op=ast.Or(), values=values)
                | ast.Call(func=ast.Name(id="Or"), args=values)
            ):
                yield self._excess(values), 0
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for op, right in zip(ops, comparators, strict=True):
                    yield from self._comparison(left, op, right)
                    left = right
            case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
                yield from self._comparison(left, _CALLS[name](), right)
            case ast.Constant(value=True):
                return
            case _:
                self._refuse()

    def _excess(self, alternatives: Sequence[ast.expr]) -> Dim:
        """A size that is not negative exactly where one of the alternatives holds."""
        found: Dim | None = None
        for alternative in alternatives:
            every: Dim = 0
            for size, least in self.conditions(alternative):
                every = minimum(every, size - least)
            found = every if found is None else maximum(found, every)
        assert found is not None
        return found

    def _comparison(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr
    ) -> Iterator[tuple[Dim, int]]:
        difference = self._size(left) - self._size(right)
        match op:
            case ast.Eq():
                yield difference, 0
                yield -difference, 0
            case ast.NotEq():
                yield maximum(difference, -difference), 1
            case ast.Lt():
                yield -difference, 1
            case ast.LtE():
                yield -difference, 0
            case ast.Gt():
                yield difference, 1
            case ast.GtE():
                yield difference, 0
            case _:
                self._refuse()

    def _size(self, tree: ast.expr) -> Dim:
        return self._symbols.expression(_Sizes(self).visit(tree), self._guard)

    def size_of(self, tensor: ast.expr, axis: int, stride: bool) -> Dim:
        """The size of an axis of an input, or its stride."""
        spec = self._users.get(_placeholder(tensor))
        meta = None if spec is None else spec.meta
        if not isinstance(meta, TensorMeta):
            self._refuse()
        sizes = meta.strides if stride else meta.shape
        if sizes is None or not -len(sizes) <= axis < len(sizes):
            self._refuse()
        return self._symbols.dim(sizes[axis])

    def number_of(self, source: ast.expr) -> Dim:
        """The number that an input is."""
        spec = self._users.get(_placeholder(source))
        meta = None if spec is None else spec.meta
        if not isinstance(meta, ScalarMeta) or not isinstance(meta.value, int | str):
            self._refuse()
        return self._symbols.dim(meta.value)

    def name(self, dim: Dim) -> ast.Name:
        """A name that stands for a dim."""
        name = f"input {dim}"
        self._symbols.define(name, dim)
        return ast.Name(name)

    def _refuse(self) -> NoReturn:
        raise UnsupportedOpError(f"the export assumes {self._guard!r}, which a run could not check")


class _Sizes(ast.NodeTransformer):
    """Replaces what a guard says about inputs by dims."""

    def __init__(self, reader: _GuardReader) -> None:
        self._reader = reader

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=tensor, attr="size" | "stride" as what)),
                slice=ast.Constant(value=int() as axis),
            ):
                return self._reader.name(self._reader.size_of(tensor, axis, what == "stride"))
        return self._reader.name(self._reader.number_of(node))


def _placeholder(source: ast.expr) -> str:
    """The name that PyTorch gives the placeholder of an input: ``d_a_0`` for ``L['d']['a'][0]``."""
    parts = re.findall(r"\w+", ast.unparse(source))
    return "_".join(parts[1:])


def worded(guard: str) -> str:
    """A guard in fewer characters: ``x.shape[0]`` for ``L['x'].size()[0]``."""
    shorter = re.sub(r"L\['(\w+)'\]", r"\1", guard)
    return re.sub(r"\.size\(\)\[", ".shape[", shorter)
