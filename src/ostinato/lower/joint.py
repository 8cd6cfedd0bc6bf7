"""Products of the same rows with several matrices, in one kernel.

Queries, keys and values are products of the same rows, and so are the gate of a hidden unit and
what it lets through. One kernel for all of them is handed out to threads once. Each matrix keeps
panels of its own, packed from where it lies; the kernel goes from one to the next.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ostinato.lower.contraction import fits_cache
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.lower.contraction import Contraction
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.rules.loops import Outputs
    from ostinato.lower.rules.matmul_spec import Product, ProductCut, RegisterFile
    from ostinato.variables import Dim, Symbol

__all__ = ["JointProduct", "joint_product", "stripe_of"]


@dataclass(frozen=True, eq=False)
class JointProduct:
    """Products that have all in common but their matrices, whose columns stand side by side.

    A *stripe* of columns is one product, or several of the same width whose sums meet in one
    epilogue, where ``Accumulator`` ``i`` is that of the ``i``-th. An item is a block of rows by one
    panel of a stripe.

    Attributes:
        args: the buffers of all, in the order of the kernel's ``buffers``.
        stripes: each with the same ``args``, ``m``, ``k``, ``a``, register tile and block of rows,
            without ``batch``; within a stripe with the same ``n`` and ``epilogue``, too.
        variables: the graph's Variables in the order of ``vars``.
    """

    args: tuple[Arg, ...]
    stripes: tuple[tuple[Contraction, ...], ...]
    variables: tuple[Symbol, ...] = ()

    #: Points of the parallel range may run at the same time and in any order.
    parallel: ClassVar[bool] = True

    @property
    def first(self) -> Contraction:
        """The product whose rows are everyone's."""
        return self.stripes[0][0]

    @property
    def products(self) -> tuple[Contraction, ...]:
        """All of them."""
        return tuple(product for stripe in self.stripes for product in stripe)

    @cached_property
    def panels(self) -> Dim:
        """Panels of all stripes."""
        total: Dim = 0
        for stripe in self.stripes:
            total = total + stripe[0].panels
        return total

    @cached_property
    def extent(self) -> Dim:
        """The parallel range: row blocks x panels."""
        return self.first.blocks * self.panels

    def extent_for(self, wanted: int) -> Dim:
        """The parallel range where the first ``wanted`` rows are wanted."""
        return self.first.blocks_for(wanted) * self.panels

    @cached_property
    def panels_innermost(self) -> bool:
        """See :attr:`~ostinato.lower.contraction.Contraction.panels_innermost`."""
        together = sum(product.panels_bytes for product in self.products)
        return fits_cache(together) or self.first.streams_rows

    @property
    def idle(self) -> int | None:
        """See :attr:`~ostinato.lower.contraction.Contraction.idle`."""
        return self.first.idle

    @cached_property
    def grain(self) -> int:
        """How many consecutive items are worth handing out together."""
        return min(max(1, stripe[0].grain // len(stripe)) for stripe in self.stripes)

    @cached_property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return max(stripe[0].sums_at(len(stripe)) for stripe in self.stripes)


def stripe_of(
    build: KernelBuilder,
    products: Sequence[Product],
    panels: Mapping[Product, Sequence[LoweredBuffer]],
    cut: ProductCut,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
    registers: RegisterFile,
) -> tuple[Contraction, ...]:
    """Products whose sums meet in one epilogue, the first one's, as contractions.

    Args:
        build: of the kernel; its members are all that the epilogue computes.
        products: in the order of their sums' numbers.
        panels: the packed operands of each.
        cut: how they are cut.
        outputs: what the epilogue stores.
        variables: the graph's Variables.
        registers: what the products are tiled for.
    """
    made: list[Contraction] = []
    # The first one comes last: its epilogue takes the others' sums.
    for number, product in reversed([*enumerate(products)]):
        results = () if number else outputs
        form = product.panel_format(registers)
        kernel = product.contraction(
            build, panels[product], cut.tile, results, variables, form, number
        )
        made.insert(0, replace(kernel, item_rows=cut.item_rows))
    return tuple(made)


def joint_product(
    stripes: Sequence[Sequence[Contraction]],
    args: tuple[Arg, ...],
    variables: tuple[Symbol, ...],
) -> JointProduct:
    """The kernel of products that were each built as if alone, with blocks of rows for all.

    Args:
        stripes: those of one stripe have the first one's epilogue.
        args: the buffers of all, of which each product knows the first few.
        variables: the graph's Variables.
    """
    rows = max(stripe[0].block for stripe in stripes)
    made = tuple(
        tuple(
            replace(product, args=args, item_rows=rows, epilogue=stripe[0].epilogue)
            for product in stripe
        )
        for stripe in stripes
    )
    return JointProduct(args, made, variables)
