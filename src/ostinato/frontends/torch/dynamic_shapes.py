"""Sizes that may vary, as callers give them to an export. This module imports PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from ostinato.errors import VariableError
from ostinato.frontends.torch.program import TensorMeta
from ostinato.variables import Expr, Variable, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ostinato.frontends.torch.program import Program
    from ostinato.variables import Symbol

__all__ = ["DynamicShapes"]


class DynamicShapes:
    """The ``dynamic_shapes`` of an export, in which ``ost.Variable`` may stand for ``Dim``.

    Args:
        given: as ``torch.export.export`` takes it.

    Attributes:
        given: the same, with PyTorch's dims alone.
        named: whether some dims have names, and bounds that the export has to keep.

    Raises:
        VariableError: an expression of Variables that PyTorch cannot express.
    """

    def __init__(self, given: Any) -> None:
        self._original = given
        self._dims: dict[Symbol, Any] = {}
        self.named = False
        self.given = self._converted(given)

    def _converted(self, given: Any) -> Any:
        if isinstance(given, Expr):
            self.named = True
            return self._dim(given)
        if isinstance(given, Mapping):
            return {key: self._converted(item) for key, item in given.items()}
        if type(given) in (list, tuple):
            return type(given)(map(self._converted, given))
        self.named = self.named or hasattr(given, "__name__")
        return given

    def _dim(self, expression: Expr) -> Any:
        """PyTorch's dim of an expression ``a * n + b``."""
        match expression.terms:
            case (((symbol,), factor),) if symbol in symbols(expression):
                if symbol not in self._dims:
                    self._dims[symbol] = Dim(symbol.name, min=symbol.min, max=symbol.max)
                dim = self._dims[symbol]
                dim = dim if factor == 1 else factor * dim
                return dim + expression.const if expression.const else dim
        raise VariableError(
            f"dynamic_shapes: a size is a Variable, or a multiple of one, got {expression}"
        )

    def dims(
        self, program: Program, source: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[dict[str, Expr], dict[str, str]]:
        """By symbol of a program, the Variable that the caller gave, or the name of a ``Dim``."""
        variables: dict[str, Expr] = {}
        names: dict[str, str] = {}
        metas = {spec.target: spec.meta for spec in program.users()}
        for name, axis, dim in _listed(self._original, source, args, kwargs):
            meta = metas.get(name)
            if not isinstance(meta, TensorMeta) or axis >= len(meta.shape):
                continue
            symbol = meta.shape[axis]
            if not isinstance(symbol, str) or symbol not in program.symbols:
                continue
            if isinstance(dim, Variable):
                variables[symbol] = dim
            elif (word := getattr(dim, "__name__", "")).isidentifier():
                names.setdefault(symbol, word)
        return variables, names


def _listed(
    given: Any, source: Callable[..., Any], args: Any, kwargs: Any
) -> Iterator[tuple[str, int, Any]]:
    """The name of an input, an axis, and the dim that the caller gave for it."""
    try:
        bound = inspect.signature(source).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return
    if isinstance(given, Mapping):
        pairs = [(name, bound[name], given[name]) for name in given if name in bound]
    elif isinstance(given, Sequence):
        pairs = [(n, v, d) for (n, v), d in zip(bound.items(), given, strict=False)]
    else:
        return
    for name, value, dims in pairs:
        yield from _of_tensor(name, value, dims)


def _of_tensor(name: str, value: Any, dims: Any) -> Iterator[tuple[str, int, Any]]:
    if isinstance(value, torch.Tensor):
        if isinstance(dims, Mapping):
            for axis, dim in dims.items():
                yield name, axis % max(value.ndim, 1), dim
        elif isinstance(dims, Sequence):
            for axis, dim in enumerate(dims):
                yield name, axis, dim
    elif isinstance(value, Mapping) and isinstance(dims, Mapping):
        for key in dims.keys() & value.keys():
            yield from _of_tensor(f"{name}.{key}", value[key], dims[key])
    elif isinstance(value, Sequence) and isinstance(dims, Sequence):
        for position, (item, inner) in enumerate(zip(value, dims, strict=False)):
            yield from _of_tensor(f"{name}.{position}", item, inner)
