"""Sizes of a program: expressions as SymPy prints them, as dims of a graph."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ostinato.errors import ModelFormatError, UnsupportedOpError
from ostinato.variables import ceil_div, floor_div, maximum, minimum, remainder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ostinato.frontends.torch.program import Size
    from ostinato.variables import Dim

__all__ = ["SymbolTable"]

#: No expression of a size is longer; a file whose expressions are is made to exhaust memory.
_LONGEST = 10_000

_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "FloorDiv": floor_div,
    "CleanDiv": floor_div,
    "Mod": remainder,
    "PythonMod": remainder,
    "Max": maximum,
    "Min": minimum,
}


class SymbolTable:
    """Dims by the names of a program's symbols, and the expressions over them.

    Args:
        ranges: by symbol, its least and its greatest value, if there is one.

    Attributes:
        requirements: sizes that must not be negative in a run, and the words for those that are.
    """

    def __init__(self, ranges: Mapping[str, tuple[int, int | None]]) -> None:
        self._ranges = ranges
        self.requirements: list[tuple[Dim, str]] = []
        self._dims: dict[str, Dim] = {}
        self._parsed: dict[str, Dim] = {}

    def define(self, symbol: str, dim: Dim) -> None:
        """Let ``symbol`` stand for ``dim``."""
        self._dims[symbol] = dim

    def copy(self) -> SymbolTable:
        """A table to define further symbols in."""
        twin = SymbolTable(self._ranges)
        twin._dims.update(self._dims)
        return twin

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._dims

    def bound(self, size: Any) -> int | None:
        """The greatest value of a symbol; ``None`` without one, or if it may be negative."""
        symbol = _symbol_name(size)
        least, greatest = self._ranges.get(symbol or "", (0, None))
        return None if symbol is None or least < 0 else greatest

    def learn(self, sizes: Sequence[Size], dims: Sequence[Dim]) -> None:
        """Define the symbols that stand alone among ``sizes`` and are not defined yet."""
        for size, dim in zip(sizes, dims, strict=False):
            symbol = _symbol_name(size)
            if symbol is not None and symbol not in self._dims:
                self.define(symbol, dim)

    def dim(self, size: Size) -> Dim:
        """The dim that ``size`` stands for.

        Raises:
            UnsupportedOpError: it has a function or a symbol without an equivalent.
            ModelFormatError: it is no expression.
        """
        if isinstance(size, int):
            return size
        if size not in self._parsed:
            if len(size) > _LONGEST:
                raise ModelFormatError(f"the size {size[:60]!r}… has {len(size)} characters")
            try:
                tree = ast.parse(size.strip(), mode="eval")
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise ModelFormatError(f"the size {size!r} is no expression") from None
            self._parsed[size] = self._evaluate(tree.body, size)
        return self._parsed[size]

    def expression(self, tree: ast.expr, whole: str) -> Dim:
        """The dim of a parsed expression.

        Args:
            tree: the expression.
            whole: the text that it is a part of, for messages.

        Raises:
            UnsupportedOpError: as :meth:`dim`.
        """
        return self._evaluate(tree, whole)

    def _evaluate(self, tree: ast.expr, whole: str) -> Dim:
        match tree:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name) if name in self._dims:
                return self._dims[name]
            case ast.Name(id=name):
                raise UnsupportedOpError(
                    f"the size {whole!r} depends on {name}, which no input gives"
                )
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._evaluate(operand, whole)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, left, right, whole)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS and args:
                dims = [self._evaluate(arg, whole) for arg in args]
                result = dims[0]
                for dim in dims[1:]:
                    result = _FUNCTIONS[name](result, dim)
                return result
            case ast.Call(
                func=ast.Name(id="CeilToInt" | "ceiling"),
                args=[
                    ast.BinOp(left=left, op=ast.Div(), right=right)
                    | ast.Call(func=ast.Name(id="IntTrueDiv"), args=[left, right])
                ],
            ):
                return ceil_div(self._evaluate(left, whole), self._evaluate(right, whole))
            case ast.Call(
                func=ast.Name(id="FloorToInt" | "TruncToInt" | "floor"),
                args=[
                    ast.BinOp(left=left, op=ast.Div(), right=right)
                    | ast.Call(func=ast.Name(id="IntTrueDiv"), args=[left, right])
                ],
            ):
                return floor_div(self._evaluate(left, whole), self._evaluate(right, whole))
        raise UnsupportedOpError(f"no size can be computed as {ast.unparse(tree)!r} in {whole!r}")

    def _binary(self, op: ast.operator, left: ast.expr, right: ast.expr, whole: str) -> Dim:
        a, b = self._evaluate(left, whole), self._evaluate(right, whole)
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.FloorDiv():
                return floor_div(a, b)
            case ast.Mod():
                return remainder(a, b)
            case ast.Pow() if isinstance(b, int) and 0 <= b <= 8:
                result: Dim = 1
                for _ in range(b):
                    result = result * a
                return result
        raise UnsupportedOpError(f"no size can be computed as {whole!r}")


def _symbol_name(size: Any) -> str | None:
    """The symbol that an expression consists of."""
    return size if isinstance(size, str) and size.isidentifier() else None
