"""The ops that devices of array frameworks take as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.base import Capabilities
from ostinato.ir.leaves import LEAVES
from ostinato.ir.op import Op
from ostinato.ops import OPS
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.ops.moe import EXPERT_MLP, GROUPED_MATMUL
from ostinato.ops.recurrent import RECURRENT_SCAN

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.dtypes import DType

__all__ = ["capabilities"]

#: Ops whose rows choose among experts.
_EXPERTS = (GROUPED_MATMUL.name, EXPERT_MLP.name)


def capabilities(dtypes: Collection[DType], native: Collection[str] = ()) -> Capabilities:
    """The capabilities of a framework.

    It takes elementwise ops, and all that are not made of simpler ones, by their rules. So it takes
    recurrent ones, which are made of simpler ones for known lengths alone, and layers of experts,
    whose choices are counted. The others are decomposed: the framework fuses what they are made of.

    Args:
        dtypes: that it computes with.
        native: ops that it has rules of its own for, besides.
    """
    simple = {name for name, op in OPS.items() if type(op).decompose is Op.decompose}
    return Capabilities(
        ops=frozenset({*simple, *ELEMENTWISE, *LEAVES, RECURRENT_SCAN.name, *_EXPERTS, *native}),
        dtypes=frozenset(dtypes),
        in_place_states=False,  # not always: XLA may fold an update into a reader of its result
        inouts=True,
        single_ops=True,
        expert_residency=True,
        experts_in_file=True,
    )
