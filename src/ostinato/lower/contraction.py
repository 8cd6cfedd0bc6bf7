"""The contraction kernel: a sum of products over packed panels, with a fused epilogue.

``acc[batch, m, n] = Σ_k a[batch, m, k] · b[batch, k, n]``, then the epilogue's stores at every
``(batch, m, n)``. Matrix products and convolutions are both this kernel: they differ only in the
index expressions of ``a`` and in how ``b`` was packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.dtypes import DType
from ostinato.lower.loops import Arg, Store
from ostinato.variables import Dim, Symbol

__all__ = ["Contraction"]


@dataclass(frozen=True, eq=False)
class Contraction:
    """A GEMM-like kernel (SPEC section 1, ``matmul`` and ``conv``).

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        batch: outer axes, each an independent product; outermost first.
        m: the row axis: of the output, and of ``a``.
        n: the column axis: vector lanes.
        k: the axes summed over, outermost first (matmul has one; a convolution has channel and
            kernel positions). Their order is the order of rows in the packed panels.
        a: the argument that holds ``a``; ``a_dtype`` its element type.
        a_index: element offset over ``batch``, ``m`` and ``k``: ``f(batch, m) + g(k)`` with ``g``
            affine in each ``k`` axis.
        b: the argument that holds the packed panels, in ``acc`` dtype: for each panel group,
            ``ceil(n / panel)`` panels of ``prod(k)`` rows of ``panel`` elements, zero beyond ``n``.
        b_group: which panel group serves a batch point; an expression over ``batch``.
        panel: elements per row of a panel, a multiple of the vector length.
        rows: how many rows of ``a`` a register tile holds.
        acc: the accumulator's dtype.
        epilogue: stores over ``batch``, ``m`` and ``n``, in which ``Accumulator`` is the sum.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    batch: tuple[Symbol, ...]
    m: Symbol
    n: Symbol
    k: tuple[Symbol, ...]
    a: int
    a_dtype: DType
    a_index: Dim
    b: int
    b_group: Dim
    panel: int
    rows: int
    acc: DType
    epilogue: tuple[Store, ...]
    variables: tuple[Symbol, ...] = ()
