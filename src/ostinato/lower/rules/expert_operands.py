"""The matrices that the rows of a layer of experts choose among."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import Load
from ostinato.lower.loopir.views import linear_index
from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.graph import Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program import LoweredBuffer
    from ostinato.variables import Dim

__all__ = ["ExpertOperands"]


@dataclass(frozen=True, eq=False)
class ExpertOperands:
    """The matrices of a node's experts, as kernels find them.

    Attributes:
        ids: the experts' ids.
        count: the matrices that a row chooses among.
        instead: the matrices that are elsewhere than for other nodes.
        places: by id, the matrix; ``None``: the id is its number, counted from the first.
        first: the number of the first matrix.
    """

    ids: Value
    count: Dim
    instead: Mapping[Value, LoweredBuffer] = field(default_factory=dict)
    places: LoweredBuffer | None = None
    first: int = 0

    def expert(self, build: KernelBuilder, point: Indices) -> Dim:
        """The number of the matrix at a point of the ids."""
        if self.places is None:
            return build.data_index(self.ids, point, self.count, wrap=True) + self.first
        assert isinstance(self.count, int)
        position = build.argument(self.places, reads=True)
        place = Load(position, linear_index(self.ids.shape, point), INT64)
        return build.bind(place, self.count - 1, extent=self.count)
