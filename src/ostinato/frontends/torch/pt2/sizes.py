"""Sizes in ``.pt2`` files: SymPy's descriptions of expressions, as SymPy prints the expressions.

>>> readable("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(1))")
'2*s0 + 1'
"""

from __future__ import annotations

import ast

from ostinato.errors import ModelFormatError

__all__ = ["readable"]

#: No description of a size is longer; a file whose sizes are is made to exhaust memory.
_LONGEST = 100_000

_OPERATORS: dict[str, type[ast.operator]] = {"Add": ast.Add, "Mul": ast.Mult, "Pow": ast.Pow}


def readable(text: str) -> str:
    """The expression that a description stands for; one that is readable stays as it is.

    Raises:
        ModelFormatError: it is no expression.
    """
    if len(text) > _LONGEST:
        raise ModelFormatError(f"the size {text[:60]!r}… has {len(text)} characters")
    try:
        return ast.unparse(_Reader().visit(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ModelFormatError(f"the size {text[:200]!r} is no expression") from None


class _Reader(ast.NodeTransformer):
    """Replaces calls that make numbers, symbols, sums and products by what they make."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name), *_]):
                if not name.isidentifier():
                    raise ValueError(name)
                return ast.Name(name, ast.Load())
            case ast.Call(func=ast.Name(id="Integer"), args=[number]):
                return number
            case ast.Call(func=ast.Name(id=name), args=[first, *rest]) if name in _OPERATORS:
                result = first
                for operand in rest:
                    result = ast.BinOp(result, _OPERATORS[name](), operand)
                return result
        return node
