"""Sums of products in CUDA C++: their types, and the sizes that kernels of matmuls begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.render.dialect import CudaDialect
from ostinato.lower.loopir.dependences import reached
from ostinato.lower.loopir.nodes import Load, extent_of
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim, Symbol

__all__ = ["matmul_sizes", "runs_along", "stores_along_rows", "sum_type"]


def sum_type(acc: DType) -> str:
    """The type of a sum; integers wrap, which unsigned ones may."""
    if acc.is_float:
        return CudaDialect().register_type(acc)
    return "unsigned long long" if acc.itemsize > 4 else "unsigned"


def matmul_sizes(matmul: Matmul) -> dict[str, Dim]:
    """The sizes of a matmul, by the names that templates have for them."""
    return {
        "points": matmul.points,
        "rows": extent_of(matmul.m),
        "columns": extent_of(matmul.n),
        "depth": matmul.depth,
    }


def runs_along(scalar: Scalar, axis: Symbol) -> bool:
    """Whether neighbours along an axis are neighbours in memory."""
    loads = [found.index for found in reached([scalar]) if isinstance(found, Load)]
    steps = [coefficient(index, axis) for index in loads]
    return any(step is not None and step[0] == 1 for step in steps)


def stores_along_rows(matmul: Matmul) -> bool:
    """Whether neighbouring rows, not columns, are neighbours in the result's memory."""
    steps = [coefficient(store.index, matmul.m) for store in matmul.stores[:1]]
    return any(step is not None and step[0] == 1 for step in steps)
